"""Attacks on the killing of processes, and on the runner that does it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from agentrl.tools.sandbox.base import Outcome, PathError
from agentrl.tools.sandbox.docker.backend import DockerSandbox
from tests.tools.sandbox.attacks.conftest import Attack, run_until_late

pytestmark = pytest.mark.slow


async def test_what_a_command_leaves_behind_ends_with_it(attack: Attack, jail: DockerSandbox) -> None:
    result = await attack("""
if os.fork() == 0:
    os.setsid()
    while True: open("/tmp/alive", "w").write(str(time.time())); time.sleep(0.02)
while not os.path.exists("/tmp/alive"): time.sleep(0.01)
print("left one")
""")
    assert result.ok
    last = await jail.read("/tmp/alive")
    await asyncio.sleep(0.2)
    assert await jail.read("/tmp/alive") == last


async def test_a_child_that_holds_the_output_open_does_not_delay_the_end(jail: DockerSandbox) -> None:
    result = await jail.exec("sleep 600 & echo done", timeout=30)
    assert result.outcome is Outcome.EXITED
    assert result.stdout == b"done\n"
    assert result.seconds < 20


async def test_a_chain_that_forks_ahead_of_its_killer_runs_out_of_slots(attack: Attack) -> None:
    chain = """
print("running", flush=True)
if os.fork() == 0:
    os.setsid()
    while True:
        try:
            if os.fork(): os._exit(0)
        except OSError: pass
time.sleep(600)
"""
    result = await run_until_late(lambda seconds: attack(chain, timeout=seconds), b"running", 1.5)
    assert result.outcome is Outcome.TIMEOUT
    assert result.stdout == b"running\n"


async def test_stopping_ones_supervisor_ends_oneself_long_before_the_time_is_up(attack: Attack) -> None:
    result = await attack("print(os.getppid(), flush=True); os.kill(os.getppid(), signal.SIGSTOP); time.sleep(600)")
    assert int(result.stdout) > 1
    assert (result.outcome, result.exit_code) == (Outcome.SIGNALED, 137)


async def test_a_command_that_is_stopped_and_that_nobody_continues_ends(attack: Attack) -> None:
    """As the program that runs tests is, where what it tests stops it: a scoring must not wait for its time-out."""
    result = await attack(
        "child = os.fork()\nif child == 0: os.kill(os.getppid(), signal.SIGSTOP); time.sleep(600)\nos.wait()",
        timeout=90,
    )
    assert (result.outcome, result.exit_code) == (Outcome.SIGNALED, 137)
    assert result.seconds < 60


async def test_a_command_that_is_stopped_and_continued_goes_on(attack: Attack, jail: DockerSandbox) -> None:
    result = await attack("""
me = os.getpid()
if os.fork() == 0: time.sleep(0.3); os.kill(me, signal.SIGCONT); os._exit(0)
os.kill(me, signal.SIGSTOP); print("goes on")
""")
    assert result.stdout == b"goes on\n"


async def test_a_file_operation_can_not_be_held_up_by_stopping_it(jail: DockerSandbox) -> None:
    """Its process runs as the same user: whoever finds it can stop it."""
    stopper = await jail.start("while :; do kill -STOP -1; done")
    with contextlib.suppress(PathError):
        await asyncio.wait_for(jail.write("/work/file", b"x" * (4 << 20)), 60)
    await stopper.stop()


async def test_killing_ones_supervisor_ends_oneself_and_is_reported_as_a_kill(attack: Attack) -> None:
    result = await attack("""
print("killing", os.getppid() > 1, flush=True)
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(600)
""")
    assert result.stdout == b"killing True\n"
    assert (result.outcome, result.exit_code) == (Outcome.SIGNALED, 137)


async def test_killing_everything_that_can_be_killed_leaves_the_runner(attack: Attack, jail: DockerSandbox) -> None:
    bystander = await jail.start("sleep 300")
    result = await attack("""
print("killing", flush=True); call("kill", -1, 9); time.sleep(600)
""")
    assert result.stdout == b"killing\n"
    assert (result.outcome, result.exit_code) == (Outcome.SIGNALED, 137)
    assert (await bystander.wait(10)).outcome is Outcome.SIGNALED, "it killed nobody"


async def test_no_signal_reaches_the_runner(attack: Attack, jail: DockerSandbox) -> None:
    result = await attack("""
for number in range(1, 65):
    if number not in (32, 33): print(call("kill", 1, number))
value = ctypes.create_string_buffer(128)
print(call(129, 1, 10, value), call(434, 1, 0))
""")
    assert result.stdout.count(b"done") >= 60, "the signals were not sent"
    assert await jail.healthy()


async def test_the_runner_can_not_be_traced(attack: Attack) -> None:
    result = await attack("""
