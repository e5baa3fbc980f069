"""Training whole models: fine-tuning, simulated federated rounds, and how good a model gets."""
