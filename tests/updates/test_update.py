"""The update folder: a faithful round trip, and nothing hostile gets through."""

import dataclasses
import json
import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tiny import TEXTS, tiny_model

from gradleak import Client, GradleakError, attack, load_update
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.manifest import Known, Manifest
from gradleak.updates.update import MANIFEST, TENSORS, Update


@pytest.fixture
def folder(tiny_bert, tmp_path):
    return Client(tiny_bert).update(TEXTS, [0, 1, 1]).save(tmp_path / "update")


def test_the_folder_of_a_run_names_what_lies_in_it(tiny_bert, folder):
    with pytest.raises(GradleakError, match=r"holds no manifest.json; .*update below it may be what you mean"):
        load_update(folder.parent, tiny_bert)
    (folder.parent / "adapter").mkdir()
    (folder.parent / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(GradleakError, match="`gradleak convert` makes updates"):
        load_update(folder.parent / "adapter", tiny_bert)


def raw_file(path, header: bytes, body: bytes = b""):
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)
    return path


def test_round_trip(tiny):
    labels = [0, 1, 1] if tiny.task == "classification" else None
    update = Client(tiny).update(TEXTS, labels)
    import tempfile

    again = load_update(update.save(tempfile.mkdtemp()), tiny)
    assert again.manifest == update.manifest
    assert again.tensors.keys() == update.tensors.keys()
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in update.tensors.items())


def test_files_are_private_and_hold_no_text(folder):
    for name in (MANIFEST, TENSORS):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    written = (folder / MANIFEST).read_text()
    assert not any(word in written.lower() for word in ("rosa", "ward", "loan", "flight"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(stranger=torch.zeros(2)), "which the model does not have"),
        (lambda t: t.update({"classifier.bias": torch.zeros(3)}), r"has shape \[3\]"),
        (lambda t: t["classifier.bias"].fill_(float("nan")), "NaN or infinite"),
        (lambda t: t["classifier.bias"].fill_(float("inf")), "NaN or infinite"),
        (lambda t: t.update({"classifier.bias": torch.zeros(2, dtype=torch.int64)}), "not a floating-point"),
        (lambda t: t.clear(), "holds no tensors"),
    ],
)
def test_tensors_that_do_not_fit(folder, tiny_bert, change, message):
    from safetensors.torch import load_file

    tensors = load_file(folder / TENSORS)
    change(tensors)
    save_file(tensors, folder / TENSORS)
    with pytest.raises(GradleakError, match=message):
        load_update(folder, tiny_bert)


def test_an_update_in_memory_that_diverged_is_refused_too(tiny_bert):
    update = Client(tiny_bert).update(["Rosa moved to ward six."], [1])
    broken = dataclasses.replace(update, tensors={name: t * math.nan for name, t in update.tensors.items()})
    with pytest.raises(GradleakError, match="NaN or infinite"):
        attack(broken, tiny_bert, "bag")


def test_no_updates_have_no_reconstructions(tiny_bert):
    assert attack([], tiny_bert, "auto") == []


def test_truncated_and_foreign_files(folder, tiny_bert):
    path = folder / TENSORS
    whole = path.read_bytes()
    for keep in (0, 4, 8, 50, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(GradleakError, match=r"cut short|not a safetensors"):
            load_update(folder, tiny_bert)
    path.write_bytes(b"PK\x03\x04" + b"\x00" * 200)
    with pytest.raises(GradleakError):
        load_update(folder, tiny_bert)


def test_header_that_claims_200_megabytes(folder, tiny_bert):
    (folder / TENSORS).write_bytes(struct.pack("<Q", 200 << 20) + b"{}")
    with pytest.raises(GradleakError, match="claims 209,715,200 bytes"):
        load_update(folder, tiny_bert)


def test_300_000_tensors(folder, tiny_bert):
    empty = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(300_000)}
    raw_file(folder / TENSORS, json.dumps(empty, separators=(",", ":")).encode())
    with pytest.raises(GradleakError, match="limit"):
        load_update(folder, tiny_bert)
    few = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(60_000)}
    raw_file(folder / TENSORS, json.dumps(few, separators=(",", ":")).encode())
    with pytest.raises(GradleakError, match="60,000 tensors"):
        load_update(folder, tiny_bert)


@pytest.fixture(scope="module")
def smallest():
    return tiny_model("bert", "classification", layers=1, width=4)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_flipped_file_is_refused_or_still_fits(tmp_path_factory, smallest, data):
    """Damage anywhere in the file: either a clear error, or tensors of the right shape with finite values."""
    place = tmp_path_factory.getbasetemp() / "flipped"
    if not (place / TENSORS).exists():
        Client(smallest).update(TEXTS[:1], [1]).save(place)
        (place / "whole").write_bytes((place / TENSORS).read_bytes())
    whole = bytearray((place / "whole").read_bytes())
    header_end = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, header_end + 64))] = data.draw(st.integers(0, 255))
    (place / TENSORS).write_bytes(bytes(whole))
    try:
        update = load_update(place, smallest)
    except GradleakError as error:
        assert "\n" not in str(error)
    else:
        shapes = {name: p.shape for name, p in smallest.parameters().items()}
        assert all(t.shape == shapes[name] and t.isfinite().all() for name, t in update.tensors.items())


def test_manifest_keys_are_checked(folder, tiny_bert):
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "truth": ["secret"]}))
    with pytest.raises(GradleakError, match="truth"):
        load_update(folder, tiny_bert)
    (folder / MANIFEST).unlink()
    with pytest.raises(GradleakError, match=r"holds no manifest\.json"):
        load_update(folder, tiny_bert)


def test_other_weights_tasks_and_families_are_refused(folder, tiny_bert):
    with pytest.raises(GradleakError, match="other weights"):
        load_update(folder, tiny_model("bert", "classification", seed=1))
    update = load_update(folder)
    gpt2 = tiny_model("gpt2", "causal-lm")
    with pytest.raises(GradleakError, match="loaded for causal-lm"):
        update.check(gpt2)
    with pytest.raises(GradleakError, match="is a roberta model"):
        update.check(tiny_model("roberta", "classification"))


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (Known(batch_size=2, labels=(0,)), "do not agree"),
        (Known(labels=(7,)), "label out of range"),
        (Known(lengths=(2,)), "length outside"),
        (Known(lengths=(65,)), "length outside"),
    ],
)
def test_what_cannot_be_known_is_refused(tiny_bert, known, message):
    update = Client(tiny_bert).update(TEXTS[:1], [0])
    forged = Update(update.tensors, Manifest(task="classification", family="bert", known=known))
    with pytest.raises(GradleakError, match=message):
        forged.check(tiny_bert)


@pytest.mark.parametrize(
    ("rule", "size", "clients", "steps"),
    [
        ("fedavg:epochs=2,batch=1", 6, 3, 4),
        ("fedavg:epochs=2,batch=1", 6, 1, 12),
        ("fedavg:epochs=2,batch=4", 7, 2, 2),
        ("fedavg:epochs=2,batch=4", None, 3, 2),
        ("fedsgd", 6, 3, 1),
    ],
)
def test_the_steps_of_an_aggregate_are_those_of_each_client(rule, size, clients, steps):
    manifest = Manifest(
        task="classification",
        family="bert",
        client=ClientRule.parse(rule),
        known=Known(batch_size=size),
        clients=clients,
    )
    assert Update({}, manifest).local_steps == steps