for request in (16, 0x4206): print(call("ptrace", request, 1, 0, 0))
child = os.fork()
if child == 0: time.sleep(600)
print(call("ptrace", 16, child, 0, 0))
""")
    assert result.stdout.split() == [b"EPERM"] * 3


async def test_the_runners_memory_descriptors_and_environment_are_closed(attack: Attack) -> None:
    result = await attack("""
for name in ("mem", "environ", "fd", "map_files", "root", "cwd", "exe", "syscall"):
    for pid in (1, os.getppid()):
        path = f"/proc/{pid}/{name}"
        attempt(name, lambda: os.readlink(path) if name in ("root", "cwd", "exe") else
                (os.listdir(path) if name in ("fd", "map_files") else open(path, "r+b").read(1)))
for name in ("mem", "oom_score_adj", "coredump_filter", "clear_refs"):
    attempt(name, lambda: open(f"/proc/1/{name}", "w").write("0"))
local = ctypes.create_string_buffer(8)
print("vm", call("process_vm_writev", 1, 0, 0, 0, 0, 0), call("process_vm_readv", 1, 0, 0, 0, 0, 0))
print("pidfd", call(438, os.pidfd_open(1), 0, 0))
""")
    lines = result.stdout.decode().splitlines()
    assert len(lines) == 22
    refused = ("EACCES", "EPERM", "ENOENT")
    assert all(line.split()[-1] in refused for line in lines), lines


async def test_the_runners_limits_and_priorities_can_not_be_changed(attack: Attack) -> None:
    result = await attack("""
class Limit(ctypes.Structure): _fields_ = [("soft", ctypes.c_ulong), ("hard", ctypes.c_ulong)]
nothing = Limit(0, 0)
print("nofile", call("prlimit64", 1, 7, ctypes.byref(nothing), None))
print("nice", call("setpriority", 0, 1, 19))
print("everyone of mine", call("setpriority", 2, 0, 19), call("setpriority", 2, 1000, 19))
print("affinity", call(203, 1, 8, ctypes.byref(ctypes.c_ulong(1))))
print("scheduler", call(144, 1, 5, ctypes.byref(ctypes.c_int(0))))
print("io", call(251, 1, 1, 3 << 13))
""")
    lines = result.stdout.decode().splitlines()
    assert len(lines) == 6
    assert all(word == "EPERM" for line in lines for word in line.split() if word.isupper()), lines
    assert all("EPERM" in line for line in lines)


async def test_the_runner_can_not_be_replaced(attack: Attack) -> None:
    result = await attack("""
path = "/.agentrl/agentrl-runner"
attempt("write", lambda: open(path, "r+b").write(b"x"))
attempt("unlink", lambda: os.unlink(path))
attempt("rename", lambda: os.rename(path, "/tmp/x"))
attempt("beside", lambda: open("/.agentrl/other", "w"))
attempt("folder", lambda: os.rename("/.agentrl", "/tmp/y"))
attempt("chmod", lambda: os.chmod(path, 0o777))
attempt("link", lambda: os.link(path, "/work/z"))
attempt("through /proc", lambda: open("/proc/1/exe", "r+b"))
""")
    lines = result.stdout.decode().splitlines()
    assert len(lines) == 8
    assert all(line.split()[-1] in ("EROFS", "EACCES", "EXDEV", "EPERM", "ETXTBSY", "EBUSY") for line in lines), lines


async def test_a_second_runner_that_a_command_starts_reaches_no_client(attack: Attack) -> None:
    result = await attack("""
import subprocess
hello = struct.pack("<QIIIII", 77, 0, 1, 8, 1, 5000)
echo = struct.pack("<BBHIQQQII", 0, 0, 0, 0, 0, 100, 100, 2, 0) + b"/\\0echo\\0forged\\0"
done = subprocess.run(["/.agentrl/agentrl-runner"], input=hello + struct.pack("<QIII", 77, 2, 2, len(echo)) + echo,
                      capture_output=True)
print(len(done.stdout) > 0, done.returncode)
""")
    assert result.stdout.startswith(b"True")
    assert result.outcome is Outcome.EXITED


async def test_descriptors_passed_to_another_command_do_not_tie_the_two(jail: DockerSandbox) -> None:
    """A background process is given another command's output pipe; the command's end is its own all the same."""
    keeper = await jail.start(
        [
            "python3",
            "-c",
            "import socket,time\ns=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM); s.bind('/tmp/s')\n"
            "print('up',flush=True)\nm=socket.recv_fds(s,10,1)\nopen('/tmp/got','w').write(str(m[1]))\ntime.sleep(600)",
        ]
    )
    giver = (
        "import os,socket,time\nwhile not os.path.exists('/tmp/s'): time.sleep(0.01)\n"
        "s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM); s.connect('/tmp/s'); socket.send_fds(s,[b'x'],[1])\n"
        "while not os.path.exists('/tmp/got'): time.sleep(0.01)\nprint('given')"
    )
    result = await jail.exec(["python3", "-c", giver], timeout=20)
    assert result.stdout == b"given\n"
    assert result.ok
    assert keeper.running
    await keeper.stop()
