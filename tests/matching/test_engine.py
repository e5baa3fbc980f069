"""The fast engine agrees with the oracle: every family, task, distance and shape, in value and derivative."""

import functools

import pytest
import torch
from exactly import in_full_precision
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tiny import CASES, NEW_CASES, TEXTS, tiny_model
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.modernbert import modeling_modernbert as modernbert

from gradleak import Client
from gradleak.matching import engine as engine_module
from gradleak.matching.distances import Distance
from gradleak.matching.dummies import Dummies
from gradleak.matching.engine import FactorEngine
from gradleak.matching.naive import NaiveEngine

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
SENTENCES = [*TEXTS, "Mei is late.", "No.", "The nurse called twice about the test."]
pytestmark = pytest.mark.filterwarnings("ignore:.*have no fast rule")


@functools.cache
def model_of(family, task, dtype):
    model = tiny_model(family, task, width=32)
    return in_full_precision(model) if dtype == torch.float64 else model


@pytest.fixture(autouse=True)
def _softmax_in_full_precision(monkeypatch):
    """The library's Llama attention takes its softmax in fp32 even in an fp64 model."""
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim=None, dtype=None: softmax(x, dim=dim))
    # ModernBERT turns queries and keys in fp32, Llama as they are.
    monkeypatch.setattr(modernbert, "apply_rotary_pos_emb", apply_rotary_pos_emb)


def random_dummies(model, batches, seed, copies):
    """Random embeddings in the shape of the batches, each guessed at `copies` times."""
    generator = torch.Generator().manual_seed(seed)
    encoded = [model.encode(texts) for texts in batches]
    width = max(batch.ids.shape[1] for batch in encoded)
    mask = torch.stack([torch.nn.functional.pad(b.mask, (0, width - b.mask.shape[1])) for b in encoded])
    shape = mask.shape if model.task == "causal-lm" else mask.shape[:2]
    labels = torch.randint(0, 2 if model.task == "classification" else 60, shape, generator=generator)
    target = torch.arange(len(batches))
    empty = Dummies(torch.zeros(*mask.shape, 1), mask, labels, target).repeat(copies)
    embeds = torch.randn(*empty.mask.shape, model.token_embedding.shape[1], generator=generator)
    return empty.with_embeds(embeds.to(model.token_embedding))


def updates_of(model, batches):
    return [Client(model).update(t, [i % 2 for i in range(len(t))]).tensors for t in batches]


def assert_agree(oracle, engine, dummies, tolerance):
    """Values and derivatives agree. The slope of an absolute value jumps at zero, where fp32 rounding decides."""
    jumps = engine.distance.needs_coordinates and dummies.embeds.dtype == torch.float32
    expected, expected_slope = oracle.values_and_gradients(dummies)
    got, slope = engine.values_and_gradients(dummies)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=0)
    torch.testing.assert_close(engine.values(dummies), expected, rtol=tolerance, atol=0)
    assert (slope - expected_slope).norm() <= (10 if jumps else 1) * tolerance * expected_slope.norm()


def examples(count):
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize(("family", "task"), CASES)
@examples(4)
@given(data=st.data())
def test_agrees_with_the_oracle(family, task, data):
    """In fp64, where a wrong rule shows most."""
    agrees_with_the_oracle(model_of(family, task, torch.float64), TOLERANCE[torch.float64], data)


@pytest.mark.parametrize(("family", "task"), CASES)
@examples(2)
@given(data=st.data())
def test_agrees_with_the_oracle_up_to_rounding(family, task, data):
    agrees_with_the_oracle(model_of(family, task, torch.float32), TOLERANCE[torch.float32], data)


@pytest.mark.parametrize(("family", "task"), NEW_CASES)
@examples(2)
@given(data=st.data())
def test_agrees_with_the_oracle_on_further_families(family, task, data):
    """What fp32 rounds away is the same for all of them."""
    agrees_with_the_oracle(model_of(family, task, torch.float64), TOLERANCE[torch.float64], data)


