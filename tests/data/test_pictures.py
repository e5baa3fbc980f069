"""Image files: what goes in comes out, anything else is refused."""

import numpy as np
import pytest
from blobs import blobs, write_npz

from gradleak import GradleakError, Pictures, read_pictures


def test_a_file_is_read_and_parts_are_kept_apart(tmp_path):
    private, other = blobs(3), blobs(5, seed=1)
    both = Pictures(np.concatenate([other.pixels, private.pixels[:1]]), other.labels + private.labels[:1])
    found, auxiliary = read_pictures(write_npz(tmp_path / "a.npz", private, both))
    assert np.array_equal(found.pixels, private.pixels)
    assert found.labels == private.labels
    assert auxiliary.digest == other.digest  # the private one among them was left out
    grey = private.pixels[:, 0]
    np.savez(tmp_path / "grey.npz", x_test=grey, y_test=np.array(private.labels))
    found, auxiliary = read_pictures(tmp_path / "grey.npz")
    assert found.shape == (1, 16, 16)
    assert auxiliary is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_test": np.zeros((2, 8, 8, 3))}, "not an array of images of bytes"),
        ({"x_test": np.zeros((2, 8, 8, 3), np.uint8)}, "one class number per image"),
        ({"x_test": np.zeros((2, 8, 8, 3), np.uint8), "y_test": np.zeros(3, int)}, "one class number per image"),
        ({"x_train": np.zeros((2, 8, 8, 3), np.uint8)}, "holds no x_test"),
        ({"x_test": np.array([{}], dtype=object)}, "not an \\.npz file of plain arrays"),
    ],
)
def test_bad_files_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(GradleakError, match=message):
        read_pictures(tmp_path / "bad.npz")


def test_no_archive_at_all(tmp_path):
    with pytest.raises(GradleakError, match="no data file"):
        read_pictures(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(GradleakError, match="not an \\.npz file"):
        read_pictures(tmp_path / "text.npz")
