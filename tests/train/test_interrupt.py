"""Interrupted work ends soon, with nothing left behind, and says how to go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from agentrl.common.processes import descendants
from agentrl.tools.sandbox.docker import daemon
from agentrl.tools.sandbox.docker.owner import OWNER
from agentrl.train.driver import interrupt
from tests.conftest import need

pytestmark = pytest.mark.slow

PROGRAM = """
    import asyncio, subprocess, sys, time
    from agentrl.train.driver import interrupt

    async def work():
        child = subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], start_new_session=True)
        print(child.pid, flush=True)
        await {waiting}

    interrupt.run(work(), lambda: print("go on like this", flush=True), owns_process=True)
"""
PATIENCE = 300.0


WITH_CONTAINERS = """
    import asyncio, subprocess, sys
    from agentrl.envs import sandboxes
    from agentrl.tools.sandbox.spec import SandboxSpec
    from agentrl.train.driver import interrupt

    SPEC, pool = SandboxSpec(image="agentrl/tiny:latest"), sandboxes.supplier("docker").pool
    interrupt.end_process.__kwdefaults__["cleanup"] = 200.0  # a busy machine's daemon takes more than ten seconds

    async def worker():
        await pool.warm(SPEC, 1)
        print("ready", flush=True)
        await asyncio.sleep(600)

    def leave():
        loop.call_soon_threadsafe(leaving.set)
        return 200.0

    async def work(program):
        global loop, leaving
        loop, leaving = asyncio.get_running_loop(), asyncio.Event()
        worker = subprocess.Popen([sys.executable, "-c", program, ""], stdout=subprocess.PIPE, text=True)
        await pool.warm(SPEC, 2)
        await asyncio.to_thread(worker.stdout.readline)
        print(worker.pid, flush=True)
        await pool.prepare(SPEC, 8)  # some are being created
        await leaving.wait()

    _, program = sys.argv
    if program:
        interrupt.run(work(program), lambda: None, owns_process=True, leave=leave)
    else:
        asyncio.run(worker())
"""


def test_a_signal_leaves_no_container_of_the_process_or_of_its_children() -> None:
    """A run that left in order did so without its exit handlers, and each of its containers stayed, stopped."""
    need(daemon.available(), "no Docker daemon answers")
    program, numbers = textwrap.dedent(WITH_CONTAINERS), (signal.SIGINT, signal.SIGTERM)
    with contextlib.ExitStack() as stack:
        begun = []
        for _ in numbers:
            command = [sys.executable, "-c", program, program]
            begun.append(stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
        pids = [{str(process.pid), line_of(process)} for process in begun]
        owned = [owned_by(each) for each in pids]
        for process, number in zip(begun, numbers, strict=True):
            process.send_signal(number)
        for process in begun:
            process.communicate(timeout=PATIENCE)
    assert [process.returncode for process in begun] == [128 + number for number in numbers]
    assert all(len(each) >= 3 for each in owned)
    assert [owned_by(each) for each in pids] == [[], []]


def line_of(process: subprocess.Popen[str]) -> str:
    """The first line that it prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def owned_by(pids: set[str]) -> list[str]:
    """The containers, running or not, of these processes."""
    found = daemon.daemon().api.containers(all=True, filters={"label": OWNER})
    return [one["Id"] for one in found if one["Labels"][OWNER].split("-")[-2] in pids]


def group_is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def hear_a_hangup() -> None:
    """As a process does that nohup did not start, also where it started the tests."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


WAITING = {
    "idle": "asyncio.sleep(600)",
    "a thread computes": "asyncio.to_thread(time.sleep, 600)",
    "the loop is blocked": "asyncio.sleep(time.sleep(600) or 0)",
}


def test_a_signal_ends_the_process_and_its_children_whatever_it_is_doing() -> None:
    cases = [(number, name) for number in interrupt.SIGNALS for name in WAITING]
    with contextlib.ExitStack() as stack:
        begun = []
        for _, name in cases:
            command = [sys.executable, "-c", textwrap.dedent(PROGRAM).format(waiting=WAITING[name])]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=hear_a_hangup)
            begun.append(stack.enter_context(process))
        children = [int(line_of(process)) for process in begun]
        time.sleep(0.2)
        for process, (number, _) in zip(begun, cases, strict=True):
            process.send_signal(number)
        for process, (number, name) in zip(begun, cases, strict=True):
            said, _ = process.communicate(timeout=PATIENCE)  # 600 s, were it not ended
            assert process.returncode == 128 + number, name
            assert said == "go on like this\n", name
    end = time.monotonic() + PATIENCE
    while not all(map(group_is_gone, children)):
        assert time.monotonic() < end
        time.sleep(0.02)


ON_A_TERMINAL = """
    import asyncio, sys, threading
    from pathlib import Path
    from agentrl.train.driver import interrupt

    leaving = threading.Event()

    def leave():
        leaving.set()
        return 60.0

    async def work():
        print("begun", flush=True)
        await asyncio.to_thread(leaving.wait)
        print("saving", flush=True)  # to a terminal that is gone
        Path(sys.argv[1]).write_text("saved")

    interrupt.run(work(), lambda: print("go on like this", flush=True), owns_process=True, leave=leave)
