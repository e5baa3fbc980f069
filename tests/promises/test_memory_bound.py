"""`--memory` is a bound: what would need more is refused before the work, with the number and with what to do."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import TEXTS, tiny_model

from gradleak import AuditSpec, Client, GradleakError, attack, audit
from gradleak.core import memory
from gradleak.core.memory import free_memory, held_memory, require, within

CPU = torch.device("cpu")


@pytest.fixture
def little(monkeypatch):
    """However little something needs, it counts."""
    monkeypatch.setattr(memory, "LITTLE", 0)


def test_what_is_held_counts():
    before = held_memory()
    assert 1 << 20 < before < 1 << 40
    more = torch.ones(32 << 20)  # 128 MB
    assert held_memory() - before > 100 << 20
    bound = held_memory() + (64 << 20)
    with within(bound):
        assert 32 << 20 < free_memory(CPU) <= 64 << 20
        with within(None):
            assert free_memory(CPU) <= 64 << 20
        require(16 << 20, CPU, "this", "something else")
        with pytest.raises(
            GradleakError, match=r"^this needs 0\.50 GB of memory; 0\.0\d GB are left .*; something else$"
        ):
            require(500 * 10**6, CPU, "this", "something else")
    assert free_memory(CPU) > bound - before
    assert len(more)


@pytest.mark.parametrize("how", [{}, {"client": "adamw:lr=1e-3"}, {"defenses": ["noise:sigma=0.1"]},
                                 {"defenses": ["dpsgd:clip=1,noise=1"]}])  # fmt: skip
def test_clients_are_refused_before_the_work(little, how):
    client = Client(tiny_model("bert", "classification"), **how)
    with within(1), pytest.raises(GradleakError, match=r"an update of .* needs 0\.\d\d GB of memory; .*--lora"):
        client.update(TEXTS, [0, 1, 1])
    assert client.update(TEXTS, [0, 1, 1]).tensors


def test_more_copies_need_more():
    model = tiny_model("bert", "classification")
    batch = model.encode(TEXTS)
    ways = [{}, {"client": "fedavg"}, {"client": "adamw"}, {"client": "adamw", "defenses": ["dpsgd:clip=1,noise=1"]}]
    needed = [Client(model, **how).memory_needed(batch) for how in ways]
    assert needed == sorted(needed)
    assert len(set(needed)) == len(needed)
    size = sum(4 * p.numel() for p in model.parameters().values())
    assert needed[0] == size + model.activation_bytes(batch)


@pytest.mark.parametrize("name", ["exact", "bag"])
def test_attacks_are_refused_before_the_work(little, name):
    model = tiny_model("llama", "causal-lm")
    update = Client(model).update(TEXTS)
    with within(1), pytest.raises(GradleakError, match=rf"{name} on .* needs 0\.\d\d GB of memory"):
        attack(update, model, name)


def test_an_audit_takes_it_and_says_what_is_wrong_with_it(little):
    with pytest.raises(GradleakError, match=r"needs .* of the 0\.0 GB of --memory"):
        audit(tiny_model("llama", "causal-lm"), data=TEXTS, trials=1, attack="exact", memory="1MB")
    with pytest.raises(GradleakError, match="800MB or 4GB"):
        AuditSpec(memory="much")
    assert (
        audit(tiny_model("llama", "causal-lm"), data=TEXTS, trials=1, attack="bag", memory="4GB").status
        == "completed"
    )


SCRIPT = """
import sys, torch
from tiny import tiny_model, tiny_tokenizer, tiny_module
from gradleak import Client, attack, load_model
from gradleak.clients import streaming
from gradleak.core.memory import held_memory
streaming.STREAMED_FROM = 1
torch.manual_seed(0)
module = tiny_module("llama", "causal-lm", 60_000, 2, 512, 0)
model = load_model(module, tokenizer=tiny_tokenizer("llama"), task="causal-lm")
size = sum(4 * p.numel() for p in model.parameters().values())
before = held_memory()
update = Client(model).update(["Rosa moved to ward six."])
held = held_memory() - before
print(size, held)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux how much a process holds")
def test_a_streamed_update_holds_no_memory(tmp_path):
    found = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=found)
    size, held = map(int, re.findall(r"-?\d+", done.stdout.splitlines()[-1]))
    assert size > 128 << 20
    assert held < 0.6 * size
