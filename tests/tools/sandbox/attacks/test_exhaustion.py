"""Attacks that use up processes, memory, disk, descriptors, output and time."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from agentrl.errors import Blame
from agentrl.tools.sandbox.base import Outcome, SandboxMemory
from agentrl.tools.sandbox.docker.backend import DockerSandbox
from agentrl.tools.sandbox.runner.interpreter import Interpreter
from tests.tools.sandbox.attacks.conftest import Attack, run_until_late
from tests.tools.sandbox.conftest import SMALL, Make

pytestmark = pytest.mark.slow


async def test_a_fork_bomb_runs_into_the_process_limit_and_dies_with_its_command(attack: Attack) -> None:
    bomb = """
count = 0
while True:
    try: pid = os.fork()
    except OSError as error:
        print("forked", count, errno.errorcode[error.errno], flush=True); break
    if pid == 0: time.sleep(600)
    count += 1
time.sleep(600)
"""
    result = await run_until_late(lambda seconds: attack(bomb, timeout=seconds), b"forked", 1)
    word, count, code = result.stdout.split()
    assert word == b"forked"
    assert 20 < int(count) < 64
    assert code == b"EAGAIN"
    assert result.outcome is Outcome.TIMEOUT


async def test_a_fork_bomb_of_sessions_that_ignore_signals_is_killed_to_the_last(jail: DockerSandbox) -> None:
    bomb = r'b() { (setsid bash -c "trap \"\" TERM INT HUP; b" & b) & b; }; export -f b'
    bomb = f'trap "" TERM INT HUP; echo lit; {bomb}; b; sleep 60'
    result = await run_until_late(lambda seconds: jail.exec(bomb, timeout=seconds), b"temporarily unavailable", 4)
    assert result.stdout.startswith(b"lit")
    assert b"Resource temporarily unavailable" in result.stderr, "it never reached the limit"
    assert result.outcome in (Outcome.TIMEOUT, Outcome.EXITED, Outcome.SIGNALED)


async def test_threads_count_against_the_same_limit(attack: Attack) -> None:
    result = await attack("""
import threading
started = 0
try:
    while started < 1000:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start(); started += 1
except RuntimeError: pass
print("threads", started, flush=True); os._exit(0)
""")
    assert 10 < int(result.stdout.split()[1]) < 64


async def test_a_memory_bomb_is_killed_and_blamed_on_the_command(attack: Attack) -> None:
    result = await attack("""
held = []
while True:
    held.append(b"x" * (8 << 20)); print(len(held) * 8, flush=True)
""")
    assert result.outcome is Outcome.MEMORY
    assert int(result.stdout.split()[-1]) >= 64


async def test_a_memory_bomb_in_a_grandchild_is_seen_though_its_parent_lives(attack: Attack) -> None:
    result = await attack("""
if os.fork() == 0:
    os.setsid(); held = []
    while True: held.append(b"x" * (8 << 20))
print("child ended by", os.WTERMSIG(os.wait()[1]))
""")
    assert result.stdout == b"child ended by 9\n"
    assert result.outcome is Outcome.EXITED
    assert result.out_of_memory


async def test_filling_the_disk_ends_at_the_trees_size(attack: Attack) -> None:
    result = await attack("""
written = 0
try:
    for i in range(1000):
        with open(f"/work/fill{i}", "wb") as f:
            for _ in range(8): written += f.write(b"x" * (1 << 20))
except OSError as error: print(errno.errorcode[error.errno], written >> 20)
""")
    code, megabytes = result.stdout.split()
    assert code == b"ENOSPC"
    assert 24 <= int(megabytes) <= 32


async def test_filling_the_inodes_ends_at_their_limit(attack: Attack) -> None:
    result = await attack("""
made = 0
try:
    while made < 100000: os.close(os.open(f"/tmp/{made}", os.O_CREAT)); made += 1
