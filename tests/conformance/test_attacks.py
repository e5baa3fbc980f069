"""One harness for every attack on every family: it runs, repeats, stops when told, and reads only the update."""

from itertools import combinations

import pytest
import torch
from tiny import ALL_KNOWN, CASES, TEXTS, tiny_model

from gradleak import Client, GradleakError, attack
from gradleak.attacks import ATTACKS
from gradleak.core.budget import Budget
from gradleak.core.progress import Progress

# No polishing but where a test asks for it: twelve rounds would take ten times as long as the rest.
QUICK = {
    "steps": 4, "init_draws": 3, "init_orders": 2, "discrete_every": 2, "candidates": 6, "prior": "none", "polish": 0,
}  # fmt: skip
POLISHED = {**QUICK, "polish": 1}
# What polishing takes grows with the square of the length.
SHORT = ["Rosa moved.", "The loan was refused."]


# These do not search by steps from a random start, so some of what is asked of the others has no meaning for them.
PLANNED = ("auto", "exact")


# These need a task of their own, or search for no sentences; they have tests of their own.
OTHERS = ("bag", "control", "film", "lti", "soft")


MATCHING = [name for name in ATTACKS.names() if name not in (*OTHERS, *PLANNED)]
# What attacks differ in is what they ask of one engine, and what families differ in is inside of it: every attack is
# seen with four families, every family with three attacks.
PAIRS = [(case, MATCHING[(number + turn) % len(MATCHING)]) for number, case in enumerate(CASES) for turn in (0, 1, 3)]


@pytest.fixture(params=MATCHING)
def name(request):
    """The attacks that match gradients."""
    return request.param


@pytest.fixture(params=PLANNED)
def planned(request):
    return request.param


def texts_of(found):
    return [[sentence.tokens for sentence in one.sentences] for one in found]


@pytest.mark.parametrize(("tiny", "name"), PAIRS, indirect=True, ids=[f"{case[0]}-{name}" for case, name in PAIRS])
def test_runs_on_every_family(tiny, name):
    labels = [0, 1] if tiny.task == "classification" else None
    update = Client(tiny, ALL_KNOWN).update(TEXTS[:2], labels)
    (found,) = attack(update, tiny, name, **QUICK)
    lengths = [n - len(tiny.prefix) - len(tiny.suffix) for n in tiny.encode(TEXTS[:2]).lengths]
    assert [len(s.tokens) for s in found.sentences] == lengths
    assert found.status == "completed"
    assert found.trace[0].step == 0
    assert found.trace[-1].step == QUICK["steps"]
    assert found.loss <= found.trace[0].loss
    assert found.peak_memory_mb > 0
    special = set(tiny.tokenizer.all_special_ids)
    assert not special & {token for s in found.sentences for token in s.tokens}


def test_runs_in_double_precision(name):
    model = tiny_model("bert", "classification")
    model.module.double()
    (found,) = attack(Client(model, ALL_KNOWN).update(TEXTS[:1], [1]), model, name, **QUICK)
    assert found.status == "completed"


def test_same_seed_same_tokens(tiny_bert, name):
    update = Client(tiny_bert, ALL_KNOWN).update(TEXTS[1:2], [1])
    first, again = (attack(update, tiny_bert, name, seed=7, **POLISHED) for _ in range(2))
    assert texts_of(first) == texts_of(again)
    assert first[0].loss == again[0].loss
    if name != "subspace":  # it starts from what the update points at, whatever the seed
        assert attack(update, tiny_bert, name, seed=8, **POLISHED)[0].loss != first[0].loss


def test_neighbours_do_not_matter(tiny_bert, name):
    """An update attacked alone and together with a longer one gives the same answer."""
    updates = [Client(tiny_bert, ALL_KNOWN).update([text], [1]) for text in TEXTS[1:3]]
    together = attack(updates, tiny_bert, name, seed=[1, 2], **POLISHED)
    alone = [attack(u, tiny_bert, name, seed=[s], **POLISHED)[0] for u, s in zip(updates, (1, 2), strict=True)]
    assert texts_of(together) == texts_of(alone)


