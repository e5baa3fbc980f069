"""Every rule against a plain loop of torch, and against Hugging Face's Trainer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny import TEXTS, secret_of, tiny_model

from gradleak import Client, GradleakError, ImageClient, TextModel, load_model
from gradleak.clients.strength import norm, strength
from gradleak.updates.client_rule import ClientRule

MORE = [*TEXTS, "She paid the rent twice.", "Call me at six."]
LABELS = [0, 1, 1, 0, 1]


@pytest.fixture(params=[("bert", "classification"), ("llama", "causal-lm")], ids=lambda case: case[1], scope="module")
def model(request: pytest.FixtureRequest) -> TextModel:
    return tiny_model(*request.param)


def sent(model: TextModel, rule: str, texts: list[str] = MORE) -> dict[str, torch.Tensor]:
    labels = LABELS[: len(texts)] if model.task == "classification" else None
    return dict(Client(model, client=rule).update(texts, labels, secret_of(1)).tensors)


def summed_loss(model: TextModel, module: Any, part: slice) -> tuple[torch.Tensor, int]:
    """The loss by the library's own forward pass, summed over what is predicted, and over how many that is."""
    batch = model.encode(MORE)
    ids, mask = batch.ids[part], batch.mask[part]
    logits = module(input_ids=ids, attention_mask=mask.long()).logits
    if model.task == "classification":
        targets = torch.tensor(LABELS)[part]
        return F.cross_entropy(logits, targets, reduction="sum"), len(targets)
    targets = ids.masked_fill(~mask, -100)[:, 1:]
    total = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), reduction="sum")
    return total, int((targets != -100).sum())


def loop(
    model: TextModel, make: Any, steps: list[list[slice]], rates: list[float], clip: float | None = None
) -> dict[str, torch.Tensor]:
    """Weights before minus weights after, by backward, clip_grad_norm_ and an optimiser's step."""
    module = copy.deepcopy(model.module)
    optimizer = make(module)
    for parts, rate in zip(steps, rates, strict=True):
        optimizer.zero_grad()
        losses = [summed_loss(model, module, part) for part in parts]
        (sum(loss for loss, _ in losses) / sum(count for _, count in losses)).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    after = dict(module.named_parameters())
    return {name: (p - after[name]).detach() for name, p in model.parameters().items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], rate: float) -> None:
    """Up to rounding of the weights; a coordinate whose gradient is rounding alone may go any way under Adam."""
    assert set(found) <= set(expected)
    for name, tensor in expected.items():
        if name.endswith("key.bias"):  # softmax does not see it: its gradient is rounding alone
            continue
        if name not in found:  # nothing of the loss reaches it
            assert not tensor.any()
            continue
        off = (found[name] - tensor).abs() > 1e-6 + 1e-2 * rate
        assert off.float().mean() < 0.01, name


TWO = [slice(0, 2), slice(2, 4), slice(4, 5)]
CASES = {
    "fedavg:batch=2,epochs=2,lr=0.05,momentum=0.9": lambda m: torch.optim.SGD(m.parameters(), momentum=0.9),
    "fedavg:batch=2,epochs=2,lr=0.05,momentum=0.9,wd=0.1": lambda m: torch.optim.SGD(
        m.parameters(), momentum=0.9, weight_decay=0.1
    ),
    "adam:batch=2,epochs=2,lr=0.01": lambda m: torch.optim.Adam(m.parameters()),
    "adam:batch=2,epochs=2,lr=0.01,betas=0.8/0.9,eps=1e-4,wd=0.1": lambda m: torch.optim.Adam(
        m.parameters(), betas=(0.8, 0.9), eps=1e-4, weight_decay=0.1
    ),
    "adamw:batch=2,epochs=2,lr=0.01": lambda m: torch.optim.AdamW(m.parameters()),
    "adamw:batch=2,epochs=2,lr=0.01,wd=0.3": lambda m: torch.optim.AdamW(m.parameters(), weight_decay=0.3),
}


@pytest.mark.parametrize("rule", CASES)
def test_optimisers_are_torchs(model: TextModel, rule: str) -> None:
    rate = ClientRule.parse(rule).lr
    expected = loop(model, CASES[rule], [[part] for part in TWO] * 2, [rate] * 6)
    assert_same(sent(model, rule), expected, rate)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_clipping_and_schedules(model: TextModel, schedule: str) -> None:
    rule = f"adamw:batch=2,steps=4,lr=0.01,clip=0.5,schedule={schedule},warmup=1"
    rates = ClientRule.parse(rule).rates(len(MORE))
    expected = loop(model, lambda m: torch.optim.AdamW(m.parameters()), [[TWO[n % 3]] for n in range(4)], rates, 0.5)
    assert_same(sent(model, rule), expected, 0.01)


