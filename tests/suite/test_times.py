"""What is measured: also what processes spend whose parents have ended, and never more memory than there is."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from tests.suite.times import MARK, WAITED_SECONDS, Memory, Tree, ready_seconds

BUSY = """
import sys, time
end = time.process_time() + 0.3
while time.process_time() < end: pass
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_what_a_process_spends_counts_once_its_parent_has_ended_and_once_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(MARK, "")
    tree = Tree(os.getpid())
    before = tree.cpu_seconds()
    command = ["setsid", "-f", sys.executable, "-c", BUSY]
    daemon = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    daemon.stdout.readline()
    daemon.wait()
    tree.look()
    assert round(tree.cpu_seconds() - before, 2) >= 0.3
    daemon.communicate()  # it ends once nobody can write to it, and who has it then may await it or not
    assert round(tree.cpu_seconds() - before, 2) >= 0.3


@pytest.mark.slow
@pytest.mark.slow
def test_what_a_process_and_its_child_spent_counts_once_where_both_have_ended_since_the_last_look() -> None:
    """The child's seconds are among its parent's, which had awaited it: they were counted as lost besides."""
    tree, outer = Tree(os.getpid()), f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
    before, own = tree.cpu_seconds(), os.times()
    parent = subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    tree.cpu_seconds()  # it sees both
    parent.communicate()
    spent, now = tree.cpu_seconds() - before, os.times()
    assert spent == pytest.approx(sum(now[:4]) - sum(own[:4]), abs=0.1)


def test_a_process_that_grows_has_at_most_what_is_resident() -> None:
    memory = Memory(Tree(os.getpid()))
    grown: list[bytearray] = []
    for _ in range(5):
        grown.append(bytearray(20_000_000))
        own = psutil.Process()
        most = memory.look()
        assert most <= 1.1 * sum(one.memory_info().rss for one in [own, *own.children(recursive=True)]) / 1e6


def test_a_thread_that_sleeps_waits_and_one_that_computes_is_ready_even_where_it_has_no_core() -> None:
    began, ready = time.monotonic(), ready_seconds()
    time.sleep(0.3)
    assert time.monotonic() - began - (ready_seconds() - ready) > 0.25
    began, ready, cpu = time.monotonic(), ready_seconds(), time.thread_time()
    while time.thread_time() - cpu < 0.3:
        sum(range(1000))
    assert time.monotonic() - began - (ready_seconds() - ready) < WAITED_SECONDS
