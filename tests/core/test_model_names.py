"""A mistyped model is an error at once, with what was perhaps meant."""

import os
import subprocess
import sys

import pytest

from gradleak import GradleakError
from gradleak.core.model_names import BUILT_IN_NAMES, refuse_unknown
from gradleak.models.load import BUILT_IN


def test_names_are_those_that_can_be_loaded():
    assert set(BUILT_IN_NAMES) == set(BUILT_IN)


@pytest.mark.parametrize("name", [*BUILT_IN_NAMES, "lenet:seed=3", "."])
def test_what_may_be_a_model_passes(name):
    refuse_unknown(name)


def test_a_missing_folder_names_its_neighbour(tmp_path):
    (tmp_path / "my-model").mkdir()
    with pytest.raises(GradleakError, match=r"there is no model at .*my-modle; did you mean .*my-model\?"):
        refuse_unknown(str(tmp_path / "my-modle"))
    with pytest.raises(GradleakError, match=r"there is no folder .*nowhere"):
        refuse_unknown(str(tmp_path / "nowhere" / "my-model"))


@pytest.mark.own_process
def test_a_mistyped_name_is_refused_before_torch_is_imported():
    code = (
        "import sys; sys.argv[1:] = ['audit', '--model', 'minilmm']\n"
        "from gradleak.cli import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "False\n")
    assert "did you mean 'minilm'" in ended.stderr
