"""Manifests: hostile ones are refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak import GradleakError
from gradleak.updates.manifest import Manifest, read_manifest


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_nothing_else_passes_for_a_manifest(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(GradleakError):
        read_manifest(path)


def test_notes_cannot_steer_a_terminal():
    with pytest.raises(ValueError, match="cannot be printed"):
        Manifest(task="classification", family="bert", notes=("\x1b[2J",))
