"""A private image on its way: client, update, defences, audit, report, grid, and the commands around them."""

import io

import numpy as np
import pytest
import torch
from blobs import SMALL, blobs, small_model, write_npz
from torch import nn

from gradleak import (
    FrontierSpec,
    GradleakError,
    ImageClient,
    RunOptions,
    SweepSpec,
    audit,
    frontier,
    leak_map,
    load_model,
    load_recipe,
    load_update,
    reproduce,
    sweep,
    write_report,
)  # fmt: skip
from gradleak.attacks import IMAGE_ATTACKS
from gradleak.attacks.inversion.defended import defend
from gradleak.audits.redact import redact
from gradleak.audits.results import load_results
from gradleak.audits.spec import AuditSpec
from gradleak.cli import main
from gradleak.core.budget import Budget
from gradleak.core.console import SafeConsole
from gradleak.data.pictures import Pictures
from gradleak.defenses import parse_defenses
from gradleak.experiments.recipes.table import markdown
from gradleak.models.image_gradients import batch_gradients
from gradleak.report.build import render
from gradleak.report.grid import write_grid
from gradleak.report.terminal import print_results
from gradleak.verdict.gather import Gathered

INLINE = RunOptions(executor="inline")
QUICK = {"ig": {"steps": 2}, "lti": {"steps": 2, "hidden": 8}}


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / "cache"))
    return write_npz(tmp_path / "blobs.npz", blobs(6), blobs(40, seed=1))


def test_lenet_is_the_same_for_a_seed():
    assert load_model("lenet").fingerprint == load_model("lenet:seed=0").fingerprint
    assert load_model("lenet").fingerprint != load_model("lenet:seed=1").fingerprint
    weights = torch.cat([p.flatten() for p in load_model("lenet").parameters().values()])
    assert len(weights) == 15826
    assert 0.49 < float(weights.detach().abs().max()) <= 0.5


def test_models_that_cannot_be_audited_are_refused():
    for source, message in (
        ("lenet:sead=3", "did you mean 'seed'"),
        (nn.Sequential(nn.Flatten()), "no linear layer"),
        (nn.Sequential(nn.Flatten(), nn.Linear(5, 2)), "does not take images"),
        (nn.Linear(8, 3), "not class logits"),
    ):
        with pytest.raises(GradleakError, match=message):
            load_model(source, **({} if isinstance(source, str) else {"shape": (3, 8, 8)}))
    own = load_model(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), shape=(3, 8, 8), name="mine")
    assert (own.num_labels, own.family, own.head) == (5, "sequential", "1")


def test_gradients_together_are_those_a_client_sends(model):
    pictures = blobs(3)
    rows = batch_gradients(
        model, list(model.parameters()), pictures.values()[:, None], torch.tensor(pictures.labels)[:, None]
    )
    for number, row in enumerate(rows):
        alone = ImageClient(model).update(pictures.some([number])).tensors
        assert torch.allclose(row, torch.cat([t.flatten() for t in alone.values()]), atol=1e-6)


def test_a_batch_sends_the_mean_gradient(model):
    pictures = blobs(2)
    both, *single = (ImageClient(model).update(pictures.some(i)).tensors for i in ([0, 1], [0], [1]))
    for name, tensor in both.items():
        assert torch.allclose(tensor, (single[0][name] + single[1][name]) / 2, atol=1e-6)


@pytest.mark.parametrize("spec", ["sign", "prune:ratio=0.9", "quantize:bits=4"])
def test_defences_in_a_batch_are_those_of_the_client(model, spec):
    plain = ImageClient(model).update(blobs(1)).tensors
    sent = ImageClient(model, defenses=[spec]).update(blobs(1)).tensors
    rows = defend({n: t[None] for n, t in plain.items()}, parse_defenses([spec]), model, torch.Generator())
    assert all(torch.equal(rows[name][0], tensor) for name, tensor in sent.items())


def test_local_steps_and_clipping_work_on_images_too(model):
    pictures = blobs(2)
    moved = ImageClient(model, client="fedavg:batch=2,lr=0.01").update(pictures).tensors
    plain = ImageClient(model).update(pictures).tensors
    assert all(torch.allclose(moved[name], 0.01 * plain[name], atol=1e-6) for name in plain)
    clipped = ImageClient(model, defenses=["dpsgd:noise=0,clip=0.5"]).update(pictures.some([0])).tensors
    assert float(torch.cat([t.flatten() for t in clipped.values()]).norm()) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "pictures", "message"),
    [
        ({"defenses": ["frozen"]}, blobs(1), "frozen:parts=embeddings is for text models"),
        ({"known": ("lengths",)}, blobs(1), "unknown value 'lengths'; of images there are"),
        ({}, blobs(1, side=20), "the images are 3 × 20 × 20"),
        ({}, blobs(0), "at least one image"),
    ],
)
def test_clients_refuse(model, settings, pictures, message):
    with pytest.raises(GradleakError, match=message):
        ImageClient(model, **settings).update(pictures)