def agrees_with_the_oracle(model, tolerance, data):
    size = data.draw(st.sampled_from([1, 3]), label="batch size")
    count = data.draw(st.integers(1, 3), label="updates")
    batches = [[data.draw(st.sampled_from(SENTENCES)) for _ in range(size)] for _ in range(count)]
    targets = updates_of(model, batches)
    dummies = random_dummies(model, batches, data.draw(st.integers(0, 999)), data.draw(st.integers(1, 3)))
    distance = Distance(data.draw(st.sampled_from(["cosine", "l2", "l2+l1", "sign"])))
    names = sorted(targets[0])
    only = data.draw(st.one_of(st.none(), st.sets(st.sampled_from(names), min_size=4)), label="subset")
    embedding = model.adapter.parameter_of(model.adapter.token_embedding)
    keys = {f"{parts['key'].name}.bias" for parts in model.adapter.parts}
    if only is not None and not only - keys - {embedding}:
        only = None
    drawn = st.fixed_dictionaries(
        {name: st.sampled_from([0.5, 1.0, 3.0]) for name in (names[0], names[5], names[-1])}
    )
    weights = data.draw(st.one_of(st.none(), st.lists(drawn, min_size=count, max_size=count)), label="weights")
    masks = None
    if data.draw(st.booleans(), label="masked"):
        generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
        # Few coordinates of a matrix take a path of their own. Of a bias more are kept: a single one may be rounding.
        kept = {1: 0.6, 2: data.draw(st.sampled_from([0.6, 0.01]), label="share of a matrix that counts")}
        masks = [
            {n: (torch.rand(t.shape, generator=generator) < kept[t.dim()]) for n, t in u.items()} for u in targets
        ]
    oracle = NaiveEngine(model, targets, distance, only=only, weights=weights, masks=masks)
    tokens = int(dummies.mask.sum(dim=(1, 2)).max())
    engine = FactorEngine(model, targets, distance, tokens=tokens, only=only, weights=weights, masks=masks)
    assert sorted(engine.names + engine.plain_names) == sorted(oracle.names)
    assert_agree(oracle, engine, dummies, tolerance)


@pytest.mark.parametrize("distance", ["cosine", "l2"])
def test_noise_takes_the_dense_path(distance):
    """A target of rank above the token count has no thin form; the result is right all the same."""
    model = model_of("bert", "classification", torch.float64)
    clean = updates_of(model, [TEXTS[:1]])
    generator = torch.Generator().manual_seed(0)
    noisy = [{n: t + 1e-3 * torch.randn(t.shape, generator=generator).to(t) for n, t in clean[0].items()}]
    dummies = random_dummies(model, [TEXTS[:1]], 0, 3)
    tokens = int(dummies.mask[0].sum())
    for targets, thin in ((clean, True), (noisy, False)):
        engine = FactorEngine(model, targets, Distance(distance), tokens=tokens)
        large = [t for n, t in engine._targets.items() if "encoder" in n]
        assert large
        assert all((t.thin is not None) == thin for t in large)
        assert_agree(NaiveEngine(model, targets, Distance(distance)), engine, dummies, 1e-10)


def test_small_memory_makes_more_passes_not_other_numbers(monkeypatch):
    model = model_of("gpt2", "classification", torch.float64)
    batches = [TEXTS[:1], TEXTS[1:2], TEXTS[2:3]]
    targets = updates_of(model, batches)
    dummies = random_dummies(model, batches, 0, 5)
    roomy = FactorEngine(model, targets, Distance("cosine"), tokens=64)
    tight = FactorEngine(model, targets, Distance("cosine"), tokens=64, memory=1)
    assert len(tight._parts(dummies, 1.0)) == len(dummies)
    assert len(roomy._parts(dummies, 1.0)) < 5
    torch.testing.assert_close(tight.values(dummies), roomy.values(dummies), rtol=1e-12, atol=0)
    for ours, theirs in zip(tight.values_and_gradients(dummies), roomy.values_and_gradients(dummies), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-14)
    monkeypatch.setattr(engine_module, "TOKENS_AT_ONCE", 1)
    assert len(roomy._parts(dummies, 1.0)) == len(dummies)