"""


def on_terminal(terminal: int) -> None:
    """Have a terminal control this process."""
    hear_a_hangup()
    os.login_tty(terminal)


def test_a_run_whose_terminal_is_closed_saves_and_what_nohup_started_goes_on(tmp_path: Path) -> None:
    program = [sys.executable, "-c", textwrap.dedent(ON_A_TERMINAL)]
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [*program, str(tmp_path / "closed")],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=partial(on_terminal, theirs),
    ) as process:
        os.close(theirs)
        assert os.read(ours, 100).startswith(b"begun")
        os.close(ours)
        assert process.wait(PATIENCE) == 128 + signal.SIGHUP
    assert (tmp_path / "closed").read_text() == "saved"
    with subprocess.Popen(["nohup", *program, str(tmp_path / "nohup")], stdout=subprocess.PIPE, text=True) as process:
        assert line_of(process) == "begun"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM


def test_a_notebooks_interrupt_stops_the_run_in_its_thread() -> None:
    """The thread went on, in the background, with the interrupt long forgotten."""
    begun, ended, told = threading.Event(), threading.Event(), []

    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(600)
        finally:
            ended.set()

    def interrupt_us() -> None:
        begun.wait(PATIENCE)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    async def cell() -> None:
        interrupt.run(work(), lambda: told.append("said"))

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt_us).start()
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(cell())
    finally:
        loop.close()
        signal.signal(signal.SIGINT, previous)
    assert ended.is_set()
    assert told == ["said"]


def test_an_interrupt_that_comes_while_the_thread_starts_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the work begins before `Thread.start` returns; an interrupt there left it running."""
    begun, ended = threading.Event(), threading.Event()
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "agentrl":
            begun.wait(PATIENCE)
            raise KeyboardInterrupt

    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(600)
        finally:
            ended.set()

    async def cell() -> None:
        interrupt.run(work(), lambda: None)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with contextlib.closing(asyncio.new_event_loop()) as loop, pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell())
    assert ended.is_set()


def test_work_in_a_notebook_returns_what_it_returns_and_raises_what_it_raises() -> None:
    async def fails() -> int:
        raise ValueError("so")

    async def cell() -> None:
        assert interrupt.run(asyncio.sleep(0, 7), lambda: None) == 7
        with pytest.raises(ValueError, match="so"):
            interrupt.run(fails(), lambda: None)

    asyncio.run(cell())


UNREAD = """
    import asyncio
    from agentrl.train.display.console import Display
    from agentrl.train.driver import interrupt

    display = Display()
    display.resume_hint = lambda: "go on like this"
    left = asyncio.Event()

    def leave():
        display.request_stop = lambda: 0.0
        loop.call_soon_threadsafe(left.set)
        return 60.0

    async def work():
        global loop
        loop, display.request_stop = asyncio.get_running_loop(), leave
        display.say("step 1")
        await asyncio.wait_for(left.wait(), 60) if {closed} else None
        display.say("saved")

    interrupt.run(work(), display.print_resume_hint, owns_process=True, leave=lambda: display.request_stop())
"""


def test_a_run_whose_output_nothing_reads_saves_and_ends_and_says_how_to_go_on() -> None:
    """`agentrl train … | head -1` ended with 1 and no word."""
    read, write = os.pipe()
    os.close(read)
    program = textwrap.dedent(UNREAD).format(closed=True)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, text=True, check=False, timeout=120
        )
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "go on like this\n")


def test_a_run_whose_output_is_a_full_disk_goes_on_and_tells_it_on_standard_error() -> None:
    program = textwrap.dedent(UNREAD).format(closed=False)
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120
        )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.split("\n")[1:] == ["saved", ""]
    assert "No space left on device: the run goes on" in ended.stderr


def test_descendants_are_found_through_their_parents(tmp_path: Path) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True) as process:
        end = time.monotonic() + PATIENCE
        while len(descendants(os.getpid())) < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert process.pid in descendants(os.getpid())
        os.killpg(process.pid, signal.SIGKILL)
