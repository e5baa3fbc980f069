"""A client's update is the plain gradient, and its manifest holds only what the attacker may know."""

import pytest
import torch
from tiny import ALL_KNOWN, TEXTS, tiny_model

from gradleak import Client, GradleakError


def test_update_is_the_mean_of_single_gradients(tiny):
    """FedSGD against the plain loop: the mean over examples, or over predicted tokens for a language model."""
    labels = [0, 1, 1] if tiny.task == "classification" else None
    whole = Client(tiny).update(TEXTS, labels).tensors
    singles = [Client(tiny).update([text], labels and [labels[i]]).tensors for i, text in enumerate(TEXTS)]
    counts = [1, 1, 1] if labels else [length - 1 for length in tiny.encode(TEXTS).lengths]
    for name, gradient in whole.items():
        total = sum(count * single[name] for count, single in zip(counts, singles, strict=True))
        torch.testing.assert_close(gradient, total / sum(counts), rtol=1e-3, atol=1e-5)


def test_update_holds_backwards_gradient(tiny):
    """The same numbers as `loss.backward()` leaves on the parameters."""
    labels = [0, 1, 1] if tiny.task == "classification" else None
    update = Client(tiny).update(TEXTS, labels)
    batch = tiny.encode(TEXTS)
    targets = batch.ids if labels is None else torch.tensor(labels)
    tiny.module.zero_grad()
    tiny.loss(targets, ids=batch.ids, mask=batch.mask).backward()
    for name, parameter in tiny.parameters().items():
        if parameter.grad is not None:
            torch.testing.assert_close(update.tensors[name], parameter.grad)
    tiny.module.zero_grad(set_to_none=True)


def test_the_manifest_holds_only_what_is_known(tiny_bert):
    known = Client(tiny_bert, ALL_KNOWN).update(TEXTS, [0, 1, 1]).known
    assert (known.batch_size, known.labels) == (3, (0, 1, 1))
    assert known.lengths == tuple(tiny_bert.encode(TEXTS).lengths)
    assert Client(tiny_bert).update(TEXTS, [0, 1, 1]).known.names == ("batch_size",)
    nothing = Client(tiny_bert, known=()).update(TEXTS, [0, 1, 1])
    assert nothing.known.names == ()
    with pytest.raises(GradleakError, match="unknown value"):
        Client(tiny_bert, known=("truth",))


def test_labels_by_name_and_out_of_range(tiny_bert):
    names = tiny_bert.module.config.id2label
    by_name = Client(tiny_bert, ALL_KNOWN).update(TEXTS[:1], [names[1]])
    assert by_name.known.labels == (1,)
    with pytest.raises(GradleakError, match="out of range"):
        Client(tiny_bert).update(TEXTS[:1], [2])
    with pytest.raises(GradleakError, match="not a class"):
        Client(tiny_bert).update(TEXTS[:1], ["maybe"])
    with pytest.raises(GradleakError, match="one label per text"):
        Client(tiny_bert).update(TEXTS, [1])


def test_a_language_model_needs_no_labels():
    model = tiny_model("llama", "causal-lm")
    assert Client(model).update(TEXTS).known.labels is None
