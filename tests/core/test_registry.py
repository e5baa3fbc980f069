"""Names that other packages and a user's own files can add."""

import sys
from importlib.metadata import EntryPoint

import pytest
import torch
from sample import sample_results

from gradleak import Client, GradleakError, attack
from gradleak.attacks import ATTACKS, IMAGE_ATTACKS
from gradleak.cli.boundary import told
from gradleak.core import registry as module
from gradleak.core.registry import Registry
from gradleak.defenses import DEFENSES
from gradleak.defenses.noise import GaussianNoise
from gradleak.report.wording import threat_model


def things(**entries):
    return Registry("thing", {"path": "pathlib:Path", **entries}, base=object, group="nobody.has.this")


def test_it_imports_late_and_refuses_a_name_twice():
    registry = things()
    assert registry.get("path").__name__ == "Path"
    registry.register("mine", int)
    assert registry.names() == ["mine", "path"]
    with pytest.raises(GradleakError, match="registered already"):
        registry.register("mine", str)
    with pytest.raises(GradleakError, match="unknown thing 'pth'; did you mean 'path'"):
        registry.get("pth")
    with pytest.raises(GradleakError, match="cannot name a thing"):
        registry.register("a:b", str)


def test_register_decorates():
    registry = Registry("number", {}, base=int, group="nobody.has.this")

    @registry.register("mine")
    class Mine(int):
        pass

    assert registry.get("mine") is Mine
    assert registry.name_of(Mine) == "mine"
    for wrong in (str, 3):
        with pytest.raises(GradleakError, match="must be a subclass of int"):
            registry.register("other", wrong)


def test_objects_are_registered_by_the_name_they_have(tiny_bert):
    family = tiny_bert.adapter.family
    registry = Registry("family", {}, base=type(family), group="nobody.has.this", instances=True)
    registry.register(family)
    assert registry.get("bert") is family
    assert registry.name_of(family) == "bert"
    with pytest.raises(GradleakError, match="must be an instance of Family"):
        registry.register("class", type(family))


def test_every_entry_of_ours_loads_and_knows_its_name():
    for ours in (ATTACKS, IMAGE_ATTACKS):
        assert all(ours.get(name).name == name == ours.name_of(ours.get(name)) for name in ours.names())
    assert all(DEFENSES.name_of(DEFENSES.get(name)) == name for name in DEFENSES.names())
    assert str(GaussianNoise(sigma=0.5)) == "noise:sigma=0.5"


# --- installed packages -----------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch):
    """A registry of classes that finds these entry points."""

    def with_points(*values):
        points = [EntryPoint(name, value, "some.group") for name, value in values]
        monkeypatch.setattr(module, "entry_points", lambda group: points if group == "some.group" else [])
        return Registry("thing", {"path": "pathlib:Path"}, base=object, group="some.group")

    return with_points


def test_entry_points_are_found_and_named(installed):
    from fractions import Fraction

    registry = installed(("fraction", "fractions:Fraction"))
    assert registry.name_of(Fraction) == "fraction"
    assert "fraction" in registry
    assert registry.names() == ["fraction", "path"]
    assert registry.get("fraction") is Fraction


def test_a_broken_entry_point_is_an_error_when_it_is_asked_for(installed):
    registry = installed(("broken", "nowhere.at.all:Thing"), ("wrong", "math:pi"))
    assert registry.names() == ["broken", "path", "wrong"]
    with pytest.raises(GradleakError, match=r"nowhere.at.all:Thing of the package .* cannot be loaded"):
        registry.get("broken")
    with pytest.raises(GradleakError, match="must be a subclass of object"):
        registry.get("wrong")
    assert registry.get("path").__name__ == "Path"


def test_a_name_that_two_packages_take(installed):
    registry = installed(("a", "math:pi"), ("a", "math:e"), ("b", "fractions:Fraction"), ("b", "fractions:Fraction"))
    with pytest.raises(GradleakError, match=r"'a' is registered twice: by math:pi .* and math:e"):
        registry.get("a")
    assert registry.get("b").__name__ == "Fraction"