def test_stops_when_interrupted_and_keeps_the_best(tiny_bert, name):
    class Stopper(Progress):
        def advance(self, done, *, loss=None, text=None):
            budget.interrupt()

    budget = Budget()
    update = Client(tiny_bert, ALL_KNOWN).update(TEXTS[:1], [1])
    options = {**QUICK, "steps": 100000}
    (found,) = attack(update, tiny_bert, name, budget=budget, progress=Stopper(), **options)
    assert found.status == "interrupted"
    assert found.sentences[0].tokens


def test_budget_exhausted_is_said(tiny_bert, name):
    update = Client(tiny_bert, ALL_KNOWN).update(TEXTS[:1], [1])
    (found,) = attack(update, tiny_bert, name, budget=Budget(seconds=0), **QUICK)
    assert found.status == "budget-exhausted"


def test_leaves_the_model_as_it_was(tiny_bert, name):
    """No weight changes and no gradient stays behind."""
    update = Client(tiny_bert, ALL_KNOWN).update(TEXTS[:1], [1])
    tiny_bert.module.zero_grad(set_to_none=True)
    before = {n: p.detach().clone() for n, p in tiny_bert.parameters().items()}
    attack(update, tiny_bert, name, **QUICK)
    assert all(p.grad is None for p in tiny_bert.parameters().values())
    assert all(torch.equal(before[n], p) for n, p in tiny_bert.parameters().items())


def test_bad_options_are_refused(tiny_bert, name):
    update = Client(tiny_bert, ALL_KNOWN).update(TEXTS[:1], [1])
    with pytest.raises(GradleakError, match="has no option 'stepz'; did you mean 'steps'"):
        attack(update, tiny_bert, name, stepz=3)
    with pytest.raises(GradleakError, match="option 'steps'"):
        attack(update, tiny_bert, name, steps=-1)


def test_settled_attacks_stop_early(tiny_bert, name):
    """With patience, a row whose answer no longer changes is left alone; the others go on."""
    updates = [Client(tiny_bert, ALL_KNOWN).update([text], [1]) for text in TEXTS[:2]]
    options = {**QUICK, "steps": 400, "lr": 1e-7, "discrete_every": 0, "patience": 10}
    for found in attack(updates, tiny_bert, name, **options):
        assert found.status == "completed"
        assert found.trace[-1].step <= 20


def test_planned_attacks_repeat_and_leave_the_model_alone(planned):
    model = tiny_model("bert", "classification", layers=4, width=64)
    updates = [Client(model).update([text], [1]) for text in TEXTS[:2]]
    before = {n: p.detach().clone() for n, p in model.parameters().items()}
    first, again = (attack(updates, model, planned, seed=[3, 4]) for _ in range(2))
    assert texts_of(first) == texts_of(again) == texts_of([attack(u, model, planned)[0] for u in updates])
    assert [[s.text for s in one.sentences] for one in first] == [[model.decode(row)] for row in contents(model)]
    assert all(p.grad is None for p in model.parameters().values())
    assert all(torch.equal(before[n], p) for n, p in model.parameters().items())


def contents(model):
    return [model.content(row) for row in model.encode(TEXTS[:2]).sentences()]


def test_planned_attacks_refuse_and_stop(planned, tiny_bert):
    update = Client(tiny_model("bert", "classification", seed=5), ALL_KNOWN).update(TEXTS[:1], [1])
    with pytest.raises(GradleakError, match="other weights"):
        attack(update, tiny_bert, planned)
    update = Client(tiny_bert, ALL_KNOWN).update(TEXTS[:1], [1])
    (found,) = attack(update, tiny_bert, planned, budget=Budget(seconds=0))
    assert found.status == "budget-exhausted"
    with pytest.raises(GradleakError, match="has no option"):
        attack(update, tiny_bert, planned, stepz=3)


def test_unknown_attack(tiny_bert):
    update = Client(tiny_bert, ALL_KNOWN).update(TEXTS[:1], [1])
    with pytest.raises(GradleakError, match="unknown attack 'lamp'; did you mean 'lamp-"):
        attack(update, tiny_bert, "lamp")


def test_an_update_of_another_model_is_refused(tiny_bert, name):
    update = Client(tiny_model("bert", "classification", seed=5), ALL_KNOWN).update(TEXTS[:1], [1])
    with pytest.raises(GradleakError, match="other weights"):
        attack(update, tiny_bert, name, **QUICK)


