"""The specification of a sandbox: frozen, hardened by default.

Whatever makes a sandbox weaker than the default is a field of its own, is listed by `loosened`, and is logged when
such a sandbox is created. Everything that a command can write to is a sized tmpfs or a bounded layer, and their sum is
below the memory limit: else a full tmpfs would leave the kernel no process to kill but the runner, and a command could
end its sandbox.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from agentrl.config import Section
from agentrl.tools.sandbox.base import DEFAULT_IMAGE

AUTO = "auto"
Allowed = Annotated[str, Field(pattern=r"^(\*\.)?[A-Za-z0-9.-]+:\d{1,5}$")]


class SandboxSpec(Section):
    """One kind of sandbox. Sandboxes of equal specifications are interchangeable."""

    image: str = DEFAULT_IMAGE
    """The image; `sandboxes/make-base.sh` makes the default one."""
    user: str = AUTO
    """The user of commands and of the runner: uid:gid, or auto, a unique uid for each sandbox, since the kernel limits
    many resources per user; the image's passwd file has no name for it, $USER has."""
    workdir: str = "/work"
    """The folder in which commands start; one of the writable trees."""
    shell: tuple[str, ...] = ("bash", "-c")
    """The program that runs a command line; `sh -c` where the image has no such shell."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables besides the image's own."""

    memory_mb: PositiveInt = 1024
    """Memory, the writable trees included; swap is never added."""
    cpus: PositiveFloat = 1.0
    """Cores."""
    pids: PositiveInt = 256
    """Processes and threads, the runner and a supervisor for each command included."""
    nofile: PositiveInt = 1024
    """Open descriptors of a process."""
    file_mb: PositiveInt = 256
    """The longest file."""
    tmpfs_mb: dict[str, PositiveInt] = Field(default_factory=lambda: {"/work": 256, "/tmp": 128})
    """The writable trees and their sizes; each also has a limit of 256 files and directories for each megabyte."""
    shm_mb: PositiveInt = 16
    """Shared memory: /dev/shm, and System V segments as much again."""

    timeout: PositiveFloat = 60.0
    """Seconds of a command, where the caller does not say."""
    output_bytes: PositiveInt = 64 << 10
    """Bytes kept of each of a command's outputs, where the caller does not say."""
    start_timeout: PositiveFloat = 60.0
    """Seconds until a new sandbox has to answer."""
    lifetime: PositiveFloat = 4 * 3600.0
    """Seconds after which a sandbox ends, in use or not."""
    lease: PositiveFloat = 300.0
    """Seconds without a frame from its controller after which a runner ends its sandbox."""

    daemon: str | None = None
    """The Docker daemon's address; None is DOCKER_HOST or the usual socket."""
    runner: Literal["mount", "image", "none"] = "mount"
    """The source of the runner: a read-only mount, the image (/.agentrl/agentrl-runner), or plain exec instead."""
    runtime: str | None = None
    """The OCI runtime, such as runsc (gVisor) or kata; None is the daemon's own."""
    egress: tuple[Allowed, ...] = ()
    """host:port pairs (or *.domain:port) that may be reached, through a proxy outside; there is still no network."""

    network: str = "none"
    """Loosening: a Docker network for the container."""
    writable_root: bool = False
    """Loosening: the image's root file system can be written to, in a layer of `disk_mb`."""
    disk_mb: PositiveInt | None = 1024
    """Size of that layer. None is unbounded, a loosening of its own where the storage driver has no quotas."""
    capabilities: tuple[str, ...] = ()
    """Loosening: Linux capabilities left to commands."""
    seccomp: Literal["strict", "docker", "unconfined"] = "strict"
    """Loosening: Docker's own profile, or none."""
    privilege_gain: bool = False
    """Loosening: set-uid programs work."""

    @model_validator(mode="after")
    def _fits(self) -> SandboxSpec:
        writable = sum(self.tmpfs_mb.values()) + 2 * self.shm_mb
        if writable + 16 > self.memory_mb:
            raise ValueError(
                f"memory_mb={self.memory_mb} must exceed the writable trees by 16: "
                f"tmpfs_mb and twice shm_mb are {writable}"
            )
        if not self.writable_root and not any(below(self.workdir, tree) for tree in self.tmpfs_mb):
            raise ValueError(f"workdir={self.workdir!r} is in none of the writable trees {sorted(self.tmpfs_mb)}")
        if self.timeout >= self.lifetime:
            raise ValueError(f"deadlines must nest: timeout {self.timeout:g} < lifetime {self.lifetime:g} (seconds)")
        return self

    @property
    def loosened(self) -> tuple[str, ...]:
        """The settings that are weaker than the default, as `field=value`."""
        found = []
        for field in ("network", "writable_root", "capabilities", "seccomp", "privilege_gain"):
            value = getattr(self, field)
            if value != type(self).model_fields[field].default:
                found.append(f"{field}={value!r}")
        if self.writable_root and self.disk_mb is None:
            found.append("disk_mb=None")
        if self.user.split(":")[0] in ("0", "root", ""):
            found.append(f"user={self.user!r}")
        return tuple(found)

    @property
    def key(self) -> str:
        """A short name for all specifications equal to this one."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    @property
    def trees(self) -> tuple[str, ...]:
        """The writable trees, outermost first."""
        return tuple(sorted(self.tmpfs_mb))


def below(path: str, tree: str) -> bool:
    """Return whether a path is the directory `tree`, or below that."""
    return path == tree or path.startswith(tree.rstrip("/") + "/")
