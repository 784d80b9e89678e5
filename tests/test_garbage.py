"""The garbage collector during a run, and after it."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from agentrl.common import garbage


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.mark.slow
def test_what_a_run_leaves_in_cycles_is_found_during_it_and_the_collector_is_as_before_after_it() -> None:
    gc.unfreeze()  # what the suite has frozen: tests/suite/memory.py
    before = gc.get_threshold()
    with garbage.collect_less_often():
        assert gc.get_threshold() != before
        assert gc.get_freeze_count()
        cycle = weakref.ref(Cycle())
        kept = [[] for _ in range(25 * garbage.THRESHOLDS[0])]
        assert cycle() is None, f"not found among {len(kept)} objects"
    assert gc.get_threshold() == before
    assert not gc.get_freeze_count()


@pytest.mark.slow
def test_a_run_in_a_process_that_has_frozen_objects_freezes_no_others() -> None:
    """They would be kept for as long as those: the engine and the trainer of a run are in cycles, and would stay."""
    gc.unfreeze()
    gc.freeze()
    cycle = weakref.ref(own := Cycle())
    with garbage.collect_less_often():
        pass
    assert gc.get_freeze_count()
    del own
    gc.collect()
    assert cycle() is None


@pytest.mark.slow
def test_a_command_sets_the_collector_before_it_loads_anything_that_would_be_looked_through(tmp_path: Path) -> None:
    code = (
        "import gc, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'agentrl.cli':\n"
        "            print(*gc.get_threshold())\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from agentrl.__main__ import main\n"
        "sys.argv = ['agentrl', '--version']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, check=True, text=True)
    assert tuple(map(int, done.stdout.splitlines()[0].split())) == garbage.THRESHOLDS


@pytest.mark.slow
def test_calls_one_after_the_other_leave_no_tensors_in_the_process(tmp_path: Path) -> None:
    """Engine and trainer are in cycles, and the collector found them too seldom: the 21st call found no memory."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.calls_in_a_row", str(tmp_path)]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert set(found) == {"train", "evaluate", "rollouts"}
    for call, held in found.items():
        assert len(held) == 3
        assert max(held[1:]) <= held[0], f"{call}: {held} bytes of tensors after each call"


@pytest.mark.slow
def test_what_loads_is_old_at_once_and_the_collector_goes_on() -> None:
    """A first collection after torch has loaded would look through all of it."""
    gc.unfreeze()  # what the suite has frozen: tests/suite/memory.py
    with garbage.collect_nothing_while_loading():
        assert not gc.isenabled()
        cycle = weakref.ref(loaded := Cycle())
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert any(each is loaded for each in gc.get_objects(2))
    del loaded
    gc.collect()
    assert cycle() is None


def test_an_object_that_is_left_is_looked_at_once_until_all_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions' objects are left for minutes: each was looked at twice, and more the more sessions there were."""
    gc.unfreeze()  # what the suite has frozen: tests/suite/memory.py
    looked = 0

    def count(phase: str, about: dict[str, int]) -> None:
        nonlocal looked
        if phase == "start":
            looked += sum(len(gc.get_objects(younger)) for younger in range(about["generation"] + 1))

    monkeypatch.setattr(garbage, "THRESHOLDS", (1000, *garbage.THRESHOLDS[1:]))
    gc.collect()
    with garbage.collect_less_often():
        gc.callbacks.append(count)
        kept: list[list[int]] = [[] for _ in range(20_000)]
        gc.callbacks.remove(count)
    assert 0.8 * len(kept) < looked < 1.1 * len(kept)


def test_sessions_that_may_be_open_at_once_are_begun_without_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10,000 sessions' objects each was looked at once until all had begun, and none was ever in a cycle."""
    gc.unfreeze()  # what the suite has frozen: tests/suite/memory.py
    before = gc.get_threshold()
    monkeypatch.setattr(garbage, "THRESHOLDS", (1000, *garbage.THRESHOLDS[1:]))
    with garbage.collect_less_often(100):
        runs = sum(generation["collections"] for generation in gc.get_stats())
        begun = [[] for _ in range(99 * garbage.OF_A_SESSION)]
        assert sum(generation["collections"] for generation in gc.get_stats()) == runs
        cycle = weakref.ref(Cycle())
        more = [[] for _ in range(3 * len(begun))]
        assert cycle() is None, f"not found among {len(more)} objects"
    assert gc.get_threshold() == before
