"""Searching again from an answer's tokens: it only gets closer, and ends where nothing is left or nothing helps."""

import pytest
from tiny import ALL_KNOWN

from gradleak import Client, attack
from gradleak.attacks.search import matching_attack
from gradleak.attacks.search.optimise import PATIENCE, MatchingSearch

SHORT = {"steps": 10, "init_draws": 2, "init_orders": 0, "discrete_every": 5, "candidates": 6, "prior": "none"}
TEXT = ["The loan was refused."]


@pytest.fixture
def distances(monkeypatch):
    """What every stage of a search ends with: how far off the tokens are."""
    seen = []
    polish = MatchingSearch.polish

    def watched(self, *given):
        polish(self, *given)
        seen.append(self.tokens_distance.tolist())

    monkeypatch.setattr(MatchingSearch, "polish", watched)
    monkeypatch.setattr(matching_attack, "AGAIN_STEPS", 10)
    return seen


def test_tokens_only_get_closer(tiny_bert, distances):
    updates = [Client(tiny_bert, ALL_KNOWN).update(TEXT, [label]) for label in (0, 1)]
    found = attack(updates, tiny_bert, "lamp-cos", **SHORT, polish=2, again=4)
    rows = list(zip(*distances, strict=True))
    assert 2 <= len(distances) <= 5
    assert any(row[-1] < row[0] for row in rows), "some tokens that one polish leaves wrong are mended"
    for row, own in zip(rows, found, strict=True):
        assert list(row) == sorted(row, reverse=True), "never farther than before"
        steps = [point.step for point in own.trace]
        assert steps == sorted(steps)
        assert own.status == "completed"


def test_searches_in_vain_are_the_last(tiny_bert, distances, monkeypatch):
    """Nothing is closer than this asks for, so all but the first are in vain."""
    monkeypatch.setattr("gradleak.attacks.search.optimise.CLOSER", 0.0)
    update = Client(tiny_bert, ALL_KNOWN).update(TEXT, [1])
    attack(update, tiny_bert, "lamp-cos", **SHORT, polish=1, again=9)
    assert len(distances) == 1 + PATIENCE - 1


def test_without_it_there_is_one_search_alone(tiny_bert, distances):
    update = Client(tiny_bert, ALL_KNOWN).update(TEXT, [1])
    attack(update, tiny_bert, "lamp-cos", **SHORT, polish=2, preset="fast")
    assert len(distances) == 1
    attack(update, tiny_bert, "lamp-cos", **SHORT, polish=0, preset="thorough")
    assert len(distances) == 2, "nothing to start from without a polish"


def test_an_update_that_is_explained_is_not_searched_again(tiny_bert, distances, monkeypatch):
    monkeypatch.setattr("gradleak.attacks.search.optimise.SOLVED", 10.0)
    update = Client(tiny_bert, ALL_KNOWN).update(TEXT, [1])
    attack(update, tiny_bert, "lamp-cos", **SHORT, polish=1, again=4)
    assert len(distances) == 1
