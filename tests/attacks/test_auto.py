"""Auto: proofs first, matching for the rest, and words about both."""

from __future__ import annotations

import dataclasses

import pytest
from tiny import ALL_KNOWN, TEXTS, secret_of, tiny_model

from gradleak import Client, TextModel, attack
from gradleak.attacks.exact import encoders
from gradleak.attacks.film.attack import Film, FilmOptions
from gradleak.attacks.search.initialise import AT_ONCE, MOST
from gradleak.core.budget import Budget
from gradleak.matching.engine import FactorEngine

QUICK = {"steps": 6, "prior": "none"}


def test_a_plain_gradient_is_proved_and_nothing_else_is_run() -> None:
    model = tiny_model("bert", "classification", layers=4, width=128)
    (found,) = attack(Client(model).update(TEXTS, [0, 1, 0]), model, "auto")
    assert {s.stage for s in found.sentences} == {"exact"}
    assert all(s.certified for s in found.sentences)
    assert found.trace == []


def test_a_language_model_writes_where_nothing_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """More tokens than dimensions, so no span; and no batch size is known, so there is nothing to match either."""
    model = tiny_model("gpt2", "causal-lm", layers=2, width=16)
    update = Client(model, known=()).update(TEXTS)
    short = Film(FilmOptions(rounds=1, length=8, beams=8, groups=2))
    monkeypatch.setattr("gradleak.attacks.auto.Film", lambda: short)
    (found,) = attack(update, model, "auto", **QUICK)
    assert found.sentences
    assert {s.stage for s in found.sentences} == {"film"}
    assert not any("matching" in note for note in found.notes)


@pytest.mark.parametrize("sigma", ["1e-4", "1e-2"])
def test_noise_goes_to_matching(sigma: str) -> None:
    """Where there are several sentences behind it; of a single one the likeliest is looked for first."""
    model = tiny_model("bert", "classification", layers=4, width=64)
    update = Client(model, ALL_KNOWN, defenses=[f"noise:sigma={sigma}"]).update(
        ["thursday", "adoption"], [1, 0], secret_of(0)
    )
    (found,) = attack(update, model, "auto", **QUICK)
    assert {s.stage for s in found.sentences} in ({"subspace"}, {"lamp-cos"})
    assert not found.sentences[0].certified
    assert any("without a gap" in note for note in found.notes)


def test_what_proofs_leave_is_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round finds at most one sentence and there is one round: the rest goes to matching."""
    model = tiny_model("bert", "classification", layers=3, width=64)
    accept = encoders.EncoderRecovery._accept
    monkeypatch.setattr(encoders.EncoderRecovery, "complete", property(lambda self: bool(self.recovered)))
    monkeypatch.setattr(
        encoders.EncoderRecovery, "_accept", lambda self, tokens: not self.recovered and accept(self, tokens)
    )
    monkeypatch.setattr(encoders.Outcome, "complete", False)
    found_of = encoders.recover_encoder

    def unfinished(*arguments: object) -> object:
        return dataclasses.replace(found_of(*arguments), complete=False)

    monkeypatch.setattr("gradleak.attacks.exact.attack.recover_encoder", unfinished)
    texts = ["Rosa moved.", "The loan was refused.", "Your flight leaves."]
    (found,) = attack(Client(model).update(texts, [0, 1, 0]), model, "auto", **QUICK)
    assert [s.stage for s in found.sentences] == ["exact", "subspace", "subspace"]
    assert [s.certified for s in found.sentences] == [True, False, False]
    assert found.lengths is not None
    assert len(found.lengths) == 3


def test_a_budget_of_nothing_is_said() -> None:
    model = tiny_model("bert", "classification", layers=4, width=64)
    update = Client(model, ALL_KNOWN).update(TEXTS[:1], [1])
    (found,) = attack(update, model, "auto", budget=Budget(seconds=0), **QUICK)
    assert found.status == "budget-exhausted"


def test_a_part_of_a_budget_ends_with_the_whole() -> None:
    whole = Budget(seconds=1000)
    part = whole.part(0.5)
    assert part.seconds is not None
    assert part.seconds <= 500
    assert not part.over
    whole.interrupt()
    assert part.over
    assert part.reason == "interrupted"
    assert Budget().part(0.1).seconds is None


def test_a_stage_that_was_cut_short_is_said(tiny_bert: TextModel) -> None:
    """Whatever the other stages did: a trial that ran out of its budget must never count as completed."""
    update = Client(tiny_bert).update(TEXTS[:2], [0, 1])
    for steps in (1, 3, 9, 27):
        (found,) = attack(update, tiny_bert, "auto", budget=Budget(steps=steps), steps=50, prior="none")
        whole = all(sentence.certified for sentence in found.sentences) and len(found.sentences) == 2
        assert whole or found.status == "budget-exhausted"


def test_many_guesses_do_not_keep_a_search_from_looking_at_its_budget(tiny_bert, monkeypatch):
    """Lengths that must be guessed are rows of their own; all proposals of all rows at once would take minutes."""
    real, judged = FactorEngine.values, []

    def counted(engine, dummies):
        judged.append(len(dummies))
        return real(engine, dummies)

    monkeypatch.setattr(FactorEngine, "values", counted)
    updates = [Client(tiny_bert, ("batch_size",)).update(TEXTS[:2], [0, 1]) for _ in range(8)]
    settings = {"steps": 0, "init_draws": 30, "init_orders": 0, "polish": 0, "prior": "none", "guesses": 12}
    attack(updates, tiny_bert, "lamp-cos", **settings)
    random_words, *starts, answers = judged
    assert random_words == answers == len(updates)
    rows = starts[0]
    assert rows > MOST / AT_ONCE
    assert max(judged) <= MOST
    assert sum(starts) == 30 * rows
