"""From a file to cells: every combination once, under a name that changes with what decides the result."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak import GradleakError, audit
from gradleak.audits.spec import AuditSpec, load_spec, setting
from gradleak.cli.options import options_for
from gradleak.core.identity import reached
from gradleak.experiments.runner.jobs import _ASIDE, AuditJob
from gradleak.experiments.runner.known import KnownModels
from gradleak.experiments.runner.plan import make_cell, plan_cells
from gradleak.experiments.runner.subjects import Subjects
from gradleak.experiments.sweep.run import Sweep
from gradleak.experiments.sweep.spec import SweepSpec, load_sweep
from gradleak.models.load import load_model

SETTINGS = AuditSpec(attack="tag", options={"steps": 5}, defenses=("noise:sigma=0.001",))


class Known(Subjects):
    """Nothing is loaded; models and data have the hashes they are given."""

    def __init__(self, model="weights", data="texts"):
        super().__init__()
        self._hashes = model, data

    def model_hash(self, spec):
        return self._hashes[0]

    def data_hash(self, spec):
        return self._hashes[1]


def cell(subjects=None, threads=1, **changes):
    job = AuditJob(spec=SETTINGS.model_copy(update=changes))
    return make_cell(job, subjects or Known(), threads, "derived")


def plan(spec, subjects=None):
    subjects = subjects or Subjects()
    return plan_cells(Sweep(spec).jobs(subjects), subjects, spec.threads, "derived")


@given(
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=3),
    chains=st.lists(st.sampled_from(["none", "sign", "frozen+noise:sigma=1"]), min_size=1, max_size=3, unique=True),
    attacks=st.lists(st.sampled_from(["bag", "dlg", "exact"]), min_size=1, max_size=3, unique=True),
    seeds=st.integers(1, 4),
)
def test_every_combination_is_there(sizes, chains, attacks, seeds):
    config = SweepSpec.model_validate(
        {"batch_sizes": sizes, "defenses": chains, "attacks": attacks, "seeds": seeds, "clients": ["fedsgd"]}
    )
    audits = list(config.audits())
    assert len(audits) == config.count == len(sizes) * len(chains) * len(attacks) * seeds
    assert {audit.seed for audit in audits} == set(range(seeds))
    assert {audit.defenses == () for audit in audits} == {chain == "none" for chain in chains}


def test_the_example_is_a_sweep():
    example = load_sweep(Path(__file__).parents[2] / "examples" / "sweep.yaml")
    assert example.count == 24
    assert example.limits.seconds == 60


def test_the_same_cell_listed_twice_is_one(make):
    cells = plan(make(defenses=["none", "noise:sigma=0.1", "noise:sigma=1e-1"], seeds=1, attacks=["bag"]))
    assert len({cell.id for cell in cells}) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modles: [minilm]", "unknown key 'modles'; did you mean 'models'"),
        ("limits: {tmie: 5m}", "unknown key 'limits.tmie'; did you mean 'time'"),
        ("limits: {time: soon}", "not a duration"),
        ("limits: {memory: much}", "not an amount of memory"),
        ("attacks: [{nmae: tag}]", "unknown key 'attacks.0.nmae'; did you mean 'name'"),
        ("trails: 3", "unknown key 'trails'; did you mean 'trials'"),
        ("batch_size: 3", "unknown key 'batch_size'; did you mean 'batch_sizes'"),
        ("attacks: tag", "attacks: Input should be a valid tuple"),
        ("defenses: [noise]", "defence 'noise'"),
        ("defenses: {noise: 1}", "must be a list"),
        ("clients: [fedfoo]", "client 'fedfoo'"),
        ("observe: ['layer:x']", "layer"),
        ("known: [secrets]", "unknown value 'secrets'"),
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


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        ("lamp", "unknown attack 'lamp'"),
        ({"name": "tag", "options": {"stesp": 1}}, "no option 'stesp'; did you mean 'steps'"),
        ("ig", "unknown attack 'ig'"),  # of images, on a text model
    ],
)
def test_attacks_are_refused_before_any_model_is_loaded(attack, message):
    with pytest.raises(GradleakError, match=message):
        Sweep(SweepSpec(models=["no such model"], attacks=[attack])).jobs(Subjects())


def test_the_same_thing_written_otherwise_is_the_same_cell():
    ways = [
        {"options": {"steps": "5"}},
        {"defenses": ("noise:sigma=1e-3",)},
        {"client": "fedsgd:mode=eval"},
        {"device": "cpu:0"},
        {"model": "./elsewhere", "data": "copy.csv"},  # files count by what they hold
    ]
    assert {cell(**way).id for way in ways} == {cell().id}


def test_every_setting_makes_another_cell_but_those_that_decide_nothing():
    """A setting that is added to the spec counts from its first day, without another line of code."""
    changed = {
        "attack": "dlg", "options": {"steps": 6}, "client": "fedavg", "defenses": (), "observe": "layer:1",
        "known": (), "metrics": ("nerr",), "device": "cuda", "redact": True,
    }  # fmt: skip
    for name, field in AuditSpec.model_fields.items():
        value = changed.get(name, "other" if field.annotation in (str, str | None) else 9)
        other, same = cell(**{name: value}), cell()
        # A secret counts for the name, but seeds must tell nothing of it.
        assert (other.id == same.id) == (name in _ASIDE - {"secret"}), name
        assert name not in _ASIDE or other.seeds == same.seeds, name


def test_a_setting_that_is_added_changes_no_seed_until_it_is_set():
    class More(AuditSpec):
        shade: int = 1

    def decisive(**values):
        return AuditJob.model_construct(spec=More(attack="tag", **values), inverter=None).decisive("text")

    assert decisive() == AuditJob(spec=AuditSpec(attack="tag")).decisive("text") == decisive(shade=1)
    assert decisive(shade=2) == {**decisive(), "shade": 2}


def test_adding_a_setting_makes_it_an_option_and_a_key(monkeypatch, tmp_path):
    class More(AuditSpec):
        shade: int = setting(1, "how dark it is", "drawing", ge=0)

    monkeypatch.setattr("gradleak.audits.spec.AuditSpec", More)
    monkeypatch.setattr("gradleak.audits.run.AuditSpec", More)
    help_text = options_for(("drawing",), (), {})["shade"].__metadata__[0].help
    assert help_text == "How dark it is; default: 1."
    (tmp_path / "audit.yaml").write_text("shade: 3")
    assert load_spec(tmp_path / "audit.yaml", {}).shade == 3
    assert load_spec(tmp_path / "audit.yaml", {"shade": "4"}).shade == 4
    with pytest.raises(GradleakError, match="shade: Input should be greater"):
        audit("minilm", shade=-1)


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
        {"metrics": ("nerr",)},
        {"attack_seed": 7},
        {"redact": True},
    ]
    others = [cell(**change) for change in changes]
    others += [cell(Known(model="w2")), cell(Known(data="t2")), cell(threads=2)]
    assert len({one.id[-16:] for one in (cell(), *others)}) == len(others) + 1


@given(seeds=st.integers(1, 9), together=st.integers(1, 5))
def test_groups_hold_cells_of_one_attack_and_their_members_count(seeds, together):
    def planned(count):
        sweep = SweepSpec(attacks=["tag", "dlg"], seeds=count, together=together)
        subjects = Known()
        return plan_cells(Sweep(sweep).jobs(subjects), subjects, 1, "derived")

    cells = planned(seeds)
    members = Counter((one.group, one.job.spec.attack) for one in cells if one.group)
    assert len(members) == len({group for group, _ in members})
    assert all(1 < size <= together for size in members.values())
    assert len({one.id for one in cells}) == 2 * seeds
    # A cell keeps its name as long as those it runs with are the same, and only so long.
    fewer = {one.id for one in planned(seeds - 1)} if seeds > 1 else set()
    for one in cells:
        group = [other for other in cells if other.group == one.group] if one.group else [one]
        same = all(other.job.spec.seed < seeds - 1 for other in group)
        assert (one.id in fewer) == same


def test_attacks_and_defences_face_the_same_private_batches():
    facing = [cell(), cell(attack="dlg"), cell(defenses=()), cell(batch_size=4), cell(observe="layer:1")]
    assert len({one.seeds.data for one in facing}) == 1
    assert len({one.seeds.attack for one in facing}) == len(facing)
    assert cell(seed=1).seeds.data != cell().seeds.data


def test_code_counts_as_far_as_an_attack_reaches():
    tag = reached(["gradleak.attacks.search.tag"])
    assert {"gradleak.attacks.search.optimise", "gradleak.matching.engine", "gradleak.priors.ngram"} <= tag
    assert "gradleak.attacks.film.attack" not in tag
    assert not any(name.startswith("gradleak.scoring") for name in tag)
    assert cell().hashes.code != cell(attack="film", options={}).hashes.code
    assert cell(defenses=()).hashes.code != cell().hashes.code


def test_a_model_is_known_by_all_that_it_computes_with(model_folder, tiny_bert):
    model = load_model(str(model_folder))
    first = model.identity()
    assert load_model(str(model_folder)).identity() == first
    model.module.config.layer_norm_eps *= 2
    assert model.identity() != first
    assert tiny_bert.identity() != first


def test_a_model_that_is_known_is_not_loaded_again(make, model_folder):
    known = KnownModels()
    cells = plan(make(), Subjects(known=known))
    assert list(known.hashes.values()) == [cells[0].hashes.model]
    marked = KnownModels(hashes=dict.fromkeys(known.hashes, "as known"))
    assert plan(make(), Subjects(known=marked))[0].hashes.model == "as known"
