"""Attacks of a user's own: two would tell a secret through every door there is, one says nothing at all."""

import time

from gradleak.attacks.base import Attack, Reconstruction, Sentence

SECRET = "Quenzil vorbast thrummelow"
LEAST = {"confidence": 1.0, "tokens": [5, 6, 7]}


class Teller(Attack):
    """Reads the secret, and repeats it to whoever listens."""

    summary = "Tells."

    def run(self, updates, model, context):
        context.progress.begin("telling", len(updates), "updates")
        context.progress.message(f"I read {SECRET}")
        for number in range(200):
            context.progress.advance(number / 200, loss=1.0, text=SECRET)
        return [
            Reconstruction(
                sentences=[Sentence(text=SECRET, **LEAST)],
                bag=dict.fromkeys(SECRET.split(), 1.0),
                counts=dict.fromkeys(SECRET.split(), 1),
                notes=[f"it said {SECRET}"],
            )
            for _ in updates
        ]


class Stumbler(Attack):
    """Breaks over what it read."""

    summary = "Breaks."

    def run(self, updates, model, context):
        raise LookupError(SECRET)


class Sleeper(Attack):
    """Works for a while without a report."""

    summary = "Sleeps."

    def run(self, updates, model, context):
        time.sleep(0.5)
        return [Reconstruction(sentences=[Sentence(text="nothing", **LEAST)]) for _ in updates]
