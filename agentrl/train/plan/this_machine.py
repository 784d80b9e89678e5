"""This machine for `agentrl doctor`: what is there, what is missing, what that costs, and what mends it.

Nothing here stops a run that does not use it. A package counts as there where this interpreter finds it; torch alone is
imported, since only it can say whether it sees the GPU.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentrl.cluster.placement.gpus import query_gpus
from agentrl.common import cores
from agentrl.common.native import cache_dir
from agentrl.errors import brief, install_command

GIB = 1 << 30
PYTHONS = (3, 11), (3, 14)
"""The first and the last version of Python that the suite has run with or is declared for."""
LEAST_MEMORY = 4 * GIB
LEAST_DISK = 5 * GIB
LEAST_SHARED = GIB
LEAST_FILES = 4096
PORTS = {8000: "agentrl serve", 8080: "agentrl view"}
"""The ports that commands listen at by default."""
EXTRAS = {
    "transformers": ("train", "training and engine=local"),
    "pyarrow": ("parquet", "Parquet files as data"),
    "renderers": ("renderers", "conversation formats of the library `renderers`"),
    "fastapi": ("gateway", "agentrl serve and agent programs"),
    "ray": ("ray", "cluster=ray"),
    "megatron": ("megatron", "trainer=megatron"),
    "bm25s": ("retrieval", "agentrl search and env=search_r1 with an index of one's own"),
    "mcp": ("mcp", "tools of MCP servers"),
}
"""Packages, the extra that brings each, and what needs it."""
DISTRIBUTIONS = {"megatron": "megatron-core"}
SERVERS = ("sglang", "vllm")


@dataclass(frozen=True)
class Feature:
    """One thing that a machine has or lacks.

    Attributes:
        name: a word or two.
        found: what is there; where it is missing, what there is instead.
        costs: what can't be had, or goes badly; empty where nothing is missing.
        mend: what to do, a command where there is one.
    """

    name: str
    found: str
    costs: str = ""
    mend: str = ""

    def __str__(self) -> str:
        if not self.costs:
            return f"ok       {self.name}: {self.found}"
        return f"missing  {self.name}: {self.found}; without it: {self.costs}; {self.mend}"


def find_features(folder: Path) -> Iterator[Feature]:
    """Yield the features of this machine, those first that all else needs."""
    yield _python()
    yield _torch()
    yield from map(_package, EXTRAS)
    for name in SERVERS:
        if importlib.util.find_spec(name) is not None:
            yield Feature(name, importlib.metadata.version(name))
        else:
            mend = "install it in an environment of its own, and name that by engine.python=… (docs/engines.md)"
            yield Feature(name, "not in this environment", f"engine={name}, unless engine.python names one", mend)
    yield _docker()
    yield _chromium()
    yield _compiler()
    yield _memory()
    yield from _disks(folder)
    yield _temporary_files()
    yield _open_files()
    yield from (find_port(port, command) for port, command in PORTS.items())


def _python() -> Feature:
    version, name = tuple(map(int, platform.python_version_tuple()[:2])), platform.python_version()
    if PYTHONS[0] <= version <= PYTHONS[1]:
        return Feature("Python", name)
    least, most = (".".join(map(str, each)) for each in PYTHONS)
    return Feature("Python", name, "a version that is tested", f"use one from {least} to {most}")


def _torch() -> Feature:
    if importlib.util.find_spec("torch") is None:
        return Feature("torch", "not installed", "training and engine=local", install_command("train"))
    try:
        import torch
    except Exception as error:  # a library of its own that is missing, or another file of that name
        place = importlib.util.find_spec("torch")
        found = f"{place.origin if place else 'torch'} can't be imported ({type(error).__name__}: {brief(error)})"
        mend = "install it anew, and name no file of yours torch.py"
        return Feature("torch", found, "training and engine=local", mend)

    gpus = query_gpus("name,driver_version")
    if torch.cuda.is_available():
        return Feature("torch", f"{torch.__version__}, {torch.cuda.device_count()} x {torch.cuda.get_device_name()}")
    if gpus:
        found = f"{torch.__version__} sees no GPU, and nvidia-smi shows {len(gpus)} x {gpus[0]}"
        return Feature("torch", found, "the GPU", "install the build of torch that fits this driver's CUDA")
    return Feature("torch", f"{torch.__version__} on {len(cores.list_allowed())} CPUs, no GPU")


def _package(name: str) -> Feature:
    extra, costs = EXTRAS[name]
    if importlib.util.find_spec(name) is None:
        return Feature(name, "not installed", costs, install_command(extra))
    try:
        return Feature(name, importlib.metadata.version(DISTRIBUTIONS.get(name, name)))
    except importlib.metadata.PackageNotFoundError:
        return Feature(name, "there, without a version")


def _docker() -> Feature:
    costs = "sandboxes (env=swe, env=terminal)"
    if importlib.util.find_spec("docker") is None:
        return Feature("Docker", "no package `docker`", costs, install_command("docker"))
    from agentrl.tools.sandbox.docker import daemon
    from agentrl.tools.sandbox.runner.transport import default_daemon

    if daemon.available():
        return Feature("Docker", f"the daemon at {default_daemon()} answers")
    mend = "start it (systemctl start docker), or name one by DOCKER_HOST; sandbox=remote uses another machine's"
    return Feature("Docker", f"no daemon answers at {default_daemon()}", costs, mend)


def _chromium() -> Feature:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if importlib.util.find_spec("playwright") is None:
        return Feature("browser", "no package `playwright`", "env.browser=chromium", install_command("browser"))
    if program is None:
        return Feature("browser", "no Chromium", "env.browser=chromium", "playwright install chromium")
    return Feature("browser", program)


def _compiler() -> Feature:
    program = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if program is None:
        return Feature(
            "C compiler", "none", "sandboxes that aren't built yet, env=code", "apt-get install gcc libc6-dev"
        )
    return Feature("C compiler", program)


def _memory() -> Feature:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = Path(file).read_text().strip() if Path(file).is_file() else "max"
        memory = min(memory, int(limit)) if limit.isdigit() else memory
    if memory < LEAST_MEMORY:
        mend = f"give the machine or container {LEAST_MEMORY // GIB} GiB"
        return Feature("memory", _size(memory), "anything over model=tiny", mend)
    return Feature("memory", _size(memory))


def _disks(folder: Path) -> Iterator[Feature]:
    for name, place, least, costs, mend in (
        ("disk", folder, LEAST_DISK, "checkpoints", "make room, or name another folder by run_dir="),
        ("cache", cache_dir(), 0, "compiled helpers and fetched models", "XDG_CACHE_HOME=FOLDER names another"),
        (
            "/dev/shm",
            Path("/dev/shm"),
            LEAST_SHARED,
            "weights by shared memory, cluster=ray",
            "docker run --shm-size=8g",
        ),
    ):
        there = next((each for each in (place, *place.absolute().parents) if each.is_dir()), None)
        if there is None or not _can_be_written(there):
            yield Feature(name, f"{place} can't be written", costs, mend)
        elif (free := shutil.disk_usage(there).free) < least:
            yield Feature(name, f"{_size(free)} free in {place}, less than {_size(least)}", costs, mend)
        else:
            yield Feature(name, f"{_size(free)} free in {place}")


def _temporary_files() -> Feature:
    """Name their folder: Python passes over a TMPDIR that it can't write, and says nothing."""
    name, asked = "temporary files", os.environ.get("TMPDIR")
    try:
        used = tempfile.gettempdir()
    except FileNotFoundError:
        costs = "sandboxes, tools and servers that write some"
        return Feature(name, "no folder for them can be written", costs, "TMPDIR=FOLDER names one")
    if asked and not _can_be_written(Path(asked)):
        mend = "make that folder, or name another by TMPDIR=FOLDER"
        return Feature(name, f"TMPDIR={asked} can't be written, and {used} is used", "the folder that was meant", mend)
    return Feature(name, f"{_size(shutil.disk_usage(used).free)} free in {used}")


def _can_be_written(folder: Path) -> bool:
    """Return whether a file can be made there; permissions alone don't say so to root, and not of a read-only disk."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _open_files() -> Feature:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        return Feature("open files", f"at most {soft}", "thousands of sessions at once", f"ulimit -n {LEAST_FILES}")
    return Feature("open files", f"at most {soft}")


def find_port(port: int, command: str) -> Feature:
    """Say whether a command could listen at its port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return Feature(f"port {port}", "taken", f"{command} as it is", "port=0 takes a free one")
    return Feature(f"port {port}", "free")


def _size(number: int) -> str:
    return f"{number / GIB:.3g} GiB"
