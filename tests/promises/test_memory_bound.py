"""`--memory` is a bound: what would need more is refused before the work, with the number and with what to do."""

import mmap
import multiprocessing
import sys

import pytest
import torch
from tiny import TEXTS, tiny_model, tiny_module, tiny_tokenizer

from gradleak import AuditSpec, Client, GradleakError, attack, audit, load_model
from gradleak.clients import streaming
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
    # Asked of the system itself: a tensor may be put where the suite has freed memory, which is held already.
    more = mmap.mmap(-1, 128 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    more.write(bytes(len(more)))
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
    more.close()


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


def streamed(told) -> None:
    """How large a model is, and how much more a process holds once it has a streamed update of it."""
    streaming.STREAMED_FROM = 1
    module = tiny_module("llama", "causal-lm", 34_000, 2, 512, 0)
    model = load_model(module, tokenizer=tiny_tokenizer("llama"), task="causal-lm")
    before = held_memory()
    update = Client(model).update(["Rosa moved to ward six."])
    told.send((sum(4 * p.numel() for p in model.parameters().values()), held_memory() - before, len(update.tensors)))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux how much a process holds")
def test_a_streamed_update_holds_no_memory():
    """In a process of its own, which nothing else of the suite allocates in."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=streamed, args=(there,))
    process.start()
    there.close()
    size, held, tensors = here.recv()
    process.join(60)
    assert tensors > 10
    assert size > 128 << 20
    assert held < 0.6 * size
