"""A small target, and a cache of its own for every test."""

import pytest
from blobs import small_model


@pytest.fixture(scope="session")
def model():
    return small_model()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / "cache"))
