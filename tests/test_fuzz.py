"""Whatever is in a file, it is read or refused in one clear line: no crash, no hang, and nothing is written.

`pytest tests/test_fuzz.py --hypothesis-profile thorough -s` tries thousands of files of each kind and prints counts.
"""

from __future__ import annotations

import io
import json
import signal
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from tiny import TEXTS, tiny_model

from gradleak import Client, GradleakError
from gradleak.audits.spec import AuditSpec, load_spec
from gradleak.core.identity import readable
from gradleak.data.pictures import read_pictures
from gradleak.data.texts import read_data
from gradleak.experiments.frontier.spec import load_frontier
from gradleak.experiments.sweep.spec import SweepSpec, load_sweep
from gradleak.updates.update import MANIFEST, TENSORS, load_update

COUNTS: Counter[str] = Counter()
# Far longer than any of these takes; what is still running then hangs.
HANG_SECONDS = 60

AUDIT = """\
model: minilm
data: builtin
attack: lamp-cos
options: {steps: 5, prior: none}
batch_size: 2
defenses: ["noise:sigma=0.01"]
client: fedavg:epochs=2,lr=1e-4
known: batch_size, labels
"""
SWEEP = """\
models: [minilm, {model: ./mine, task: lm}]
data: [{data: a.csv, text_column: 2}]
defenses: [none, [frozen, "noise:sigma=0.01"]]
attacks: [auto, {name: tag, options: {steps: 5}}]
observe: [all, "layer:1-2.query"]
seeds: 3
limits: {time: 5m, memory: 4GB, steps: 10}
"""
TABLES = {
    ".txt": "Rosa moved to ward six.\nThe loan was refused.\n",
    ".csv": 'text,label\n"well, yes",1\nno,0\n',
    ".tsv": "text\tlabel\nyes\t1\nno\t-1\n",
    ".jsonl": '{"text": "yes", "label": 1}\n{"text": "n\\u00f6", "label": "A"}\n',
}


@pytest.fixture(scope="module", autouse=True)
def counted():
    yield
    for kind in sorted({name.split(":")[0] for name in COUNTS}):
        print(f"\n{kind}: {COUNTS[kind + ':read']} read, {COUNTS[kind + ':refused']} refused", end="")


@contextmanager
def refused_or_read(kind: str):
    """Nothing but a clear refusal may come out, in time."""

    def hangs(*_):
        raise AssertionError(f"{kind}: still running after {HANG_SECONDS} s")

    previous = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(HANG_SECONDS)
    try:
        yield
        COUNTS[f"{kind}:read"] += 1
    except GradleakError as error:
        assert "\n" not in str(error)
        assert 0 < len(str(error)) < 2000
        COUNTS[f"{kind}:refused"] += 1
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@st.composite
def mangled(draw, whole: bytes):
    """A good file with pieces cut out, to_float64, overwritten or put in."""
    found = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(found)))
        until = draw(st.integers(at, min(len(found), at + 20)))
        piece = draw(st.one_of(st.binary(max_size=6), st.sampled_from(NASTY), st.just(bytes(found[at:until]) * 2)))
        found[at:until] = piece
    return bytes(found)


NASTY = [
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", "²".encode(), "٣".encode(), b"--5", b"9" * 5000, b"1e999", b".nan",
    b"-.inf", b"2024-99-99", b"!!int ''", b"!!timestamp x", b"!!python/object:os.system x", b"&a [*a]", b"*a",
    b"<<: {}",
    b"[" * 400, b"{" * 400, b'{"a":' * 400, b"\\ud800", b'"', b"'", b"\r", b"\t", b"\x85", b"../../x", b"a" * 300,
    b": ", b"- ", b"null", b"~", b"yes", b"0x1F", b"1:30:00", b"regex:((((", b"regex:a{99999999999}",
]  # fmt: skip

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


def tables(kind):
    """Random settings under the right names, a good deal of them of the right type."""
    names = st.sampled_from(sorted(kind.model_fields))
    return st.dictionaries(names, VALUES, max_size=4).map(lambda table: yaml.safe_dump(table).encode())


def texts(whole: str, kind):
    return st.one_of(mangled(whole.encode()), tables(kind), st.binary(max_size=80), st.text(max_size=80).map(_bytes))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogatepass")


