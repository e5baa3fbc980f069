"""Specs of audits: from files, from options, checked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gradleak import GradleakError
from gradleak.audits.spec import AuditSpec, load_spec, parse_options
from gradleak.experiments.frontier.spec import FrontierSpec


def test_a_spec_merges_and_checks(tmp_path):
    path = tmp_path / "audit.yaml"
    path.write_text("model: minilm\ntext_column: 4\noptions: {steps: 10, lr: 0.5}\nknown: labels, lengths\n")
    config = load_spec(path, {"trials": 7, "options": {"steps": "20"}})
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
            load_spec(path, {})
    with pytest.raises(GradleakError, match="no configuration file"):
        load_spec(tmp_path / "none.yaml", {})


@given(st.text(max_size=60))
def test_any_yaml_is_a_spec_or_a_clear_error(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        load_spec(path, {})
    except GradleakError as error:
        assert "\n" not in str(error)


def test_options_have_a_form():
    with pytest.raises(GradleakError, match="key=value"):
        parse_options(["steps"])


def test_lm_is_short_for_causal_lm():
    assert AuditSpec(task="lm").task == AuditSpec(task="causal-lm").task == "causal-lm"
    assert FrontierSpec(task="lm").audit.task == "causal-lm"
    for spec in (AuditSpec, FrontierSpec):
        with pytest.raises((ValidationError, GradleakError)):
            spec(task="language")
