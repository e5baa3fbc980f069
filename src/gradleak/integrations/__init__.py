"""Update folders from training that is not ours: Flower, Hugging Face's Trainer, files of weights."""