except OSError as error: print(errno.errorcode[error.errno], made)
""")
    code, made = result.stdout.split()
    assert code == b"ENOSPC"
    assert 3000 < int(made) <= 16 * 256


async def test_shared_memory_is_bounded(attack: Attack) -> None:
    result = await attack("""
written = 0
try:
    with open("/dev/shm/fill", "wb", buffering=0) as f:
        while True: written += f.write(b"x" * (1 << 20))
except OSError as error: print(errno.errorcode[error.errno], written >> 20)
""")
    code, megabytes = result.stdout.split()
    assert code == b"ENOSPC"
    assert int(megabytes) <= 8


async def test_system_v_segments_that_outlive_their_maker_are_bounded_and_wiped_by_a_reset(
    attack: Attack, jail: DockerSandbox
) -> None:
    result = await attack("""
made = 0
while libc.shmget(0, 1 << 20, 0o1600) >= 0 and made < 100: made += 1
print("segments", made)
""")
    assert 1 <= int(result.stdout.split()[1]) <= 8
    assert len((await jail.exec("cat /proc/sysvipc/shm")).stdout.splitlines()) > 1, "they did not outlive it"
    await jail.reset()
    assert len((await jail.exec("cat /proc/sysvipc/shm")).stdout.splitlines()) == 1


async def test_with_every_tree_full_and_memory_gone_the_runner_still_lives(attack: Attack) -> None:
    """The trees' pages belong to no process: were they as large as the limit, only the runner would be left to kill."""
    result = await attack("""
for folder in ("/work", "/tmp", "/dev/shm"):
    try:
        for i in range(10):
            with open(f"{folder}/f{i}", "wb", buffering=0) as f:
                for _ in range(20): f.write(b"x" * (1 << 20))
    except OSError as error: print(folder, errno.errorcode[error.errno], flush=True)
while libc.shmget(0, 1 << 20, 0o1600) >= 0: pass
held = []
while True: held.append(b"x" * (1 << 20))
""")
    assert result.stdout.count(b"ENOSPC") == 3
    assert result.outcome is Outcome.MEMORY


SCORES = """
def score(pid): return int(open(f"/proc/{pid}/oom_score_adj").read())
began = score("self")
for wanted in (500, 0, -500, -1000):
    for name in ("oom_score_adj", "oom_adj"):
        try:
            with open(f"/proc/self/{name}", "w") as f: f.write(str(wanted))
        except OSError: pass
print(began, score("self"), score(1), flush=True)
"""
TINY_HOARDER = """
static long call(long n, long a, long b, long c, long d) {
    register long r10 __asm__("r10") = d;
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return r;
}
static char page[65536];
void _start(void) {
    long fd = call(2, (long)"/proc/self/oom_score_adj", 1, 0, 0);
    call(1, fd, (long)"0", 1, 0);
    for (int i = 0; i < 50; i++) if (call(57, 0, 0, 0, 0) == 0) break;
    int ends[2];
    while (call(53, 1, 2 | 04000, 0, (long)ends) == 0)
        while (call(1, ends[0], (long)page, sizeof page, 0) > 0) continue;
    for (;;) call(34, 0, 0, 0, 0);
}
"""


async def test_no_command_comes_down_to_the_runners_score(attack: Attack) -> None:
    """The runner had the score that Docker gives a container, and commands went below it; then they came down to it."""
    began, lowest, runner = map(int, (await attack(SCORES)).stdout.split())
    assert began == lowest == 1000
    assert runner < lowest


