"""Work that was left behind in one thread does not disturb who runs the same model in another."""

from __future__ import annotations

import threading

import torch
from tiny import TEXTS, tiny_model

from gradleak.attacks.spans.probe import Probe


def test_a_probe_that_is_left_behind_ends_no_pass_of_another() -> None:
    model = tiny_model("llama", "causal-lm")
    batch = model.encode(TEXTS)
    wanted = model.logits(ids=batch.ids, mask=batch.mask)
    inside, done = threading.Event(), threading.Event()

    def stuck(*_: object) -> None:
        if threading.current_thread() is behind:
            inside.set()
            done.wait(60)

    def probe() -> None:
        Probe(model, [model.adapter.parts[0]["query"]])(input_ids=batch.ids, mask=batch.mask.long())

    handle = model.adapter.token_embedding.register_forward_pre_hook(stuck)
    behind = threading.Thread(target=probe, daemon=True)
    behind.start()
    try:
        assert inside.wait(60)
        assert torch.equal(model.logits(ids=batch.ids, mask=batch.mask), wanted)
    finally:
        done.set()
        behind.join()
        handle.remove()
