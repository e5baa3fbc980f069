"""Files that appear whole or not at all."""

import pytest

from gradleak import GradleakError
from gradleak.core.files import output_folder, replacing, write_text


def test_a_failed_write_leaves_the_old_file(tmp_path):
    target = write_text(tmp_path / "a", "old")

    def fail():
        with replacing(target) as scratch:
            scratch.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_output_folder_is_proved_first(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(GradleakError, match="cannot write to the folder"), output_folder(tmp_path / "file" / "below"):
        pass
    with pytest.raises(RuntimeError), output_folder(tmp_path / "new" / "deep"):
        raise RuntimeError
    assert not (tmp_path / "new").exists()
    with output_folder(tmp_path / "new" / "deep") as kept:
        pass
    assert kept.is_dir()
