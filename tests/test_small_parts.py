"""Files, budget, configuration and highlighting."""

import pytest
from gradleak.audits.reconstruct import print_reconstruction
from gradleak.experiments.frontier.config import FrontierSpec
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gradleak import GradleakError
from gradleak.attacks.base import Reconstruction, Sentence
from gradleak.audits.spec import AuditSpec, load_config, parse_options
from gradleak.core.budget import Budget, parse_duration
from gradleak.core.files import output_folder, replacing, write_text
from gradleak.report.highlight import highlight
from gradleak.scoring.text import rouge, words


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = write_text(tmp_path / "a", "old")

    def fail():
        with replacing(target) as scratch:
            scratch.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_output_folder_is_proved_first(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GradleakError, match="cannot write to the folder"), output_folder(tmp_path / "file" / "below"):
        pass
    with pytest.raises(RuntimeError), output_folder(tmp_path / "new" / "deep"):
        raise RuntimeError
    assert not (tmp_path / "new").exists()
    with output_folder(tmp_path / "new" / "deep") as kept:
        pass
    assert kept.is_dir()


def test_errors_are_one_line():
    assert str(GradleakError("a\n  b")) == "a b"


@pytest.mark.parametrize("text", ["", "5 parsecs", "-3s", "0", "s"])
def test_bad_durations(text):
    with pytest.raises(GradleakError, match="duration"):
        parse_duration(text)


def test_budget_says_why_it_ended():
    budget = Budget()
    assert budget.reason == "completed"
    budget.interrupt()
    assert (budget.over, budget.reason) == (True, "interrupted")
    assert Budget(seconds=0).reason == "budget-exhausted"


def test_config_merges_and_checks(tmp_path):
    path = tmp_path / "audit.yaml"
    path.write_text("model: minilm\ntext_column: 4\noptions: {steps: 10, lr: 0.5}\nknown: labels, lengths\n")
    config = load_config(path, {"trials": 7, "options": {"steps": "20"}})
    assert (config.trials, config.text_column, config.known) == (7, "4", ("labels", "lengths"))
    assert config.options == {"steps": "20", "lr": 0.5}
    for text, message in [
        ("modle: minilm", "unknown key 'modle'; did you mean 'model'"),
        ("trials: none", "trials"),
        ("trials: 0", "trials"),
        ("- a\n- b", "key: value"),
        ("a: [", "not valid YAML"),
        ("options: 5", "options"),
        ("1: 2", "key: value"),
    ]:
        path.write_text(text)
        with pytest.raises(GradleakError, match=message):
            load_config(path, {})
    with pytest.raises(GradleakError, match="no configuration file"):
        load_config(tmp_path / "none.yaml", {})


@given(st.text(max_size=60))
def test_any_yaml_is_a_config_or_a_clear_error(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        load_config(path, {})
    except GradleakError as error:
        assert "\n" not in str(error)


def test_options_have_a_form():
    with pytest.raises(GradleakError, match="key=value"):
        parse_options(["steps"])


sentences = st.lists(st.sampled_from(["the", "cat", "sat", "on", "a", "mat", "again"]), max_size=8).map(" ".join)


def test_highlight_knows_every_script():
    assert highlight("Доктор уехал", "доктор уехал домой")[0] == ("доктор", "pair")


@given(sentences, sentences)
def test_highlight_counts_what_rouge_counts(truth, guess):
    """Words marked in any colour are ROUGE-1's overlap; a perfect guess of two words or more is all green."""
    pieces = highlight(truth, guess)
    assert "".join(piece for piece, _ in pieces) == guess
    marked = sum(mark != "none" for _, mark in pieces)
    total = len(words(truth)) + len(words(guess))
    overlap = rouge(truth, guess)["rouge1"] / 100 * total / 2
    assert marked >= round(overlap) or total == 0
    if guess == truth and len(words(truth)) > 1:
        assert {mark for piece, mark in pieces if piece.strip()} == {"pair"}


@pytest.mark.parametrize("config", [AuditSpec, FrontierSpec])
def test_lm_is_short_for_causal_lm(config):
    assert config(task="lm").task == config(task="causal-lm").task == "causal-lm"
    with pytest.raises(ValidationError):
        config(task="language")


def test_a_part_of_a_budget_takes_steps_from_the_whole():
    whole = Budget(steps=10)
    part = whole.part(0.25)
    assert [part.tick() for _ in range(4)] == [False, False, False, True]
    assert (part.limit, part.reason) == ("steps", "budget-exhausted")
    assert whole.limit is None
    rest = whole.part(1.0)
    assert [rest.tick() for _ in range(8)] == [False] * 7 + [True]
    assert whole.tick()
    assert whole.limit == "steps"


def test_exactly_enough_steps_are_enough():
    budget = Budget(steps=3)
    assert not any(budget.tick() for _ in range(3))
    assert budget.reason == "completed"


def test_a_confidence_is_not_shown_as_a_proof(capsys):
    for certified in (True, False):
        sentence = Sentence(text="words", tokens=[1], confidence=1.0, certified=certified)
        print_reconstruction(Reconstruction(sentences=[sentence]))
        assert ("Only what is certified is proved" in capsys.readouterr().out) == (not certified)