async def test_commands_write_and_see_each_other_as_without_closed_scores(attack: Attack, jail: DockerSandbox) -> None:
    server = await jail.start("exec sleep 600 9>/work/log")
    assert (await jail.exec("until [ -e /work/log ]; do sleep 0.01; done")).ok
    result = await attack("""
open("/dev/stdout", "w").write("output\\n")
open("/dev/null", "w").write("x"); open("/dev/shm/a", "w").write("x")
os.mkdir("/work/in"); os.mkdir("/work/out"); open("/work/in/a", "w").write("a")
os.rename("/work/in/a", "/work/out/b"); os.link("/work/out/b", "/work/in/c")
inside = os.open("/work/in/c", os.O_RDONLY); hidden = os.memfd_create("hidden")
for fd in (inside, hidden): open(f"/proc/self/fd/{fd}", "a").write("x")
print(open("/work/out/b").read(), os.lseek(hidden, 0, os.SEEK_END))
def logs(pid):
    try: return os.readlink(f"/proc/{pid}/fd/9") == "/work/log"
    except OSError: return False
print(any(logs(pid) for pid in os.listdir("/proc") if pid.isdigit()))
""")
    await server.signal(9)
    await server.wait(60)
    assert result.stdout == b"output\nax 1\nTrue\n", result.stderr


async def test_memory_of_processes_that_are_smaller_than_the_runner_ends_only_them(make: Make, tmp_path: Path) -> None:
    """What sockets hold counts for no process: at equal scores the runner was the largest, and was killed."""
    (tmp_path / "hoarder.c").write_text(TINY_HOARDER)
    compile_ = ["gcc", "-O1", "-static", "-nostdlib", "-fno-stack-protector", "-o", "hoarder", "hoarder.c"]
    await asyncio.to_thread(subprocess.run, compile_, cwd=tmp_path, check=True)
    sandbox = await asyncio.to_thread(make, SMALL)
    await sandbox.write("hoarder", (tmp_path / "hoarder").read_bytes(), mode=0o755)
    for seconds in (5, 60):  # a busy machine takes longer to fill the memory
        result = await sandbox.exec("./hoarder", timeout=seconds)
        if result.out_of_memory:
            break
    assert result.out_of_memory, result
    assert (await sandbox.exec("echo lives")).stdout == b"lives\n"


FILLER = """
static long call(long n, long a, long b, long c) {
    long r; __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory"); return r;
}
static char page[4096];
void _start(void) {
    long fd = call(2, (long)"/work/fill", 01102, 0600);
    while (call(1, fd, (long)page, sizeof page) > 0) continue;
    call(60, 0, 0, 0);
}
"""


async def test_a_sandbox_ended_by_its_own_memory_is_blamed_on_its_commands_for_good(make: Make, tmp_path: Path) -> None:
    """A program so small that the kernel finds nothing larger to kill than the runner, in a tree larger than memory.

    The specification forbids such trees; other kernel memory that counts for no process might do the same.
    """
    (tmp_path / "filler.c").write_text(FILLER)
    compile_ = ["gcc", "-O1", "-static", "-nostdlib", "-fno-stack-protector", "-o", "filler", "filler.c"]
    await asyncio.to_thread(subprocess.run, compile_, cwd=tmp_path, check=True)
    broken = SMALL.model_copy(update={"memory_mb": 40, "tmpfs_mb": {"/work": 64}, "file_mb": 64})
    sandbox = await asyncio.to_thread(make, broken)
    await sandbox.write("filler", (tmp_path / "filler").read_bytes(), mode=0o755)
    result = await sandbox.exec(["./filler"], timeout=30)
    assert result.outcome is Outcome.MEMORY
    for _ in range(100):
        if not (await sandbox.inspect())["State"]["Running"]:
            break
        result = await sandbox.exec(["./filler"], timeout=30)
        assert result.outcome is Outcome.MEMORY
    else:
        raise AssertionError("the attack never ended the sandbox")
    assert "whole sandbox" in (await sandbox.exec("echo next")).detail
    with pytest.raises(SandboxMemory) as caught:
        await sandbox.read("filler")
    assert caught.value.blame is Blame.AGENT
    with pytest.raises(SandboxMemory):
        await Interpreter(sandbox).run("1")


async def test_a_file_longer_than_allowed_ends_its_writer(attack: Attack) -> None:
    result = await attack("""
signal.signal(signal.SIGXFSZ, signal.SIG_IGN); written = 0
try:
    with open("/work/big", "wb", buffering=0) as f:
        while True: written += f.write(b"x" * (1 << 20))
except OSError as error: print(errno.errorcode[error.errno], written >> 20)
""")
    assert result.stdout == b"EFBIG 24\n"


