"""Rules in words: every setting that is not at its default is told."""

import pytest

from gradleak.attacks.evidence.departures import departures
from gradleak.core.client_presets import PRESETS
from gradleak.models.lora_text import LoraSettings
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.client_words import optimiser, training
from gradleak.updates.manifest import Manifest
from gradleak.updates.update import Update


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("clip=0.5", "gradients clipped to norm 0.5"),
        ("wd=0.1,decay=matrices", "weight decay 0.1 except on biases and norms"),
        ("schedule=linear", "step size 5e-05 that decays linearly to zero"),
        ("schedule=cosine,warmup=2", "step size 5e-05 that rises over 2 steps and decays to zero by a cosine"),
        ("accumulate=4,batch=2", "4 mini-batches of 2 texts a step"),
        ("precision=bf16", "computed in bf16"),
        ("wire=fp16", "sent in fp16"),
        ("betas=0.5/0.9", "betas 0.5 and 0.9, epsilon 1e-08"),
        ("loss=completion,marker=A:", "only answers are predicted: assistants' turns, or what follows 'A:'"),
        ("epochs=3", "3 epochs"),
    ],
)
def test_settings_are_told(setting: str, said: str) -> None:
    told = training(ClientRule.parse(f"adamw:{setting}"), "text")
    assert said in told
    assert said not in training(ClientRule.parse("adamw:wd=0"), "text")


def test_optimisers_have_names() -> None:
    names = [optimiser(ClientRule.parse(rule)) for rule in ("fedavg", "fedavg:momentum=0.5", "adam", "adamw")]
    assert names == ["SGD", "SGD with momentum 0.5", "Adam", "AdamW"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("fedsgd", ()),
        ("fedsgd:wire=bf16", ("numbers sent in bf16",)),
        ("fedavg:lr=0.1", ("1 local step with step size 0.1, sent as rounded weights",)),
        ("adamw:lr=0.1", ("1 step of AdamW with step size 0.1 (large entries keep their sign only)",)),
    ],
)
def test_what_hides_exact_values_is_named(rule: str, expected: tuple[str, ...]) -> None:
    manifest = Manifest(task="causal-lm", family="gpt2", client=ClientRule.parse(rule))
    assert departures(Update({}, manifest)) == expected


def test_the_page_of_clients_has_every_preset_and_every_setting() -> None:
    from docs_pages import DOCS

    page = (DOCS / "clients.md").read_text()
    for name, preset in PRESETS.items():
        adapters = f"`{LoraSettings.parse(name)}`" if preset.lora else "none: all weights"
        assert f"| `{name}` | `{ClientRule.parse(name)}` | {adapters} | {preset.source} |" in page
    for setting in {*ClientRule.model_fields, *LoraSettings.model_fields} - {"name"}:
        assert f"| `{setting}` |" in page, setting
