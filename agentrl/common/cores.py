"""CPU cores: how many this process may use, and how many threads each of several processes gets.

Matrix products wait for their slowest thread, and OpenMP's threads spin while they wait, unless OMP_WAIT_POLICY says
PASSIVE, as it does here. With more of them than cores a step takes many times as long (docs/benchmarks.md), and by
default every process starts as many as the machine has cores. So each process that computes on a CPU is given its
share: the cores that affinity and control groups allow this process, divided among those that compute at the same time.

In order of precedence: the setting (`engine.threads`, `trainer.threads`), OMP_NUM_THREADS where the user has
set it, the share. One variable is enough: torch, MKL, oneDNN and OpenBLAS all follow it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "OMP_NUM_THREADS"
SMALL_BYTES = 20 << 20
"""Weights below this (five million parameters in float32) are computed by one thread: more only wait for each other."""
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")
CGROUPS = Path("/sys/fs/cgroup")
TOPOLOGY = Path("/sys/devices/system/cpu")

_sides = 1  # of a run, that compute at the same time
_ours = 0  # running runs that have set the variable themselves


def list_allowed() -> list[int]:
    """Processors that this process may use: one of each core that it may run on, at most its quota."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    return choose_one_each(os.sched_getaffinity(0), quota())


def choose_one_each(cpus: Iterable[int], most: float, topology: Path = TOPOLOGY) -> list[int]:
    """The first processor of each core.

    Args:
        cpus: of them alone.
        most: how many at most; one is chosen in any case.
        topology: the folder in which the system says which processors are hardware threads of one core.
    """
    by_core: dict[object, int] = {}
    for cpu in sorted(cpus):
        by_core.setdefault(_core(topology / f"cpu{cpu}" / "topology") or cpu, cpu)
    return list(by_core.values())[: int(max(1, min(most, len(by_core))))]


def quota(root: Path = CGROUPS, mine: Path = Path("/proc/self/cgroup")) -> float:
    """Cores of CPU time that control groups (version 1 or 2) leave to this process; infinite without a limit."""
    found = math.inf
    for line in _read(mine).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            bases, limit = (root, root / "unified"), _limit_v2
        elif "cpu" in controllers.split(","):
            bases, limit = (root / controllers, root / "cpu"), _limit_v1
        else:
            continue
        inside = Path(path.lstrip("/"))
        for base in bases:
            found = min([found, *(limit(base / group) for group in (inside, *inside.parents))])
    return found


def share(processes: int, model: Path | None = None) -> int:
    """Threads of each of several processes that compute at the same time, at least one; see also `at_once`.

    Args:
        processes: how many there are.
        model: the Hugging Face folder that they compute with; a small one gets one thread.
    """
    if model is not None and is_small(model):
        return 1
    return max(1, len(list_allowed()) // (processes * _sides))


def blocks(count: int, size: int, cpus: Sequence[int] | None = None) -> list[str]:
    """Lists of `size` processors for each of `count` processes ("0,1"), disjoint as long as there are enough.

    Args:
        count: of processes.
        size: of each one's list; shorter where there are fewer processors.
        cpus: the processors; None are those that this process may use.
    """
    cpus = list_allowed() if cpus is None else cpus
    return [",".join(str(cpus[(i * size + j) % len(cpus)]) for j in range(min(size, len(cpus)))) for i in range(count)]


def is_small(model: Path) -> bool:
    """Return whether a folder's weights are so small that threads wait for each other longer than they compute."""
    sizes = [file.stat().st_size for file in model.iterdir() if file.suffix in WEIGHTS] if model.is_dir() else []
    return bool(sizes) and sum(sizes) < SMALL_BYTES


def choose_threads(setting: int | None, default: int) -> int | None:
    """Threads by setting, else `default`; None where the user's OMP_NUM_THREADS decides."""
    return setting if setting is not None or set_by_user() else default


def set_by_user() -> bool:
    """Return whether the user has set OMP_NUM_THREADS."""
    return VARIABLE in os.environ and not _ours


def environment(threads: int | None) -> dict[str, str]:
    """The environment of a child that computes with that many threads; None: its default, or the user's variable."""
    ours = {name: value for name, value in os.environ.items() if name != VARIABLE or not _ours}
    return ours if threads is None else {**ours, VARIABLE: str(threads)}


def describe_threads(threads: Mapping[str, int | None]) -> str | None:
    """A line that says how many threads each part of a run computes with; None where no part computes on a CPU.

    Args:
        threads: by part; None where something else decides, a GPU or the user's OMP_NUM_THREADS.
    """
    environments = os.environ[VARIABLE] if set_by_user() else None
    known = {part: f"{number}" if number else environments for part, number in threads.items()}
    if not any(known.values()):
        return None
    parts = ", ".join(f"{part} {number}" for part, number in known.items() if number)
    why = f"{VARIABLE} is set" if environments else "engine.threads and trainer.threads change it"
    return f"CPU threads: {parts}; {len(list_allowed())} cores may be used ({why})"


@contextmanager
def at_once(sides: int) -> Iterator[None]:
    """Divide the cores among sides of a run that compute at the same time: `share` is of one side within the block."""
    global _sides
    before, _sides = _sides, sides
    try:
        yield
    finally:
        _sides = before


@contextmanager
def computing(threads: int | None) -> Iterator[None]:
    """Set torch's number of threads in this process within the block; None leaves it as it is."""
    if threads is None:
        yield
        return
    import torch

    own = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(own)


def settle_threads(threads: int) -> None:
    """Set torch's number of threads in the calling thread, whatever others set before it first computes.

    Torch gives a thread the number that was set last, in any thread, when it first needs one: its own would be lost.
    """
    import torch

    torch.get_num_threads()  # it needs one now, and not after the next line
    torch.set_num_threads(threads)


@contextmanager
def one_each() -> Iterator[None]:
    """Within the block, default to one thread: for tools, rewards, and programs they start.

    As many of them run at once as there are sessions. Where the user has set OMP_NUM_THREADS, that is kept.
    """
    global _ours
    if set_by_user():
        yield
        return
    imported = "torch" in sys.modules
    _ours += 1
    os.environ[VARIABLE] = "1"
    try:
        with computing(1 if imported else None):
            yield
    finally:
        _ours -= 1
        if not _ours:
            os.environ.pop(VARIABLE, None)
        if not imported and "torch" in sys.modules:  # it was imported with one thread
            sys.modules["torch"].set_num_threads(len(list_allowed()))


def _core(topology: Path) -> tuple[str, str] | None:
    """Return the core of the processor with that folder; hardware threads share it. None where there is no folder."""
    return (_read(topology / "physical_package_id"), _read(topology / "core_id")) if topology.is_dir() else None


def _limit_v2(group: Path) -> float:
    most, _, period = _read(group / "cpu.max").partition(" ")
    return int(most) / int(period) if most.isdigit() else math.inf


def _limit_v1(group: Path) -> float:
    most, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
    return int(most) / int(period) if most.isdigit() else math.inf


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
