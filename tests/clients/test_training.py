"""What a client computes: local steps are those of torch's optimiser, and dropout follows the seed."""

import torch
from tiny import TEXTS, secret_of

from gradleak import Client


def test_fedavg_is_the_plain_loop(tiny):
    """Two epochs of SGD by torch's own optimiser move the weights the same way."""
    labels = [0, 1, 1] if tiny.task == "classification" else None
    update = Client(tiny, client="fedavg:epochs=2,batch=2,lr=0.01").update(TEXTS, labels)
    copy = tiny.copied()
    optimizer = torch.optim.SGD(copy.parameters().values(), lr=0.01)
    for _ in range(2):
        for part in (slice(0, 2), slice(2, 3)):
            batch = tiny.encode(TEXTS)
            targets = batch.ids if labels is None else torch.tensor(labels)
            loss = copy.loss(targets[part], ids=batch.ids[part], mask=batch.mask[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for name, parameter in tiny.parameters().items():
        if name in update.tensors:
            torch.testing.assert_close(update.tensors[name], (parameter - copy.parameters()[name]).detach())
    assert str(update.manifest.client) == "fedavg:epochs=2,batch=2,lr=0.01"


def test_dropout_changes_the_update_by_seed_and_leaves_the_model_in_eval_mode(tiny_bert):
    client = Client(tiny_bert, client="fedsgd:mode=train")
    first, again, other = (client.update(TEXTS, [0, 1, 1], secret_of(seed)) for seed in (1, 1, 2))
    name = "bert.encoder.layer.0.output.dense.weight"
    assert torch.equal(first.tensors[name], again.tensors[name])
    assert not torch.equal(first.tensors[name], other.tensors[name])
    assert not tiny_bert.module.training
