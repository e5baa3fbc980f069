"""What is known of a batch before the search, and guesses at the rest."""

import pytest
from tiny import TEXTS, secret_of, tiny_model

from gradleak import Client, GradleakError, load_model
from gradleak.attacks.evidence.knowledge import gather
from gradleak.attacks.evidence.labels import label_counts
from gradleak.attacks.evidence.lengths import longest_sentence, total_tokens
from gradleak.models.load import save_model


def test_what_is_not_known_is_found_or_guessed(tiny_bert):
    lone = Client(tiny_bert, known=("batch_size",)).update(TEXTS[:1], [1])
    (knowledge,) = gather(lone, tiny_bert, "test", 10)
    assert (knowledge.labels, knowledge.found) == ([1], ["lengths", "labels"])
    assert knowledge.lengths == tiny_bert.encode(TEXTS[:1]).lengths
    with pytest.raises(GradleakError, match="batch size"):
        gather(Client(tiny_bert, known=()).update(TEXTS[:1], [1]), tiny_bert, "test", 10)
    guesses = gather(Client(tiny_bert, known=("batch_size",)).update(TEXTS, [1, 0, 1]), tiny_bert, "test", 10)
    assert 1 < len(guesses) <= 10
    assert all(max(guess.lengths) == max(tiny_bert.encode(TEXTS).lengths) for guess in guesses)


def test_a_batch_tells_its_token_count_and_its_label_counts():
    """A model wide enough for the rank to be the number of tokens."""
    model = tiny_model("bert", "classification", layers=3, width=64)
    update = Client(model, known=("batch_size",)).update(TEXTS, [1, 0, 1])
    lengths = model.encode(TEXTS).lengths
    assert total_tokens(update, model, 3) == sum(lengths)
    assert next(label_counts(update, model, 3)) == (1, 2)
    guesses = gather(update, model, "test", 50)
    assert sorted(lengths) in [sorted(guess.lengths) for guess in guesses]


def test_a_noisy_update_tells_no_length(tiny_bert):
    update = Client(tiny_bert, ("batch_size",), defenses=["noise:sigma=1"]).update(TEXTS[:1], [1], secret_of(0))
    assert longest_sentence(update, tiny_bert) is None
    assert total_tokens(update, tiny_bert, 1) is None
    assert len(gather(update, tiny_bert, "test", 24)) > 5


def test_a_large_batch_of_many_classes_has_guesses_at_once(tmp_path):
    """Its label counts and lengths are far too many to list."""
    narrow = tiny_model("bert", "classification", layers=3, width=256)
    model = load_model(save_model(narrow.module, narrow.tokenizer, tmp_path), num_labels=30)
    texts, labels = [f"{word} " * (3 + n % 4) for n, word in enumerate(TEXTS[0].split() * 4)][:16], list(range(16))
    update = Client(model, known=("batch_size",)).update(texts, labels)
    assert total_tokens(update, model, 16) is not None
    guesses = gather(update, model, "test", 24)
    assert len(guesses) == 24
    assert sorted(guesses[0].labels) == labels