def test_accumulated_steps_are_means_over_all_that_is_predicted(model: TextModel) -> None:
    steps = [[TWO[0], TWO[1]], [TWO[2]]] * 2
    expected = loop(model, lambda m: torch.optim.SGD(m.parameters()), steps, [0.05] * 4)
    assert_same(sent(model, "fedavg:batch=2,accumulate=2,epochs=2,lr=0.05"), expected, 0.05)


def test_a_clipped_gradient_has_the_norm_and_the_direction(model: TextModel) -> None:
    whole, clipped = sent(model, "fedsgd"), sent(model, "fedsgd:clip=0.01")
    assert norm(clipped) == pytest.approx(0.01, rel=1e-3)
    for name, tensor in whole.items():
        torch.testing.assert_close(clipped[name] * norm(whole) / norm(clipped), tensor, rtol=1e-3, atol=1e-6)
    loose = sent(model, "fedsgd:clip=1000")
    assert all(torch.equal(loose[name], whole[name]) for name in whole)


def test_training_in_bf16_is_that_of_a_model_in_bf16(model: TextModel) -> None:
    found = sent(model, "fedavg:batch=2,lr=0.05,precision=bf16")
    module = copy.deepcopy(model.module)
    for parameter in module.parameters():
        parameter.data = parameter.data.bfloat16()
    local = TextModel(module, model.tokenizer, model.task, "bf16")
    start = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    batch = model.encode(MORE)
    targets = torch.tensor(LABELS) if model.task == "classification" else batch.ids
    with torch.backends.mkldnn.flags(enabled=False):
        for part in TWO:
            optimizer.zero_grad()
            local.batch_loss(batch.part(part), targets[part]).backward()
            optimizer.step()
    after = dict(module.named_parameters())
    for name, tensor in found.items():
        expected = start[name].float() - after[name].float()
        torch.testing.assert_close(tensor, expected.detach())
        assert tensor.dtype == torch.float32
    whole = sent(model, "fedavg:batch=2,lr=0.05")
    assert any(not torch.equal(tensor, whole[name]) for name, tensor in found.items())


def test_training_in_fp64_moves_by_the_whole_gradient_however_small(model: TextModel) -> None:
    """Steps that fp32 would round away arrive, unless the wire rounds them away."""
    steps = f"batch={len(MORE)},lr=1e-9,precision=fp64"
    gradient, exact, rounded = (
        sent(model, rule) for rule in ("fedsgd", f"fedavg:{steps},wire=fp64", f"fedavg:{steps}")
    )
    for name, tensor in exact.items():
        off = 1e-6 + 1e-4 * float(gradient[name].norm())
        torch.testing.assert_close(1e9 * tensor, gradient[name], rtol=1e-3, atol=off)
    still = sum(int((tensor == 0).sum()) for tensor in rounded.values())
    assert still > 0.9 * sum(tensor.numel() for tensor in rounded.values())


def test_what_did_not_move_in_bf16_shows_a_zero(model: TextModel) -> None:
    name = f"{model.adapter.name_of(model.adapter.token_embedding)}.weight"
    unseen = sorted(set(range(len(model.token_embedding))) - set(model.encode(MORE).ids.flatten().tolist()))
    if model.module.config.tie_word_embeddings and model.task == "causal-lm":
        pytest.skip("every row of a tied table moves")
    assert not sent(model, "fedavg:batch=2,lr=0.05,precision=bf16")[name][unseen].any()


@pytest.mark.parametrize("wire", ["fp16", "bf16"])
def test_a_gradient_is_rounded_on_the_wire(model: TextModel, wire: str) -> None:
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[wire]
    plain, rounded = sent(model, "fedsgd"), sent(model, f"fedsgd:wire={wire}")
    assert all(torch.equal(rounded[name], plain[name].to(kind).float()) for name in plain)


def test_after_local_steps_the_weights_are_rounded_on_the_wire(model: TextModel) -> None:
    plain, rounded = sent(model, "adamw:batch=2,lr=0.01"), sent(model, "adamw:batch=2,lr=0.01,wire=bf16")
    for name, weight in model.parameters().items():
        if name in plain:
            after = (weight.detach() - plain[name]).bfloat16().float()
            torch.testing.assert_close(weight.detach() - rounded[name], after, rtol=0, atol=1e-6)


