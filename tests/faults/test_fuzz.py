"""A share of `make fuzz`: damaged files, and commands that are killed."""

from __future__ import annotations

import os
import sys

import pytest
from faults.fuzz import commands, kill, mutate

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it forks, and limits time by a signal")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AMGC_CACHE", "AMGC_STATE"):  # which `mutate` and `kill` set
        monkeypatch.setenv(name, os.environ.get(name, ""))


@pytest.mark.slow
def test_a_damaged_file_gives_a_message_or_the_same_answers():
    ends, faults = mutate(60, seed=60)
    assert not faults, "\n".join(faults)
    assert sum(ends.values()) == 60 and ends["refused"], "nothing was damaged"


@pytest.mark.slow
@pytest.mark.parametrize("name", commands())
def test_a_killed_command_leaves_the_state_before_or_after_it(name):
    assert not (faults := kill(name, 2, seed=7)), "\n".join(faults)


def test_a_killed_learn_leaves_the_state_before_or_after_it():
    assert not (faults := kill("learn", 2, seed=8)), "\n".join(faults)