@pytest.fixture
def place(tmp_path_factory, monkeypatch) -> Path:
    """An empty folder that is also the working folder: what is written by mistake would show in it."""
    folder = tmp_path_factory.mktemp("fuzz")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "whole", "form", "load"),
    [
        ("audit.yaml", AUDIT, AuditSpec, lambda path: load_spec(path, {})),
        ("sweep.yaml", SWEEP, SweepSpec, load_sweep),
        ("frontier.yaml", SWEEP, SweepSpec, lambda path: load_frontier(path, {})),
    ],
)
def test_configurations(place, kind, whole, form, load):
    file = place / kind

    @given(texts(whole, form))
    def check(content):
        file.write_bytes(content)
        with refused_or_read(kind):
            load(file)
        assert [path.name for path in place.iterdir()] == [kind]

    check()


@pytest.mark.parametrize("suffix", TABLES)
def test_data_files(place, suffix):
    file = place / f"data{suffix}"
    columns = st.sampled_from([None, "text", "1", "²", "9" * 5000])

    @given(mangled(TABLES[suffix].encode()) | st.binary(max_size=80), columns, columns)
    def check(content, text_column, label_column):
        file.write_bytes(content)
        with refused_or_read(suffix):
            rows = read_data(file, text_column, label_column)
            assert rows
            assert all(row.text.strip() and row.text.encode() for row in rows)
        assert [path.name for path in place.iterdir()] == [file.name]

    check()


def test_image_files(place):
    file, good = place / "images.npz", io.BytesIO()
    pixels = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.savez(good, x_test=pixels, y_test=np.array([0, 1]), x_train=255 - pixels, y_train=np.array([1, 0]))

    @given(mangled(good.getvalue()) | arrays() | st.binary(max_size=80))
    def check(content):
        file.write_bytes(content)
        with refused_or_read(".npz"):
            private, _ = read_pictures(file)
            assert len(private) == len(private.labels) > 0
        assert [path.name for path in place.iterdir()] == [file.name]

    check()


@st.composite
def arrays(draw):
    """Archives of arrays under the right names, of any type and shape; some with objects in them."""
    found, file = {}, io.BytesIO()
    for name in draw(st.lists(st.sampled_from(["x_test", "y_test", "x_train", "y_train", "z"]), unique=True)):
        shape = draw(st.lists(st.integers(0, 3), max_size=5))
        kind = draw(st.sampled_from(["u1", "i8", "f4", "U3", "O", "?", "c8"]))
        found[name] = np.zeros(shape, dtype=kind)
    np.savez(file, **found)
    return file.getvalue()


@pytest.mark.parametrize("name", ["x" * 300, "a/" * 3000, "nul\0.csv"])
def test_names_that_no_file_has(name):
    with refused_or_read("names"):
        read_data(name)
    with refused_or_read("names"):
        load_spec(Path(name), {})


HEADERS = st.dictionaries(
    st.text(max_size=8) | st.sampled_from(["__metadata__", "../../x", "classifier.bias"]),
    VALUES
    | st.fixed_dictionaries(
        {},
        optional={
            "dtype": st.sampled_from(["F32", "F16", "I64", "BOOL", "F8", None, [], {}]),
            "shape": st.lists(st.integers(-1, 5) | st.just(1 << 40), max_size=9),
            "data_offsets": st.lists(st.integers(-1, 64), max_size=3),
        },
    ),
    max_size=3,
)


def as_file(header: object, body: bytes) -> bytes:
    text = json.dumps(header, default=str).encode()
    return len(text).to_bytes(8, "little") + text + body


def test_update_folders(place):
    model = tiny_model("bert", "classification", layers=1, width=4)
    Client(model).update(TEXTS[:1], [1]).save(place)
    manifest = (place / MANIFEST).read_bytes()
    small = save({"a": torch.ones(2, 2), "b": torch.zeros(3)})
    tensors = st.one_of(
        mangled(small), st.builds(as_file, HEADERS | VALUES, st.binary(max_size=40)), st.binary(max_size=60)
    )
    manifests = st.one_of(
        mangled(manifest), st.binary(max_size=40), VALUES.map(lambda v: json.dumps(v, default=str).encode())
    )

    @given(st.none() | tensors, st.none() | manifests, st.booleans())
    def check(tensors, text, fitting):
        (place / TENSORS).write_bytes(small if tensors is None else tensors)
        (place / MANIFEST).write_bytes(manifest if text is None else text)
        with refused_or_read("update folder"):
            update = load_update(place, model if fitting else None)
            assert all(tensor.isfinite().all() for tensor in update.tensors.values())
        assert sorted(path.name for path in place.iterdir()) == sorted([TENSORS, MANIFEST])

    check()


@given(st.text())
def test_no_name_leaves_its_folder(text):
    """Cells are files named after settings; a setting must not become a path."""
    assert set(readable(text)) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert len(readable(text)) <= 80