def test_rows_come_in_any_order():
    model = model_of("bert", "classification", torch.float64)
    batches = [TEXTS[:1], TEXTS[1:2]]
    dummies = random_dummies(model, batches, 0, 4)
    engine = FactorEngine(model, updates_of(model, batches), Distance("cosine"), tokens=32)
    order = torch.randperm(len(dummies), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(engine.values(dummies.take(order)), engine.values(dummies)[order], rtol=1e-12, atol=0)


def test_layers_without_a_rule_fall_back_and_say_so():
    model = model_of("mpnet", "classification", torch.float64)
    with pytest.warns(UserWarning, match="1 parameters of .* have no fast rule"):
        engine = FactorEngine(model, updates_of(model, [TEXTS]), Distance("cosine"), tokens=64)
    assert engine.plain_names == ["mpnet.encoder.relative_attention_bias.weight"]


@pytest.mark.filterwarnings("ignore:.*have no fast rule")
@pytest.mark.parametrize(
    "only", [["mpnet.encoder.relative_attention_bias.weight"], ["mpnet.embeddings.LayerNorm.bias"]], ids=str
)
def test_a_single_parameter_of_any_kind(only):
    model = model_of("mpnet", "classification", torch.float64)
    targets = updates_of(model, [TEXTS])
    oracle = NaiveEngine(model, targets, Distance("l2"), only=only)
    engine = FactorEngine(model, targets, Distance("l2"), tokens=64, only=only)
    assert_agree(oracle, engine, random_dummies(model, [TEXTS], 0, 2), 1e-10)


def test_weights_stay_as_they_were():
    model = model_of("bert", "classification", torch.float64)
    engine = FactorEngine(model, updates_of(model, [TEXTS]), Distance("cosine"), tokens=64)
    before = {n: p.detach().clone() for n, p in model.parameters().items()}
    engine.values_and_gradients(random_dummies(model, [TEXTS], 0, 2))
    assert before.keys() == model.parameters().keys()
    assert all(torch.equal(before[n], p) and p.grad is None for n, p in model.parameters().items())
    assert not any(module._forward_hooks for module in model.module.modules())


@pytest.mark.real
def test_bf16_comes_close(minilm):
    """Values within a hundredth and slopes in the same direction: enough to search with, not to agree to rounding."""
    text = "The committee rejected the proposal."
    update = Client(minilm).update([text], [1])
    batch = minilm.encode([text])
    noise = 0.05 * torch.randn(4, *batch.ids.shape, 384, generator=torch.Generator().manual_seed(0))
    dummies = Dummies(
        minilm.embed(batch.ids)[None] + noise,
        batch.mask[None].repeat(4, 1, 1),
        torch.ones(4, 1, dtype=torch.long),
        torch.zeros(4, dtype=torch.long),
    )
    tokens = int(batch.mask.sum())
    full, half = (
        FactorEngine(m, [update.tensors], Distance(), tokens=tokens) for m in (minilm, minilm.to_bfloat16())
    )
    values, slopes = full.values_and_gradients(dummies)
    near_values, near_slopes = half.values_and_gradients(dummies)
    assert near_slopes.dtype == torch.float32
    torch.testing.assert_close(near_values, values, rtol=0.05, atol=0.01)
    assert float(torch.cosine_similarity(slopes.flatten(1), near_slopes.flatten(1)).min()) > 0.99


@pytest.mark.parametrize("kind", [FactorEngine, NaiveEngine], ids=["factor", "naive"])
@pytest.mark.parametrize("distance", ["cosine", "l2", "l2+l1", "sign"])
@pytest.mark.parametrize(("family", "task"), [("bert", "classification"), ("gpt2", "causal-lm")])
def test_updates_of_different_parts_are_matched_each_on_its_own(family, task, distance, kind):
    """Together they give what the oracle gives for each of them alone."""
    model = model_of(family, task, torch.float64)
    parts = ["layer:2.ffn_in", "layer:2", "layer:1.query,key,value", "transformer"]
    batches = [[text] for text in SENTENCES[:4]]
    labels = [0] if task == "classification" else None
    targets = [Client(model, observe=part).update(t, labels).tensors for part, t in zip(parts, batches, strict=True)]
    dummies = random_dummies(model, batches, seed=3, copies=1)
    rule = {"tokens": int(dummies.mask.sum(dim=(1, 2)).max())} if kind is FactorEngine else {}
    values, slopes = kind(model, targets, Distance(distance), **rule).values_and_gradients(dummies)
    for row, target in enumerate(targets):
        alone = dummies.row(row)
        alone = Dummies(alone.embeds, alone.mask, alone.labels, torch.zeros_like(alone.target))
        expected, slope = NaiveEngine(model, [target], Distance(distance)).values_and_gradients(alone)
        torch.testing.assert_close(values[row : row + 1], expected, rtol=1e-9, atol=0)
        assert (slopes[row] - slope[0]).norm() <= 1e-9 * slope.norm()
