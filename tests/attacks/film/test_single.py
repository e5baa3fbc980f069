"""Single sentences through noise."""

from __future__ import annotations

import pytest
import torch
from tiny import TEXTS, tiny_model

from gradleak import Client, TextModel, attack
from gradleak.attacks.evidence.rows import rows_above_noise
from gradleak.attacks.film.attack import ALONE_EXPLAINS
from gradleak.attacks.film.attribution import Attribution
from gradleak.attacks.film.beam import BeamSettings, Grown
from gradleak.attacks.film.single import Single, SingleReading, explaining_most
from gradleak.core.budget import Budget
from gradleak.core.secret import Secret

SECRET = Secret(bytes(32))


def _nowhere(found: object) -> None:
    """Keeps nothing and shows nothing."""


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def writer(request: pytest.FixtureRequest) -> TextModel:
    """Tied, without a first token of the tokenizer's; and neither."""
    return tiny_model(request.param, "causal-lm", layers=2, width=32)


def test_a_sentence_comes_back_whole_and_alone(writer: TextModel) -> None:
    """The first token too, which nothing predicts, and no other token is named."""
    update = Client(writer, defenses=["noise:sigma=1e-4"]).update(TEXTS[:1], secret=SECRET)
    (found,) = attack(update, writer, "film", rounds=1, beams=4, length=24)
    assert [(sentence.text, sentence.confidence) for sentence in found.sentences] == [(TEXTS[0], 1.0)]
    assert set(found.bag) == set(writer.tokenizer.convert_ids_to_tokens(found.sentences[0].tokens))


def test_a_batch_is_not_taken_for_a_sentence(writer: TextModel) -> None:
    update = Client(writer, defenses=["noise:sigma=1e-4"]).update(TEXTS[:2], secret=SECRET)
    (tokens,) = writer.tokenize(TEXTS[:1])
    settings = BeamSettings(beams=4, repeat=0, length=16)
    kept: list[Single] = []
    reading = SingleReading(Attribution(writer, update), update, tokens, settings, Budget(), _nowhere, kept.append)
    found = reading.read(tokens[:1])
    assert found is not None
    # Whoever is stopped from outside has the best so far.
    assert kept[-1] == found
    assert [each.explained for each in kept] == sorted(each.explained for each in kept)
    assert not found.whole
    assert found.explained < ALONE_EXPLAINS


@pytest.mark.parametrize("steps", [4, 12])
def test_what_was_grown_is_given_when_the_time_is_over(writer: TextModel, steps: int) -> None:
    update = Client(writer, defenses=["noise:sigma=1e-4"]).update(TEXTS[:1], secret=SECRET)
    (found,) = attack(update, writer, "film", rounds=1, beams=4, length=24, budget=Budget(steps=steps))
    assert found.sentences


def test_what_a_draft_leaves_shows_the_wrong_token_and_the_right_one(writer: TextModel) -> None:
    update = Client(writer, defenses=["noise:sigma=1e-4"]).update(TEXTS[:1], secret=SECRET)
    (tokens,) = (tuple(ids) for ids in writer.tokenize(TEXTS[:1]))
    settings = BeamSettings(beams=4, repeat=0, length=16)
    bag = range(len(writer.token_embedding))
    reading = SingleReading(Attribution(writer, update), update, bag, settings, Budget(), _nowhere, _nowhere)
    mended = [
        tokens in reading._edited((*tokens[:place], tokens[1], *tokens[place + 1 :]), [])
        for place in range(2, len(tokens))
    ]
    # Of an untrained model every later state moves as much as the wrong one; with all directions 2 are found.
    assert sum(mended) >= 4, mended


def test_sentences_of_a_search_are_given_at_their_longest_and_once() -> None:
    def grown(*shares: float, last: int = 9) -> Grown:
        tokens = (1, *range(2, len(shares) + 1), last)
        return Grown(tokens, (0.0,) * len(shares), shares)

    short, long = grown(1.0, 1.0, last=3), grown(1.0, 1.0, 0.1, last=4)
    sibling, poor = grown(1.0, 1.0, 0.05, 0.0, last=8), grown(0.2, 0.1, last=7)
    other = Grown((1, 2, 3, 8), (0.0,) * 3, (1.0, 1.0, 0.0))
    assert explaining_most([short, long, other, poor], 9) == [long.tokens, poor.tokens]
    assert explaining_most([short, long, sibling], 9) == [sibling.tokens]
    assert explaining_most([poor, long], 1) == [long.tokens]


def test_expected_tokens_stand_out_of_noise_but_were_not_there() -> None:
    generator = torch.Generator().manual_seed(0)
    states = 1 + 0.3 * torch.randn(4, 64, generator=generator)
    table = 0.01 * torch.randn(1000, 64, generator=generator) + 0.001 * states.mean(dim=0)
    table[[3, 7]] -= states[:2]  # came next
    table[5] += 0.5 * states[2]  # was expected
    table[9] += torch.randn(64, generator=generator)  # was read
    found = rows_above_noise(table)
    assert found is not None
    assert found.tolist() == [3, 7, 9]
    assert rows_above_noise(table * torch.logspace(0, -6, 1000)[:, None]) is None
