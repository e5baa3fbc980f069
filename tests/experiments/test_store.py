"""The folder of a sweep when processes die, disks fill up and others are at work in it."""

import os
import resource
import signal
import sys
import tempfile

import pytest

from gradleak import GradleakError
from gradleak.audits.spec import AuditSpec
from gradleak.core.files import output_folder
from gradleak.experiments.runner.cell import Cell, Hashes, Limits, Seeds
from gradleak.experiments.runner.jobs import AuditJob
from gradleak.experiments.runner.running import ended
from gradleak.experiments.runner.store import CELLS, CLAIMS, LOG, Store

CELL = Cell(
    id="bag-b1-0123456789abcde0",
    job=AuditJob(spec=AuditSpec(attack="bag")),
    hashes=Hashes(model="weights", data="texts", code="code"),
    seeds=Seeds(data=0, attack=0),
)
DONE = ended(CELL, "completed", Limits(), seconds=1.0)


def in_child(work) -> str | None:
    """What a user was told by a child process that does this work; None if there was no error."""
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            work()
        except GradleakError as error:
            os.write(write, str(error).encode())
        except BaseException as error:
            os.write(write, f"not for users: {error!r}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as messages:
        message = messages.read()
    os.waitpid(child, 0)
    return message or None


def as_somebody_else(folder):
    """From now on this process has no rights on what belongs to others: nothing is closed to root."""
    if os.geteuid() == 0:
        for parent in folder.parents:
            if parent.is_relative_to(tempfile.gettempdir()):
                parent.chmod(parent.stat().st_mode | 0o055)
        os.setuid(65534)


def test_a_cell_is_kept_whole(tmp_path):
    with Store(tmp_path / "new") as store:
        assert store.claim(CELL.id)
        store.begin(CELL.id, 1)
        store.keep(DONE)
        assert list(store.names()) == [CELL.id]
        assert store.head(CELL.id).status == "completed"
        assert store.stamp(CELL.id) == store.names()[CELL.id]
        assert len((tmp_path / "new" / LOG).read_text().splitlines()) == 2
    assert oct((tmp_path / "new" / CELLS / f"{CELL.id}.json").stat().st_mode & 0o777) == "0o600"


def test_a_claim_ends_with_its_process(tmp_path):
    """Not only when it gives it back: when it is killed, too."""
    read, write = os.pipe()
    owner = os.fork()
    if not owner:
        with Store(tmp_path) as store:
            os.write(write, b"y" if store.claim(CELL.id) else b"n")
            signal.pause()
    assert os.read(read, 1) == b"y"
    with Store(tmp_path) as store:
        assert not store.claim(CELL.id)
        assert store.claim("another-0123456789abcdef")
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        assert store.claim(CELL.id)
        store.release(CELL.id)


def test_one_process_has_a_folder_once(tmp_path):
    with Store(tmp_path), pytest.raises(GradleakError, match="already running"), Store(tmp_path):
        pass
    with Store(tmp_path):
        pass


def test_what_a_killed_write_left_is_no_cell_and_goes_away(tmp_path):
    with Store(tmp_path) as store:
        left = tmp_path / CELLS / f".{CELL.id}.json.x7f3"
        left.write_text('{"half')
        assert store.names() == {}
        assert store.claim(CELL.id)
        assert not left.exists()


def test_a_file_that_is_no_cell_is_named(tmp_path):
    with Store(tmp_path) as store:
        (tmp_path / CELLS / f"{CELL.id}.json").write_text("{}")
        with pytest.raises(GradleakError, match=CELL.id):
            store.head(CELL.id)


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path):
    """The limit on a file's size stands for the disk: both end a write in its middle."""
    other = DONE.model_copy(update={"id": "other-0123456789abcdef", "error": "x" * 20_000})
    with Store(tmp_path) as store:
        store.keep(DONE)

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        with Store(tmp_path) as store:
            store.keep(other)

    assert in_child(fill) == f"cannot write {tmp_path / CELLS / other.id}.json: File too large"
    with Store(tmp_path) as store:
        assert list(store.names()) == [CELL.id]
        assert store.read(CELL.id, type(DONE)) == DONE
    assert [path.name for path in (tmp_path / CELLS).iterdir()] == [f"{CELL.id}.json"]


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
def test_a_full_disk_under_the_log(tmp_path):
    (tmp_path / LOG).symlink_to("/dev/full")
    with Store(tmp_path) as store, pytest.raises(GradleakError, match="No space left"):
        store.keep(DONE)
    assert (tmp_path / CELLS / f"{CELL.id}.json").is_file()


def test_a_folder_that_cannot_be_written(tmp_path):
    with Store(tmp_path) as store:
        store.keep(DONE)
    for place in (tmp_path, tmp_path / CELLS):
        place.chmod(0o555)

    def reopen():
        as_somebody_else(tmp_path)
        with Store(tmp_path) as store:
            store.keep(DONE.model_copy(update={"id": "other-0123456789abcdef"}))

    assert in_child(reopen) == f"cannot write to the folder {tmp_path / CELLS}: Permission denied"
    for place in (tmp_path, tmp_path / CELLS):
        place.chmod(0o755)
    with Store(tmp_path) as store:
        assert list(store.names()) == [CELL.id]


def test_what_cannot_be_read_is_not_taken_for_missing_or_broken(tmp_path):
    with Store(tmp_path) as store:
        store.keep(DONE)
    file = tmp_path / CELLS / f"{CELL.id}.json"
    tmp_path.chmod(0o755)
    (tmp_path / CELLS).chmod(0o755)
    file.chmod(0)

    def read():
        as_somebody_else(tmp_path)
        Store(tmp_path).head(CELL.id)

    assert in_child(read) == f"cannot read {file}: Permission denied"
    (tmp_path / CELLS).chmod(0)

    def look():
        as_somebody_else(tmp_path)
        Store(tmp_path).names()

    assert in_child(look) == f"cannot read the folder {tmp_path / CELLS}: Permission denied"
    (tmp_path / CELLS).chmod(0o755)


@pytest.mark.parametrize("name", [CLAIMS, LOG])
def test_a_folder_in_the_place_of_a_file_is_named(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(GradleakError, match=f"{name}: Is a directory"), Store(tmp_path):
        pass


@pytest.mark.parametrize(
    ("name", "reason"), [("file", "it is there and is no folder"), ("x" * 300, "too long"), ("a\0b", "null")]
)
def test_a_folder_that_cannot_be(tmp_path, name, reason):
    (tmp_path / "file").write_text("")
    with pytest.raises(GradleakError, match=f"cannot write to the folder .*{reason}"), output_folder(tmp_path / name):
        pass
