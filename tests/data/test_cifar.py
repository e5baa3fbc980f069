"""CIFAR-10 as an asset: sheets become images with their classes, once, and `cifar10` names them."""

import hashlib

import numpy as np
import pytest
from blobs import blobs, write_npz
from sheets import filtered_png, small_sheets

from gradleak import GradleakError, read_pictures
from gradleak.audits.images import IMAGES
from gradleak.audits.spec import AuditSpec
from gradleak.core import assets
from gradleak.core.asset_list import Asset, AssetFile
from gradleak.core.progress import Progress
from gradleak.data import cifar
from gradleak.data.corpora import image_file


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A small CIFAR-10 as the asset; nothing is fetched, `put` lays other files in the cache."""
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def put(files):
        place = assets.cache_folder() / "assets" / "cifar10"
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (place / name).write_bytes(content)
        listed = tuple(AssetFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items())
        monkeypatch.setitem(assets.ASSETS, "cifar10", Asset("cifar10", "", "", listed, ()))

    return put


class Heard(Progress):
    def __init__(self):
        self.lines = []

    def begin(self, what, total, unit=""):
        self.lines.append((what, total, unit))

    def advance(self, done, **_):
        self.lines.append(done)


def test_sheets_become_images_once(shelf, monkeypatch):
    files, images, classes = small_sheets()
    shelf(files)
    heard = Heard()
    data = IMAGES.read(AuditSpec(model="lenet", data="cifar10"), heard)
    assert heard.lines == [("decoding the sheets of CIFAR-10", 6, "sheets"), 1, 2, 3, 4, 5, 6]
    for found, kind in ((data.private, "test"), (data.auxiliary, "train")):
        assert np.array_equal(found.pixels, images[kind].transpose(0, 3, 1, 2))
        assert list(found.labels) == classes[kind]
    place = image_file("cifar10")
    monkeypatch.setattr(cifar, "pull", None)
    assert image_file("cifar10") == place  # neither fetched nor decoded again
    private, _ = read_pictures(place)
    assert private.digest == data.private.digest


def test_other_sheets_are_decoded_anew(shelf):
    shelf(small_sheets()[0])
    before = image_file("cifar10")
    shelf(small_sheets(seed=1)[0])
    assert image_file("cifar10") != before


def test_a_file_or_a_folder_comes_first(shelf, tmp_path):
    write_npz(tmp_path / "cifar10.npz", blobs(2))
    assert image_file("cifar10@.").resolve() == tmp_path / "cifar10.npz"
    (tmp_path / "cifar10").write_bytes((tmp_path / "cifar10.npz").read_bytes())
    private, _ = read_pictures(image_file("cifar10"))
    assert len(private) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test_batch.png", b"no picture", "test_batch.png is not a PNG"),
        ("test_lables.json", b"[1]", "does not hold a class from 0 to 9 for each of 2 images"),
        ("test_lables.json", b"[1, 10]", "does not hold a class"),
        ("test_lables.json", b"[1, true]", "does not hold a class"),
        ("test_lables.json", b'{"a": 1}', "does not hold a class"),
        ("test_lables.json", b"[", "is not a JSON file"),
    ],
)
def test_files_that_are_no_cifar10(shelf, name, content, message):
    shelf({**small_sheets()[0], name: content})
    with pytest.raises(GradleakError, match=message):
        image_file("cifar10")
    assert not list(assets.cache_folder().rglob("*.npz"))


def test_a_picture_of_another_shape(shelf):
    files, _, _ = small_sheets()
    shelf({**files, "data_batch_3.png": filtered_png(np.zeros((2, 7, 3), np.uint8), [0, 0])})
    with pytest.raises(GradleakError, match="not a sheet of CIFAR-10"):
        image_file("cifar10")
