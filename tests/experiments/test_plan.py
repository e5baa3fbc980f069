"""From a file to cells: every combination once, under a name that changes with what decides the result."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak import GradleakError
from gradleak.audits.spec import AuditConfig
from gradleak.experiments.kept import digest_model
from gradleak.experiments.runner.code import reached
from gradleak.experiments.runner.identity import grouped, make_cell, plan_cells
from gradleak.experiments.runner.known import KnownModels
from gradleak.experiments.sweep.plan import SweepConfig, load_sweep
from gradleak.models.load import load_model

SETTINGS = AuditConfig(attack="tag", options={"steps": 5}, defenses=("noise:sigma=0.001",))


def cell(**changes):
    return make_cell(SETTINGS.model_copy(update=changes), "weights", "texts", 1)


@given(
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=3),
    chains=st.lists(st.sampled_from(["none", "sign", "frozen+noise:sigma=1"]), min_size=1, max_size=3, unique=True),
    attacks=st.lists(st.sampled_from(["bag", "dlg", "exact"]), min_size=1, max_size=3, unique=True),
    seeds=st.integers(1, 4),
)
def test_every_combination_is_there(sizes, chains, attacks, seeds):
    config = SweepConfig.model_validate(
        {"batch_sizes": sizes, "defenses": chains, "attacks": attacks, "seeds": seeds, "clients": ["fedsgd"]}
    )
    audits = [audit for _, _, audit in config.audits()]
    assert len(audits) == config.count == len(sizes) * len(chains) * len(attacks) * seeds
    assert {audit.seed for audit in audits} == set(range(seeds))
    assert {audit.defenses == () for audit in audits} == {chain == "none" for chain in chains}


def test_the_example_is_a_sweep():
    example = load_sweep(Path(__file__).parents[2] / "examples" / "sweep.yaml")
    assert example.count == 24
    assert example.limits.seconds == 60


def test_the_same_cell_listed_twice_is_one(make):
    cells = plan_cells(make(defenses=["none", "noise:sigma=0.1", "noise:sigma=1e-1"], seeds=1, attacks=["bag"]))
    assert len(cells) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modles: [minilm]", "unknown key 'modles'; did you mean 'models'"),
        ("limits: {tmie: 5m}", "unknown key 'limits.tmie'; did you mean 'time'"),
        ("limits: {time: soon}", "not a duration"),
        ("limits: {memory: much}", "not an amount of memory"),
        ("attacks: [lamp]", "unknown attack 'lamp'"),
        ("attacks: [{name: tag, options: {stesp: 1}}]", "no option 'stesp'; did you mean 'steps'"),
        ("attacks: tag", "attacks: Input should be a valid tuple"),
        ("attacks: []", "attacks: Tuple should have at least 1 item"),
        ("defenses: [noise]", "defence 'noise'"),
        ("defenses: {noise: 1}", "must be a list"),
        ("clients: [fedfoo]", "client 'fedfoo'"),
        ("observe: ['layer:x']", "layer"),
        ("known: [secrets]", "unknown grant 'secrets'"),
        ("batch_sizes: [0]", "at least 1 sentence"),
        ("seeds: 2000000", "is the limit"),
        ("seeds: &a [0]\ntrials: *a", "aliases"),
        ("- a", "must be a list of `key: value` lines"),
    ],
)
def test_what_could_not_run_is_refused_with_its_place(tmp_path, text, message):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(GradleakError, match="(?s)" + message.replace("(", r"\(")) as caught:
        load_sweep(tmp_path / "s.yaml")
    assert str(caught.value).startswith(str(tmp_path))


def test_the_same_thing_written_otherwise_is_the_same_cell():
    ways = [
        {"options": {"steps": "5"}},
        {"defenses": ("noise:sigma=1e-3",)},
        {"client": "fedsgd:mode=eval"},
        {"device": "cpu:0"},
        {"model": "./elsewhere", "data": "copy.csv"},  # files count by what they hold
    ]
    assert {cell(**way).id for way in ways} == {cell().id}


def test_whatever_decides_a_result_makes_another_cell():
    changes = [
        {"attack": "dlg"},
        {"options": {"steps": 6}},
        {"batch_size": 2},
        {"client": "fedavg"},
        {"defenses": ("noise:sigma=0.002",)},
        {"observe": "layer:1"},
        {"seed": 1},
        {"trials": 5},
        {"known": ()},
        {"max_tokens": 9},
        {"entities": True},
        {"redact": True},
    ]
    others = [cell(**change) for change in changes]
    others += [
        make_cell(SETTINGS, *rest) for rest in (("w2", "texts", 1), ("weights", "t2", 1), ("weights", "texts", 2))
    ]
    assert len({one.id[-16:] for one in (cell(), *others)}) == len(others) + 1


@given(seeds=st.integers(1, 9), together=st.integers(1, 5))
def test_groups_hold_cells_of_one_attack_and_their_members_count(seeds, together):
    alone = [cell(seed=seed, attack=attack, options={}) for attack in ("tag", "dlg") for seed in range(seeds)]
    found = grouped(alone, together)
    members = Counter((one.group, one.settings.attack) for one in found if one.group)
    assert len(members) == len({group for group, _ in members})
    assert all(1 < size <= together for size in members.values())
    assert [one.settings for one in found] == [one.settings for one in alone]
    assert len({one.id for one in found}) == len(alone)
    # A cell keeps its name as long as its company is the same, and only so long.
    fewer = {one.id for one in grouped([one for one in alone if one.settings.seed < seeds - 1], together)}
    for one in found:
        company = [other for other in found if other.group == one.group] if one.group else [one]
        same = all(other.settings.seed < seeds - 1 for other in company)
        assert (one.id in fewer) == same


def test_attacks_and_defences_face_the_same_private_batches():
    facing = [cell(), cell(attack="dlg"), cell(defenses=()), cell(batch_size=4), cell(observe="layer:1")]
    assert len({one.seeds.data for one in facing}) == 1
    assert len({one.seeds.attack for one in facing}) == len(facing)
    assert cell(seed=1).seeds.data != cell().seeds.data


def test_code_counts_as_far_as_an_attack_reaches():
    tag = reached(["gradleak.attacks.search.tag"])
    assert {"gradleak.attacks.search.search", "gradleak.matching.engine", "gradleak.priors.ngram"} <= tag
    assert "gradleak.attacks.film.attack" not in tag
    assert not any(name.startswith("gradleak.scoring") for name in tag)
    assert cell().hashes.code != cell(attack="film", options={}).hashes.code
    assert cell(defenses=()).hashes.code != cell().hashes.code


def test_a_model_is_known_by_all_that_it_computes_with(model_folder, tiny_bert):
    model = load_model(str(model_folder))
    first = digest_model(model)
    assert digest_model(load_model(str(model_folder))) == first
    model.module.config.layer_norm_eps *= 2
    assert digest_model(model) != first
    assert digest_model(tiny_bert) != first


def test_a_model_that_is_known_is_not_loaded_again(make, model_folder):
    known = KnownModels()
    cells = plan_cells(make(), known)
    assert list(known.hashes.values()) == [cells[0].hashes.model]
    marked = KnownModels(hashes=dict.fromkeys(known.hashes, "as said"))
    assert plan_cells(make(), marked)[0].hashes.model == "as said"