def test_where_a_defence_changes_the_update_it_is_the_update_that_is_rounded(tiny_bert: TextModel) -> None:
    rule = "fedavg:batch=2,lr=0.01,wire=bf16"
    signs = Client(tiny_bert, client=rule, defenses=["sign"]).update(MORE, LABELS).tensors
    assert {float(value) for t in signs.values() for value in t.unique()} <= {-1.0, 0.0, 1.0}
    some = Client(tiny_bert, client=rule, defenses=["layers:send=1"]).update(MORE, LABELS).tensors
    whole = Client(tiny_bert, client=rule).update(MORE, LABELS).tensors
    assert all(torch.equal(some[name], whole[name]) for name in some)


def test_what_half_precision_cannot_hold_is_an_error_of_one_line(tiny_bert: TextModel) -> None:
    with pytest.raises(GradleakError, match=r"training by adam.*not finite"):
        Client(tiny_bert, client="adam:precision=fp16,lr=0.01").update(MORE, LABELS)  # 1e-8 is 0 in fp16
    Client(tiny_bert, client="adam:precision=fp16,lr=0.01,eps=1e-4").update(MORE, LABELS)


def test_images_train_by_any_rule_but_completions() -> None:
    from blobs import blobs

    pictures = blobs(2)
    target = load_model(f"lenet:channels={pictures.shape[0]},size={pictures.shape[1]}")
    for rule in ("adamw:clip=1", "fedavg:momentum=0.9", "fedsgd:precision=bf16,wire=bf16"):
        assert norm(ImageClient(target, client=rule).update(pictures).tensors) > 0
    with pytest.raises(GradleakError, match="loss=completion is for language models"):
        ImageClient(target, client="fedsgd:loss=completion").update(pictures)


# --- completions --------------------------------------------------------------------------------------


def test_only_what_follows_the_marker_is_predicted() -> None:
    model = tiny_model("llama", "causal-lm")
    texts = ["Who paid? A: Rosa did.", "When? A: At noon on Friday, A: or so."]
    found = Client(model, client="fedsgd:loss=completion,marker=A:").update(texts).tensors
    batch = model.encode(texts)
    losses = []
    for row, text in enumerate(texts):
        prompt = len(model.tokenizer(text[: text.rfind("A:") + 2])["input_ids"])
        logits = model.logits(ids=batch.ids, mask=batch.mask)[row]
        losses += [F.cross_entropy(logits[n - 1], batch.ids[row, n]) for n in range(prompt, batch.lengths[row])]
    parameters = model.parameters()
    expected = torch.autograd.grad(torch.stack(losses).mean(), list(parameters.values()), allow_unused=True)
    for (name, _), gradient in zip(parameters.items(), expected, strict=True):
        if gradient is not None:
            torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [("Who paid?", r"text 1 has no 'A:' that a completion could follow"), ("Who paid? A:", "nothing to predict")],
)
def test_a_text_without_a_completion_is_an_error_of_one_line(text: str, message: str) -> None:
    model = tiny_model("gpt2", "causal-lm")
    with pytest.raises(GradleakError, match=message) as error:
        Client(model, client="fedsgd:loss=completion,marker=A:").update([text])
    assert "\n" not in str(error.value)


def test_a_classifier_has_no_completions(tiny_bert: TextModel) -> None:
    with pytest.raises(GradleakError, match="loss=completion is for language models"):
        Client(tiny_bert, client="fedsgd:loss=completion").update(MORE, LABELS)


# --- defences inside the steps --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    ["adamw:batch=2,lr=0.01", "adam:batch=2,accumulate=2,lr=0.01", "fedavg:batch=2,lr=0.01,clip=0.1",
     "fedsgd:clip=0.1"],
)  # fmt: skip
def test_noise_that_no_formula_gives_is_measured(tiny_bert: TextModel, rule: str) -> None:
    pytest.importorskip("opacus")

    def update(client: Client) -> Any:
        return client.update(MORE, LABELS, secret_of(3))

    client = Client(tiny_bert, client=rule, defenses=["dpsgd:noise=0.7,clip=0.5"])
    noisy, plain = update(client), update(client.with_defenses([d.without_noise() for d in client.defenses]))
    found = strength(client, noisy, len(MORE), update)
    assert found.signal == pytest.approx(norm(plain.tensors))
    added = norm({name: noisy.tensors[name] - plain.tensors[name] for name in plain.tensors})
    assert found.noise == pytest.approx(added)
    assert added > 0