def test_presets_fill_in_what_is_not_said(tiny_bert):
    def options(**settings):
        return ATTACKS.get("lamp-cos").from_settings(settings).prepared(tiny_bert).options

    fast, paper = options(), options(preset="paper")
    assert (paper.steps, paper.init_draws, paper.init_orders, paper.discrete_every) == (2000, 500, 500, 75)
    assert fast.steps < paper.steps / 4
    assert options(preset="paper", steps="7").steps == 7
    assert options(candidates=5).candidates == 5
    with pytest.raises(GradleakError, match="option 'preset'"):
        options(preset="slow")


def test_large_models_get_the_settings_published_for_them(tiny_bert, monkeypatch):
    monkeypatch.setattr("gradleak.attacks.search.options.LARGE_WIDTH", 16)
    monkeypatch.setattr("gradleak.attacks.search.options.LARGE_LAYERS", 2)

    def options(name, **settings):
        return ATTACKS.get(name).from_settings(settings).prepared(tiny_bert).options

    lamp = options("lamp-cos", preset="paper")
    assert (lamp.steps, lamp.optimizer, lamp.linear_over, lamp.clip) == (5000, "adamw", 10000, 0.5)
    assert (options("dlg").lr, options("tag").lr, options("tag").steps) == (0.1, 0.03, 10000)
    assert options("tag", steps=5).steps == 5


def test_variants_weigh_sums_against_sums(tiny_bert):
    cos, both, l2 = (ATTACKS.get(name)().prepared(tiny_bert).options for name in ("lamp-cos", "lamp-l2l1", "lamp-l2"))
    assert (cos.distance, cos.regularization, cos.prior_weight) == ("cosine", 1.0, 0.2)
    assert (both.distance, both.regularization, both.prior_weight) == ("l2+l1", 25.0, 60.0)
    assert (l2.distance, l2.regularization, l2.prior_weight, l2.steps) == ("l2", 25.0, 60.0, both.steps)


def test_discrete_at_the_end_is_used(tiny_bert):
    """With a prior that loves one order, the answer is in that order although no step saw it."""
    from gradleak.attacks.search.optimise import MatchingSearch

    class Sorted:
        name = "sorted"

        def nll(self, sentences):
            return torch.tensor([float(sum(a > b for a, b in combinations(s, 2))) for s in sentences])

    seen = []
    plain = MatchingSearch._reorder_answers

    def watched(search, budget):
        search.prior = Sorted()
        plain(search, budget)
        seen.append(True)

    update = Client(tiny_bert, ALL_KNOWN).update(TEXTS[1:2], [1])
    options = {**QUICK, "steps": 40, "candidates": 200, "prior_weight": 100.0, "discrete": "end"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MatchingSearch, "_reorder_answers", watched)
        (found,) = attack(update, tiny_bert, "lamp-cos", **options)
    assert seen
    assert found.sentences[0].tokens == sorted(found.sentences[0].tokens)


def test_labels_and_lengths_that_are_not_told_are_raced(tiny_bert):
    """Several guesses for one update become rows; one of them is the answer, whatever the neighbours do."""
    told = Client(tiny_bert, ALL_KNOWN).update(TEXTS[:2], [0, 1])
    blind = Client(tiny_bert, ("batch_size",)).update(TEXTS[:2], [0, 1])
    options = {**QUICK, "race": 3, "guesses": 5}
    first, second = attack([blind, told], tiny_bert, "lamp-cos", seed=[1, 2], **options)
    assert first.found == ["lengths", "labels"]
    assert len(first.lengths) == len(first.labels) == 2
    assert [len(s.tokens) for s in first.sentences] == [n - 2 for n in first.lengths]
    assert second.found == []
    assert texts_of([second]) == texts_of(attack(told, tiny_bert, "lamp-cos", seed=[2], **options))


@pytest.mark.parametrize("form", ["average", "unrolled"])
def test_attacks_weights_that_moved(tiny_bert, form):
    update = Client(tiny_bert, ALL_KNOWN, "fedavg:batch=1,lr=0.01").update(
        ["Rosa moved.", "The loan was refused."], [0, 1]
    )
    (found,) = attack(update, tiny_bert, "lamp-cos", fedavg=form, **POLISHED)
    assert found.status == "completed"
    assert found.loss <= found.trace[0].loss