def test_a_name_of_ours_wins(installed):
    registry = installed(("path", "fractions:Fraction"))
    with pytest.warns(UserWarning, match="fractions:Fraction of the package . is not used: there is a thing 'path'"):
        assert registry.names() == ["path"]
    assert registry.get("path").__name__ == "Path"


# --- a user's own files -----------------------------------------------------------------------------

OWN = """
from gradleak.attacks.base import Attack, Reconstruction
from gradleak.defenses.base import Defense

class Nothing(Attack):
    summary = "reads nothing"
    def run(self, updates, model, context):
        return [Reconstruction(sentences=[]) for _ in updates]

Alias = type("Made", (Nothing,), {})

class Doubled(Defense):
    summary, reveals = "everything twice", "nothing"
    times: float = 2.0
    def apply(self, tensors, model, generator):
        return {name: self.times * tensor for name, tensor in tensors.items()}

class Neither:
    pass

class Unwritten(Attack):
    summary = "has no run"

class Words(Nothing):
    def run(self, updates, model, context):
        return ["words" for _ in updates]

class Fails(Nothing):
    def run(self, updates, model, context):
        return {}["Rosa"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_a_class_of_the_users_own(folder, tiny_bert):
    (folder / "of_my_own.py").write_text(OWN)
    plain = Client(tiny_bert).update(["The loan was refused."], [1])
    update = Client(tiny_bert, defenses=["of_my_own:Doubled:times=3"]).update(["The loan was refused."], [1])
    assert update.manifest.defenses == ("of_my_own:Doubled:times=3.0",)
    assert torch.allclose(update.tensors["classifier.bias"], 3 * plain.tensors["classifier.bias"])
    assert attack(update, tiny_bert, "of_my_own:Nothing")[0].sentences == []
    own = ATTACKS.get("of_my_own:Nothing")
    assert own.name == ATTACKS.name_of(own) == "of_my_own:Nothing"
    assert ATTACKS.name_of(ATTACKS.get("of_my_own:Alias")) == "of_my_own:Alias"
    assert "of_my_own:Nothing" in ATTACKS
    assert "of_my_own:Nothing" not in ATTACKS.names()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_things:Neither", "must be a subclass of Attack"),
        ("own_things:Doubled", "must be a subclass of Attack"),
        ("own_things:Nobody", "'own_things:Nobody' cannot be loaded"),
        ("nowhere:Attack", "there is no module 'nowhere'"),
        ("own_broken:Attack", "'own_broken:Attack' cannot be loaded: division by zero"),
        ("..x:y", "'..x:y' cannot be loaded"),
        (":", "':' cannot be loaded"),
        ("own_things:Unwritten", "is no attack yet: it lacks run"),
        ("own_things.py:Nothing", "as Python imports it, own_things:Nothing"),
        ("./own_things:Nothing", "as Python imports it, own_things:Nothing"),
        ("exact:30", "'30' is not of the form key=value"),
    ],
)
def test_what_is_no_attack_is_an_error_of_one_line(folder, name, message):
    (folder / "own_things.py").write_text(OWN)
    (folder / "own_broken.py").write_text("1 / 0")
    with pytest.raises(GradleakError, match=message):
        ATTACKS.get(name)


def test_an_attack_that_fails_is_told_by_its_place_and_is_no_bug_of_ours(folder, tiny_bert):
    (folder / "failing.py").write_text(OWN)
    update = Client(tiny_bert).update(["The loan was refused."], [1])
    with pytest.raises(GradleakError, match="'failing:Words' gave no list of Reconstruction"):
        attack(update, tiny_bert, "failing:Words")
    with pytest.raises(KeyError) as raised:
        attack(update, tiny_bert, "failing:Fails")
    error = raised.value
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # without this test, whose file is no part of gradleak either
    line, code = told(error)
    assert (code, "KeyError in failing.py, line " in line, "Rosa" in line) == (2, True, False)
    error.__traceback__ = None
    assert told(error)[1] == 70


def test_what_a_result_names_is_not_imported(folder):
    (folder / "planted.py").write_text("raise SystemExit('imported')")
    results = sample_results()
    scenario = results.scenario.model_copy(update={"defenses": ["planted:Defence:x=1", "noise:sigma=0.1"]})
    assert any("planted:Defence" in line for line in threat_model(scenario))
    assert "planted" not in sys.modules