async def test_a_gigabyte_of_output_is_cut_to_head_and_tail(jail: DockerSandbox) -> None:
    result = await jail.exec("echo first; head -c 1073741824 /dev/zero; echo last", timeout=60, limit=4096)
    assert result.ok
    assert result.stdout.startswith(b"first\n\0")
    assert result.stdout.endswith(b"\0last\n")
    assert result.stdout_dropped == 6 + (1 << 30) + 5 - 4096


async def test_a_million_lines_are_cut_where_the_numbers_say(jail: DockerSandbox) -> None:
    result = await jail.exec("seq 1000000", timeout=60, limit=2000)
    assert result.stdout.startswith(b"1\n2\n")
    assert result.stdout.endswith(b"999999\n1000000\n")
    assert len(result.stdout) + result.stdout_dropped == 6888896


async def test_both_outputs_flooded_at_once_stay_apart(jail: DockerSandbox) -> None:
    flood = "(head -c 50000000 /dev/zero | tr '\\0' o) & (head -c 50000000 /dev/zero | tr '\\0' e >&2) & wait"
    result = await jail.exec(flood, timeout=30, limit=1000)
    assert set(result.stdout) == {ord("o")}
    assert set(result.stderr) == {ord("e")}
    assert result.stdout_dropped == result.stderr_dropped == 50000000 - 1000


async def test_descriptors_run_out_for_the_command_alone(attack: Attack) -> None:
    result = await attack("""
held = 0
try:
    while True: os.dup(1); held += 1
except OSError as error: print(errno.errorcode[error.errno], held)
""")
    code, held = result.stdout.split()
    assert code == b"EMFILE"
    assert 200 < int(held) < 256


async def test_hoarding_kernel_buffers_hits_a_limit_of_its_own(attack: Attack) -> None:
    result = await attack("""
import fcntl
filled = 0
try:
    while True:
        r, w = os.pipe(); os.set_blocking(w, False)
        filled += os.write(w, b"x" * 65536)
except OSError as error: print(errno.errorcode[error.errno], filled)
""")
    code, filled = result.stdout.split()
    assert code in (b"EMFILE", b"EAGAIN")
    assert int(filled) > 65536


async def test_spinning_on_every_core_is_throttled_and_ended(attack: Attack) -> None:
    spinning = """
for _ in range(8):
    if os.fork() == 0:
        while True: pass
print("spinning", flush=True)
before, begun = os.times(), time.monotonic()
while time.monotonic() - begun < 600: pass
"""
    result = await run_until_late(lambda seconds: attack(spinning, timeout=seconds), b"spinning", 1)
    assert result.stdout == b"spinning\n"
    assert result.outcome is Outcome.TIMEOUT


async def test_a_tree_nested_deep_with_unreadable_directories_is_wiped_by_a_reset(
    attack: Attack, jail: DockerSandbox
) -> None:
    result = await attack("""
os.chdir("/work")
for depth in range(600):
    os.mkdir("d" * 200); os.chdir("d" * 200)
print("depth", depth + 1); os.mkdir("locked"); open("locked/f", "w"); os.chmod("locked", 0)
""")
    assert result.stdout == b"depth 600\n"
    await jail.reset()
    assert (await jail.exec("ls -A /work")).stdout == b""


async def test_input_that_is_not_read_delays_nothing(jail: DockerSandbox) -> None:
    result = await jail.exec("echo ignoring it", stdin=b"x" * (8 << 20), timeout=20)
    assert result.stdout == b"ignoring it\n"


async def test_a_command_longer_than_the_kernel_takes_is_the_commands_failure(jail: DockerSandbox) -> None:
    result = await jail.exec(["echo", "x" * 500_000])
    assert result.outcome is Outcome.NOT_STARTED
    assert "too long" in result.detail.lower()
