"""Every verdict tells the tokens: what an update names without order is a leak of its own."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tiny import tiny_model

from gradleak import Client, TextModel, attack, audit, judge
from gradleak.attacks.base import Reconstruction
from gradleak.audits.results import Results
from gradleak.core.budget import Budget
from gradleak.data.texts import Row
from gradleak.report.build import write_report
from gradleak.report.terminal import print_results
from gradleak.report.tokens import in_order
from gradleak.scoring.named import named
from gradleak.verdict.show import print_verdict

TEXTS = [
    "On Monday Rosa moved to ward 6.",
    "The loan of 1,200 was refused, said Daniel.",
    "Your flight to Lisbon leaves at noon on Friday.",
    "Please call the clinic before the results arrive.",
]
MODEL = tiny_model("bert", "classification")


@pytest.fixture(scope="module")
def crowded() -> Results:
    """More tokens than the model is wide: exact recovery finds nothing, and matching has no time."""
    return audit(MODEL, data=[Row(text, 0) for text in TEXTS], batch_size=4, trials=1, budget=Budget(steps=1))


def printed(results: Results) -> str:
    out = io.StringIO()
    console = Console(file=out, width=160)
    print_results(results, console)
    print_verdict(judge([results]), console)
    return " ".join(out.getvalue().split())


def test_auto_names_the_tokens_where_no_sentence_is_read(crowded: Results) -> None:
    (trial,) = crowded.trials
    assert crowded.found["bag recall"].mean == crowded.found["bag precision"].mean == 100
    assert trial.named is not None
    assert trial.named.words.found == trial.named.words.total
    assert {"Daniel", "Lisbon", "6", "1,200"} <= set(trial.named.which)
    assert trial.control_named is not None
    assert trial.control_named.guesses == trial.named.guesses
    assert trial.control_named.recall < 60


def test_the_verdict_does_not_say_that_nothing_was_shown(crowded: Results) -> None:
    verdict = judge([crowded])
    (scenario,) = verdict.scenarios
    tokens = scenario.attacks[0].tokens
    assert crowded.status == "budget-exhausted"
    assert tokens is not None
    assert (tokens.level, scenario.level, verdict.level) == ("high", "high", "high")
    assert scenario.headline.startswith("High: auto named 100")
    assert "shows nothing" not in printed(crowded)


def test_terminal_and_page_show_them(crowded: Results, tmp_path: Path) -> None:
    said = printed(crowded)
    page = write_report(crowded, tmp_path).read_text()
    names = f"{crowded.trials[0].named.pieces.names.found} of"  # type: ignore[union-attr]
    for text in (said, " ".join(page.split())):
        assert "Tokens, high: auto named 100" in text
        assert "commonest tokens" in text
        assert names in text
        assert "Lisbon" in text
        assert "1,200" in text
    assert '<h2 id="tokens">Tokens</h2>' in page


def test_the_bag_stays_beside_sentences() -> None:
    """Also where sentences were proved, and at the same level of detail."""
    model = tiny_model("bert", "classification", layers=4, width=128)
    results = audit(model, data=[Row(text, 0) for text in TEXTS[:2]], attack="auto", batch_size=2, trials=1)
    (trial,) = results.trials
    assert trial.scores["exact_match"] == 100
    assert results.found["bag recall"].mean == 100
    assert "Tokens, high" in printed(results)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_of_language_models(family: str) -> None:
    model = tiny_model(family, "causal-lm", layers=3, width=32)
    update = Client(model).update(TEXTS, None)
    (found,) = attack(update, model, budget=Budget(steps=1))
    assert "bag" in found.found
    assert named(found.bag, TEXTS, model).recall > 80


def test_a_redacted_result_holds_no_token(crowded: Results, tmp_path: Path) -> None:
    from gradleak.audits.redact import redact

    results = redact(crowded)
    results.save(tmp_path)
    write_report(results, tmp_path)
    verdict = judge([results])
    verdict.save(tmp_path)
    written = [path.read_text() for path in sorted(tmp_path.iterdir())]
    text = json.dumps([*(json.loads(results.model_dump_json())["trials"]), verdict.model_dump(), printed(results)])
    for word in ("rosa", "daniel", "lisbon", "loan", "clinic"):
        assert not any(word in each.lower() for each in (*written, text))
    assert "Tokens, high: auto named 100" in printed(results)


def test_the_bag_looks_at_its_budget() -> None:
    model = tiny_model("bert", "classification", width=32)
    update = Client(model, defenses=["frozen"]).update(TEXTS[:1], [0])
    (found,) = attack(update, model, "bag", budget=Budget(seconds=0))
    assert (found.bag, found.status) == ({}, "budget-exhausted")


@given(st.sets(st.sampled_from(("rosa", "moved", "to", "ward", ".", "the", "loan", "refused", "nobody", "##s"))))
def test_what_a_bag_names_is_counted_right(bag: set[str]) -> None:
    """Tokens of the batch count once, words only if all their tokens are named, and a larger bag names no less."""
    model = MODEL
    texts = ["Then Rosa moved to ward six.", "The loan was refused."]
    found = named(bag, texts, model)
    there = {name for row in model.encode(texts).sentences() for name in names_of(model, model.content(row))}
    assert (found.tokens.found, found.tokens.total) == (len(bag & there), len(there))
    assert set(found.wrong) == bag - there
    assert found.guesses == len(bag)
    assert ("Rosa" in found.which) == (set(names_of(model, model.tokenizer("rosa")["input_ids"][1:-1])) <= bag)
    everything = named(bag | there, texts, model)
    assert everything.recall == 100
    assert found.words.found <= everything.words.found == everything.words.total


def test_an_unknown_token_is_never_named() -> None:
    model = MODEL
    text = "The loan was 我."
    assert model.tokenizer.unk_token in names_of(model, model.encode([text]).sentences()[0])
    found = named([*names_of(model, model.encode([text]).sentences()[0])], [text], model)
    assert (found.tokens.found, found.words.found, found.words.total) == (4, 3, 4)


def names_of(model: TextModel, tokens: list[int]) -> list[str]:
    return [str(name) for name in model.tokenizer.convert_ids_to_tokens(tokens)]


def test_a_token_without_letters_is_listed_last():
    """A vocabulary, or a results file of somebody else's, may hold a token whose name is empty."""
    answer = Reconstruction(bag={"": 1.0, "##ing": 1.0, "loan": 1.0}, found=["bag"])
    assert in_order(answer) == ["loan", "", "##ing"]