@pytest.mark.real
def test_lamp_recovers_words_of_a_real_model(minilm):
    """A short search on real weights already finds most of a short sentence's words."""
    text = "The patient died."
    update = Client(minilm, ALL_KNOWN).update([text], [1])
    options = {"steps": 12, "lr": 0.05, "init_draws": 3, "candidates": 4, "discrete_every": 6, "polish": 0}
    (found,) = attack(update, minilm, "lamp-cos", **options)
    assert {"patient", "died"} <= set(found.bag)


@pytest.mark.real
def test_the_control_guesses_at_the_granted_length(minilm):
    update = Client(minilm, ALL_KNOWN).update(["The patient died last night."], [1])
    found = attack([update, update], minilm, "control")
    assert [len(one.sentences[0].tokens) for one in found] == [6, 6]
    assert texts_of(found)[0] != texts_of(found)[1]
    blind = Client(minilm, known=()).update(["The patient died last night."], [1])
    assert len(attack(blind, minilm, "control")[0].sentences) == 1


def test_polish_gets_closer_on_every_family(tiny):
    polish_only_gets_closer(tiny, "lamp-cos")


def test_polish_gets_closer_by_every_distance(tiny_bert, name):
    polish_only_gets_closer(tiny_bert, name)


def polish_only_gets_closer(model, name):
    """Tokens stay tokens, and the polished answer explains the update at least as well."""
    from gradleak.attacks.search.polish import polish

    distances = []

    def watched(engine, model, answer, fixed, vocabularies, hints, *rest, **settings):
        def distance(tokens):
            embeds = torch.where(fixed[..., None], answer.embeds, model.embed(tokens))
            if model.task == "causal-lm":
                answer.labels.copy_(torch.where(fixed, answer.labels, tokens))
            return engine.values(answer.with_embeds(embeds))

        nearest = [v.nearest(embeds)[0] for v, embeds in zip(vocabularies, answer.embeds, strict=True)]
        first = distance(torch.stack(nearest))
        found = polish(engine, model, answer, fixed, vocabularies, hints, *rest, **settings)
        distances.append((first, distance(found[0])))
        return found

    labels = [0, 1] if model.task == "classification" else None
    update = Client(model, ALL_KNOWN).update(SHORT, labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradleak.attacks.search.optimise.polish", watched)
        (found,) = attack(update, model, name, **{**QUICK, "polish": 2})
    ((before, after),) = distances
    assert bool((after <= before * (1 + 1e-5)).all())
    assert not set(model.tokenizer.all_special_ids) & {t for s in found.sentences for t in s.tokens}


@pytest.mark.real
def test_polish_finds_the_right_order(minilm):
    """Given the right words in a wrong order, with one of them wrong, real tokens settle it."""
    from gradleak.attacks.evidence.knowledge import gather
    from gradleak.attacks.search.empty_dummies import empty_dummies
    from gradleak.attacks.search.polish import polish
    from gradleak.attacks.search.vocabulary import Vocabulary
    from gradleak.core.progress import SILENT
    from gradleak.matching.distances import Distance
    from gradleak.matching.engine import FactorEngine

    update = Client(minilm, ALL_KNOWN).update(["The nurse called the bank about my loan."], [1])
    frame, fixed = empty_dummies(minilm, gather(update, minilm, "test", 1), [0])
    rough = minilm.encode(["My nurse called the loan the bank about."])
    polished, _ = polish(
        FactorEngine(minilm, [update.tensors], Distance(), tokens=rough.lengths[0]),
        minilm,
        frame.with_embeds(torch.where(fixed[..., None], frame.embeds, minilm.embed(rough.ids)[None])),
        fixed,
        [Vocabulary.of(minilm)],
        [None],
        (torch.zeros_like(rough.ids)[None], torch.tensor([float("inf")])),
        rounds=12,
        generators=[torch.Generator().manual_seed(0)],
        budget=Budget(),
        progress=SILENT,
    )
    assert minilm.decode(polished[0][~fixed[0]].tolist()) == "the nurse called the bank about my loan."