def test_updates_are_written_and_read(model, tmp_path):
    place = ImageClient(model, known=("batch_size", "labels")).update(blobs(2)).save(tmp_path / "update")
    assert load_update(place, model).known.labels == blobs(2).labels
    with pytest.raises(GradleakError, match="other weights"):
        load_update(place, load_model(SMALL + ",seed=4"))


@pytest.mark.parametrize("attack", ["ig", "lti"])
def test_an_audit_from_data_to_page(data, tmp_path, attack):
    results = audit(SMALL, data=data, attack=attack, options=QUICK[attack], trials=3, defenses=["sign"])
    assert results.scenario.task == "image-classification"
    assert (results.scenario.auxiliary, results.scenario.data_rows) == (40, 6)
    assert set(results.summary) == set(results.control) == {"mse", "psnr", "ssim", "close_images"}
    mean = blobs(40, seed=1).values().mean(dim=0)
    wanted = [float((blobs(6).values()[i] - mean).square().mean()) for i in range(6)]
    assert all(min(abs(t.control_scores["mse"] - w) for w in wanted) < 1e-4 for t in results.trials)
    results.save(tmp_path)
    assert load_results(tmp_path) == results
    page = render(Gathered(tmp_path, [results]))
    for trial in results.trials:
        assert trial.truth[0] in page
        assert trial.reconstruction.images[0] in page
    assert "images of the same kind" in page
    assert "its tokenizer" not in page
    stream = io.StringIO()
    print_results(results, SafeConsole(file=stream, width=120))
    assert "MSE" in stream.getvalue()
    assert "image/png" not in render(Gathered(tmp_path, [redact(results)])) + redact(results).model_dump_json()


def test_private_images_are_never_auxiliary_ones(model, tmp_path):
    """Given in Python too: an attacker who holds the image need not read it off an update."""
    private = blobs(6)
    both = Pictures(np.concatenate([private.pixels, blobs(4, seed=5).pixels]), private.labels + (0,) * 4)
    results = audit(model, data=(private, both), attack="control", trials=2)
    assert results.scenario.auxiliary == 4
    results = audit(model, data=(private, private), attack="control", trials=2)
    assert results.scenario.auxiliary is None
    assert "a plain grey image" in render(Gathered(tmp_path, [results]))


def test_more_trials_keep_the_first_ones(data):
    few, many = (audit(SMALL, data=data, attack="control", trials=n, seed=3) for n in (2, 4))
    assert [t.truth for t in few.trials] == [t.truth for t in many.trials[:2]]
    with pytest.raises(GradleakError, match="7 trials of 1 images need 7; the data has 6"):
        audit(SMALL, data=data, attack="control", trials=7)


def test_a_grid_joins_audits_of_the_same_images(data, tmp_path):
    folders = []
    for number, (attack, chain) in enumerate((("ig", []), ("control", ["sign"]), ("ig", ["sign"]))):
        results = audit(SMALL, data=data, attack=attack, options=QUICK.get(attack, {}), trials=2, defenses=chain)
        (tmp_path / str(number)).mkdir()
        results.save(tmp_path / str(number))
        folders.append(tmp_path / str(number))
    page, drawing = write_grid(folders, tmp_path, images=2)
    text = drawing.read_text()
    assert text.count("<image") == 2 * 4
    assert text.index("no defence") < text.index("sign") < text.index("control")
    assert text.strip() in page.read_text()
    other = audit(SMALL, data=data, attack="control", trials=2, seed=9)
    (tmp_path / "other").mkdir()
    other.save(tmp_path / "other")
    with pytest.raises(GradleakError, match="not of the same images"):
        write_grid([*folders, tmp_path / "other"], tmp_path)


def test_a_grid_of_an_experiment(data, tmp_path):
    spec = SweepSpec(models=[SMALL], data=[str(data)], attacks=["control"], defenses=["none", "sign"], trials=2)
    sweep(spec, tmp_path / "sweep", options=INLINE)
    _, drawing = write_grid([tmp_path / "sweep"], tmp_path, images=2)
    assert drawing.read_text().count("<image") == 2 * 3


