"""Where the checkpoints of a training lie."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak import GradleakError
from gradleak.training.checkpoints import all_models, kept_steps


@given(st.integers(1, 1000), st.integers(0, 30))
def test_kept_steps_are_even(steps, count):
    kept = kept_steps(steps, count)
    assert len(kept) == min(count, steps)
    assert not kept or kept[0] == 0
    gaps = [after - before for before, after in itertools.pairwise([*kept, steps])]
    assert not gaps or (min(gaps) >= 1 and max(gaps) - min(gaps) <= 1)


def test_folders_without_a_training_are_refused(tmp_path):
    with pytest.raises(GradleakError, match="no folder"):
        all_models(tmp_path / "nowhere")
    (tmp_path / "checkpoint-5").mkdir()
    with pytest.raises(GradleakError, match="fewer than two"):
        all_models(tmp_path)