@pytest.mark.parametrize(
    "rule",
    ["fedavg:batch=1,epochs=2,lr=0.001,momentum=0.9", "fedavg:batch=2,accumulate=2,lr=0.001,schedule=linear",
     "fedavg:batch=1,steps=7,lr=0.001,momentum=0.5,wd=1"],
)  # fmt: skip
def test_noise_of_sgd_follows_from_its_settings(tiny_bert: TextModel, rule: str) -> None:
    pytest.importorskip("opacus")

    def update(client: Client) -> Any:
        return client.update(MORE, LABELS, secret_of(3))

    client = Client(tiny_bert, client=rule, defenses=["dpsgd:noise=5,clip=0.5"])
    noisy, plain = update(client), update(client.with_defenses([d.without_noise() for d in client.defenses]))
    added = norm({name: noisy.tensors[name] - plain.tensors[name] for name in plain.tensors})
    assert strength(client, noisy, len(MORE), update).noise == pytest.approx(added, rel=0.06)


# --- Hugging Face's Trainer -----------------------------------------------------------------------------


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The texts as the library's Trainer takes them: one by one, in order."""

    def __init__(self, model: TextModel) -> None:
        self.model, self.batch = model, model.encode(MORE)

    def __len__(self) -> int:
        return len(MORE)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        ids = self.batch.ids[number, : self.batch.lengths[number]]
        mask = torch.ones_like(ids)
        if self.model.task == "classification":
            return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor(LABELS[number])}
        return {"input_ids": ids, "attention_mask": mask, "labels": ids}

    def collate(self, rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        fillers = {"input_ids": self.model.module.config.pad_token_id or 0, "attention_mask": 0, "labels": -100}
        return {
            name: torch.stack(values)
            if values[0].dim() == 0
            else torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=fillers[name])
            for name in rows[0]
            if (values := [row[name] for row in rows])
        }


def by_trainer(model: TextModel, folder: Path, **settings: Any) -> dict[str, torch.Tensor]:
    """What the library's Trainer makes of the same texts in the same order."""
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
        logging_strategy="no", **settings,
    )  # fmt: skip
    module = copy.deepcopy(model.module)
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0  # the Trainer turns dropout on
    if hasattr(module.config, "attention_dropout"):
        module.config.attention_dropout = 0.0
    rows = Rows(model)
    InOrder(module, arguments, train_dataset=rows, data_collator=rows.collate).train()
    after = dict(module.named_parameters())
    return {name: (p - after[name]).detach() for name, p in model.parameters().items()}


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("adamw:batch=2,epochs=2,lr=0.01,wd=0,clip=1,schedule=linear", {"num_train_epochs": 2}),
        (
            "adamw:batch=2,steps=5,lr=0.01,wd=0.1,decay=matrices,clip=0.3,schedule=cosine,warmup=2",
            {"max_steps": 5, "weight_decay": 0.1, "max_grad_norm": 0.3, "lr_scheduler_type": "cosine",
             "warmup_steps": 2},
        ),
    ],
)  # fmt: skip
def test_the_trainer_moves_the_weights_the_same_way(
    model: TextModel, tmp_path: Path, rule: str, settings: dict[str, Any]
) -> None:
    expected = by_trainer(model, tmp_path, learning_rate=0.01, per_device_train_batch_size=2, **settings)
    assert_same(sent(model, rule), expected, 0.01)


def test_the_trainer_accumulates_a_language_model_the_same_way(tmp_path: Path) -> None:
    """Over the tokens of all mini-batches of a step, and with a last step of an epoch that has fewer."""
    model = tiny_model("llama", "causal-lm")
    expected = by_trainer(
        model, tmp_path, learning_rate=0.05, per_device_train_batch_size=1, gradient_accumulation_steps=2,
        max_steps=5, optim="sgd", max_grad_norm=0.0, lr_scheduler_type="constant",
    )  # fmt: skip
    assert_same(sent(model, "fedavg:batch=1,accumulate=2,steps=5,lr=0.05"), expected, 0.05)


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_the_trainer_accumulates_a_classifier_in_the_same_direction(family: str, tmp_path: Path) -> None:
    """Its version 5.22 adds the means of mini-batches up, where a mean is meant: the step is twice as long."""
    model = tiny_model(family, "classification")
    expected = by_trainer(
        model, tmp_path, learning_rate=0.01, per_device_train_batch_size=1, gradient_accumulation_steps=2,
        max_steps=1, optim="sgd", max_grad_norm=0.0, lr_scheduler_type="constant",
    )  # fmt: skip
    found = sent(model, "fedavg:batch=1,accumulate=2,steps=1,lr=0.01")
    times = round(norm(expected) / norm(found), 3)
    assert times in (1, 2)
    for name, tensor in found.items():
        torch.testing.assert_close(times * tensor, expected[name], rtol=1e-3, atol=1e-6)