def test_the_commands(data, tmp_path, monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr("sys.argv", ["gradleak", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, capsys.readouterr()

    model = ("--model", SMALL, "--data", data)
    assert run("capture", *model, "--out", tmp_path / "u")[0] == 0
    assert run("attack", tmp_path / "u", *model, "--attack", "ig", "-o", "steps=2", "--out", tmp_path / "r")[0] == 0
    code, said = run("score", tmp_path / "r", tmp_path / "u.truth.json", "--model", SMALL)
    assert code == 0
    assert "SSIM" in said.out
    for words, message in (
        (("audit", *model, "--max-tokens", 20), "'max_tokens' means nothing for images"),
        (("audit", *model, "--attack", "lamp-cos"), "unknown attack on images 'lamp-cos'"),
        (("audit", "--model", "minilm", "--metrics", "lpips"), "compares images, not text"),
        (("attack", tmp_path / "u", "--model", SMALL, "--attack", "gi-gip"), "needs auxiliary images"),
    ):
        code, said = run(*words)
        assert code == 2
        assert message in said.err


def test_a_recipe_of_images(data, tmp_path):
    lines = [
        "title: t", "source: s", f"model: '{SMALL}'", "trials: 2", "metrics: [mse, ssim]", "cells:",
        "  - {name: one, data: cifar10, attack: ig, options: {steps: 2}, paper: {LeNet: [0.1]}}",
    ]  # fmt: skip
    (tmp_path / "small.yaml").write_text("\n".join(lines))
    data.rename(tmp_path / "cifar10.npz")
    recipe = load_recipe(str(tmp_path / "small.yaml"))
    settings = {"data_dir": tmp_path, "options": INLINE}
    done = reproduce(recipe, tmp_path / "out", **settings)
    assert done.lines == reproduce(recipe, tmp_path / "out", **settings, budget=Budget(seconds=0)).lines  # kept
    assert "| MSE | SSIM |" in markdown(done)
    assert f"| one | {done.lines[0][1].summary['mse'].mean:.4f} [" in markdown(done)


def test_what_a_spec_leaves_open(data):
    spec = AuditSpec(model=SMALL, data=str(data), options=QUICK["lti"], trials=1)
    assert audit(spec).attack.name == "lti"
    assert set(IMAGE_ATTACKS.names()) == {"control", "exact", "gi-gip", "ig", "lti"}
    assert np.isfinite(blobs(1).values().numpy()).all()


# --- experiments: the same ones as of text ----------------------------------------------------------


def test_a_sweep_of_images(data, tmp_path):
    spec = SweepSpec(models=[SMALL], data=[str(data)], defenses=["none", "sign"], attacks=["control"], trials=2)
    result = sweep(spec, tmp_path / "sweep", options=INLINE)
    assert result.statuses == {"completed": 2}
    assert {"mse_mean", "psnr_mean", "control_psnr_low"} <= set(result.lines[0])
    assert not any(name.startswith("rouge") for name in result.lines[0])
    assert "image/png" in write_report(tmp_path / "sweep").read_text()


def test_a_map_of_images(data, tmp_path):
    """The layers are those with parameters, each with its weight and its bias."""
    spec = AuditSpec(
        model=SMALL, data=str(data), attack="ig", options=QUICK["ig"], trials=2, known="batch_size,labels"
    )
    result = leak_map(spec, tmp_path, options=INLINE)
    assert (result.metric, result.layers, result.columns) == ("psnr", 4, ["weight", "bias", "whole layer"])
    assert result.status == "completed"
    assert result.all_layers is None
    assert result.all.leak.mean == audit(spec).summary["psnr"].mean
    assert all(cell.values for cell in result.cells)


def test_a_frontier_of_images(data, tmp_path):
    rounds = {"rounds": 1, "clients": 1, "batch_size": 2, "seeds": 1, "test_rows": 2}
    spec = FrontierSpec(model=SMALL, data=str(data), attacks=["control"], defenses=["sign"], trials=2, utility=rounds)
    result = frontier(spec, tmp_path, options=INLINE)
    assert (result.measure, result.metric, result.status) == ("psnr", "accuracy", "completed")
    assert [point.label for point in result.points] == ["none", "sign"]
    assert result.points[1].utility is not None
