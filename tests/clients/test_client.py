"""The client's update is the plain gradient, says only what the attacker may know, and trials are drawn once."""

import pytest
import torch
from tiny import TEXTS, TOLD, tiny_model

from gradleak import Client, GradleakError
from gradleak.data.draws import draw_trials
from gradleak.data.texts import Row


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


def test_only_what_is_granted_is_told(tiny_bert):
    told = Client(tiny_bert, TOLD).update(TEXTS, [0, 1, 1]).known
    assert (told.batch_size, told.labels) == (3, (0, 1, 1))
    assert told.lengths == tuple(tiny_bert.encode(TEXTS).lengths)
    assert Client(tiny_bert).update(TEXTS, [0, 1, 1]).known.names == ("batch_size",)
    nothing = Client(tiny_bert, known=()).update(TEXTS, [0, 1, 1])
    assert nothing.known.names == ()
    with pytest.raises(GradleakError, match="unknown value"):
        Client(tiny_bert, known=("truth",))


def test_labels_by_name_and_out_of_range(tiny_bert):
    names = tiny_bert.module.config.id2label
    by_name = Client(tiny_bert, TOLD).update(TEXTS[:1], [names[1]])
    assert by_name.known.labels == (1,)
    with pytest.raises(GradleakError, match="out of range"):
        Client(tiny_bert).update(TEXTS[:1], [2])
    with pytest.raises(GradleakError, match="not a class"):
        Client(tiny_bert).update(TEXTS[:1], ["maybe"])
    with pytest.raises(GradleakError, match="one label a text"):
        Client(tiny_bert).update(TEXTS, [1])


def test_trials_are_stable_and_distinct(tiny_bert):
    rows = [Row(f"sentence number {i}", i % 2) for i in range(20)]
    few = draw_trials(rows, tiny_bert, batch_size=2, trials=3, seed=5)
    many = draw_trials(rows, tiny_bert, batch_size=2, trials=10, seed=5)
    assert [t.texts for t in few] == [t.texts for t in many[:3]]
    used = [text for trial in many for text in trial.texts]
    assert len(set(used)) == 20
    assert draw_trials(rows, tiny_bert, batch_size=2, trials=3, seed=6) != few
    with pytest.raises(GradleakError, match="need 22 rows; the data has 20"):
        draw_trials(rows, tiny_bert, batch_size=2, trials=11, seed=0)


def test_missing_labels_are_drawn_and_long_rows_passed_over(tiny_bert):
    rows = [Row("short one"), Row("a much longer sentence with far too many words in it to be taken")]
    (trial,) = draw_trials(rows, tiny_bert, batch_size=1, trials=1, seed=0, max_tokens=12)
    assert trial.texts == ["short one"]
    assert trial.labels[0] in (0, 1)


def test_a_language_model_needs_no_labels():
    model = tiny_model("llama", "causal-lm")
    assert Client(model).update(TEXTS).known.labels is None


def test_fedavg_is_the_plain_loop(tiny):
    """Two epochs of SGD by torch's own optimiser move the weights the same way."""
    labels = [0, 1, 1] if tiny.task == "classification" else None
    update = Client(tiny, client="fedavg:epochs=2,batch=2,lr=0.01").update(TEXTS, labels)
    copy = tiny_copy(tiny)
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


def tiny_copy(model):
    import copy

    from gradleak import load_model

    return load_model(copy.deepcopy(model.module), tokenizer=model.tokenizer, task=model.task)


def test_dropout_changes_the_update_by_seed_and_leaves_the_model_in_eval_mode(tiny_bert):
    client = Client(tiny_bert, client="fedsgd:mode=train")
    first, again, other = (client.update(TEXTS, [0, 1, 1], seed) for seed in (1, 1, 2))
    name = "bert.encoder.layer.0.output.dense.weight"
    assert torch.equal(first.tensors[name], again.tensors[name])
    assert not torch.equal(first.tensors[name], other.tensors[name])
    assert not tiny_bert.module.training


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fedprox", "client 'fedprox': name"),
        ("fedavg:epoch=2", "unknown value 'epoch'; did you mean 'epochs'"),
        ("fedavg:lr=0", "client 'fedavg': lr"),
        ("fedavg:lr", "not of the form key=value"),
        ("fedsgd:epochs=3", "belong to fedavg"),
    ],
)
def test_bad_rules_are_refused(tiny_bert, spec, message):
    with pytest.raises(GradleakError, match=message):
        Client(tiny_bert, client=spec)
