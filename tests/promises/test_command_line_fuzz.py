"""A few of the cases of fuzz_commands.py; `make fuzz` tries 2,000."""

from __future__ import annotations

import pytest
from fuzz_commands import COMMANDS, Zoo, attempt, cases
from hypothesis import HealthCheck, given, settings


@pytest.fixture(scope="module")
def zoo(tmp_path_factory) -> Zoo:
    return Zoo(tmp_path_factory.mktemp("zoo")).build()


def test_every_command_is_tried():
    assert {("audit",), ("bench", "engine"), ("assets", "pull")} <= set(COMMANDS)
    assert len(COMMANDS) > 25


def test_no_argument_and_no_file_ends_in_a_traceback(zoo):
    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(cases(zoo))
    def check(case):
        code, problem = attempt(zoo, *case)
        assert problem is None, (code, problem)

    check()
