"""Exact recovery of pairs of texts: sources, targets, and which belong together."""

from __future__ import annotations

import pytest
import torch
from tiny import PAIR_CASES, TARGETS, TEXTS, bare_update, tiny_model

from gradleak import Client, TextModel, attack, load_model
from gradleak.attacks.base import Reconstruction
from gradleak.attacks.exact.companions import Companions
from gradleak.attacks.exact.unplaced import UnplacedRecovery
from gradleak.models.sides import Source

# Few tokens occur twice in a sentence: where they do, their order takes a search.
SOURCES = ["Rosa moved on.", "The flight was at noon.", "My loan is six.", "Your ward leaves."]
ANSWERS = ["Ward six.", "No loan.", "The bank called.", "Friday at noon."]


def paired(found: Reconstruction) -> set[tuple[str, str]]:
    """The pairs that are proved: texts of the same number."""
    by_number: dict[int, dict[str, str]] = {}
    for sentence in found.sentences:
        assert sentence.side is not None
        if sentence.certified and sentence.example is not None:
            by_number.setdefault(sentence.example, {})[sentence.side] = sentence.text
    return {(pair["source"], pair["target"]) for pair in by_number.values() if len(pair) == 2}


def read(model: TextModel, texts: list[str]) -> list[str]:
    return [model.decode(row) for row in model.encode(texts).sentences()]


@pytest.mark.parametrize("family", PAIR_CASES)
@pytest.mark.parametrize("size", [1, 2])
def test_pairs_are_read_and_proved(family: str, size: int) -> None:
    """Nothing is known but the tensors, not even how many there are."""
    model = tiny_model(family, "seq2seq", width=64)
    sources, answers = SOURCES[2 : 2 + size], ANSWERS[2 : 2 + size]
    update = Client(model, known=()).update(sources, answers)
    (found,) = attack(update, model, "exact", budget="60s")
    assert paired(found) == set(zip(read(model, sources), read(model, answers), strict=True))
    assert len(found.sentences) == 2 * size
    assert found.status == "completed"
    assert found.labels is None


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_four_pairs(family: str) -> None:
    model = tiny_model(family, "seq2seq", width=128)
    update = Client(model, known=()).update(SOURCES, ANSWERS)
    (found,) = attack(update, model, "exact", budget="100s")
    assert paired(found) == set(zip(read(model, SOURCES), read(model, ANSWERS), strict=True))


def test_a_target_is_read_where_the_encoder_is_not_sent() -> None:
    model = tiny_model("t5", "seq2seq", width=64)
    update = Client(model, known=(), observe="regex:^decoder").update(TEXTS[:2], TARGETS[:2])
    (found,) = attack(update, model, "exact", budget="20s")
    assert {s.text for s in found.sentences if s.certified} == set(read(model, TARGETS[:2]))
    assert {s.side for s in found.sentences} == {"target"}
    assert all(s.example is None for s in found.sentences)
    assert [reason.kind for reason in found.reasons] == ["matrix-missing"]


def test_a_source_is_read_where_the_decoder_is_not_sent() -> None:
    model = tiny_model("bart", "seq2seq", width=64)
    update = Client(model, known=("batch_size",), observe="regex:encoder.layers|encoder.embed").update(
        TEXTS[:2], TARGETS[:2]
    )
    (found,) = attack(update, model, "exact", budget="30s")
    assert {s.text for s in found.sentences if s.certified} == set(read(model, TEXTS[:2]))
    assert all(s.example is None for s in found.sentences)


def test_wrong_texts_get_no_certificate() -> None:
    """A certificate is about the update: that of other pairs proves none of these."""
    model = tiny_model("bart", "seq2seq", width=64)
    (found,) = attack(Client(model, known=()).update(TEXTS[:1], TARGETS[:1]), model, "exact", budget="30s")
    assert not {s.text for s in found.sentences if s.certified} & set(read(model, [*TEXTS[1:], *TARGETS[1:]]))


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_lora_on_queries_and_values_is_read(family: str) -> None:
    """As peft chooses for T5, those of the cross-attention too: with more rank than tokens and B moved."""
    below = tiny_model(family, "seq2seq", width=64)
    lora = "r=32,targets=query+value+cross_query+cross_value,b=0.2"
    model = load_model(below.module, tokenizer=below.tokenizer, lora=lora)
    update = Client(model, known=()).update(SOURCES[2:3], ANSWERS[2:3])
    assert all(".lora_" in name for name in update.tensors)
    (found,) = attack(update, model, "exact", budget="40s")
    assert "target" in {s.side for s in found.sentences if s.certified}
    assert {s.text for s in found.sentences if s.certified} <= {
        *read(model, SOURCES[2:3]),
        *read(model, ANSWERS[2:3]),
    }
    (bag,) = attack(update, model, "bag")
    tokens = {t for row in model.encode([SOURCES[2], ANSWERS[2]]).sentences() for t in model.content(row)}
    assert set(model.tokenizer.convert_ids_to_tokens(sorted(tokens))) <= set(bag.bag)


def test_companions_are_the_tokens_of_a_sentence_and_where_they_stand() -> None:
    """The weights that are solved for are the attention's own: what a token sees is its sentence."""
    model = tiny_model("t5", "seq2seq", width=128)
    update = Client(model, known=()).update(SOURCES[:2], ANSWERS[:2])
    search = UnplacedRecovery(Source(model), update, torch.Generator().manual_seed(0))
    inputs, mixed = search.before
    assert inputs is not None
    assert mixed is not None
    tokens, _ = search._fits(inputs)
    companions = Companions(search.model, search.mixed[0], mixed, tokens)
    assert companions.usable
    sentences = model.encode(SOURCES[:2]).sentences()
    once = [n for n, token in enumerate(tokens.tolist()) if sum(token in own for own in sentences) == 1]
    right = told = asked = 0
    for number in once:
        seen = companions.of(number)
        own = next(each for each in sentences if int(tokens[number]) in each)
        if seen is None or {int(tokens[n]) for n in seen.tokens} != set(own):
            continue
        right += 1
        place = own.index(int(tokens[number]))
        for other, distance in zip(seen.tokens, seen.distances, strict=True):
            if own.count(int(tokens[other])) == 1 and abs(own.index(int(tokens[other])) - place) < 8:
                told += own.index(int(tokens[other])) - place == distance
                asked += 1
    assert right > len(once) / 2
    assert told > 0.7 * asked > 0


def test_companions_are_not_looked_for_in_models_of_another_form() -> None:
    model = tiny_model("modernbert", "classification", width=64)
    update = bare_update(model, TEXTS[:1])
    search = UnplacedRecovery(model, update, torch.Generator().manual_seed(0))
    assert search.before[1] is not None
    assert not Companions(model, search.mixed[0], search.before[1], torch.arange(5, 20)).usable
