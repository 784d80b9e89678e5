"""A specification as the daemon's settings, and an audit that a container has them.

`host_config` is what is requested; `audit` reads the daemon's inspection of the container and lists every setting that
it does not find there. Both are written out, rather than one derived from the other, so that a mistake in the first is
caught by the second.
"""

from __future__ import annotations

import itertools
import json
import secrets
from typing import Any

from agentrl.tools.sandbox.runner.build import runner_binary, seccomp_profile
from agentrl.tools.sandbox.spec import AUTO, SandboxSpec
from agentrl.tools.threads import in_forked_child

RUNNER_DIR = "/.agentrl"
RUNNER = f"{RUNNER_DIR}/agentrl-runner"
MB = 1 << 20
IDLE = ("/bin/sh", "-c", "trap '' TERM; while :; do sleep 3600 & wait $!; done")
"""Keeps a container without a runner alive, and reaps: as the first process it can't be killed from inside. Docker's
own init would not do: the process that it starts can be killed, and the container with it."""

NO_TRACES = {"net.ipv4.tcp_max_tw_buckets": "0", "net.ipv4.tcp_no_metrics_save": "1", "net.ipv4.tcp_fastopen": "0"}
"""Kernel settings that keep nothing of closed connections; with a loopback alone nobody needs that."""

RANGE = range(1 << 20, 1 << 21)
"""The ids of users, one for each sandbox, cycled through from a random position: the kernel limits many resources per
user and not per container (inotify instances, pipe and message-queue memory, pending signals, descriptors in flight).
They need no account, are above those of ordinary ones, and fit into seven octal digits of an archive's header."""
REMAPPED = range(10_000, 60_000)
"""Ids where the daemon maps users (rootless, or userns-remap), which gives a container 65,536 of them."""
_numbers = itertools.count(secrets.randbelow(len(RANGE)))


@in_forked_child
def _begin_elsewhere() -> None:
    global _numbers
    _numbers = itertools.count(secrets.randbelow(len(RANGE)))


def own_user(remapped: bool = False) -> str:
    """A user that no other sandbox of this process has, as uid:gid."""
    ids = REMAPPED if remapped else RANGE
    number = ids[next(_numbers) % len(ids)]
    return f"{number}:{number}"


def is_own(user: str) -> bool:
    """Return whether a user may come from `own_user`."""
    uid, _, gid = user.partition(":")
    return uid == gid and uid.isdigit() and (int(uid) in RANGE or int(uid) in REMAPPED)


def host_config(spec: SandboxSpec) -> dict[str, Any]:
    """The HostConfig of the daemon's create call."""
    security = []
    if not spec.privilege_gain:
        security.append("no-new-privileges:true")
    if spec.seccomp != "docker":
        security.append(f"seccomp={seccomp_profile() if spec.seccomp == 'strict' else 'unconfined'}")
    uid, _, gid = spec.user.partition(":")
    owner = f"uid={uid},gid={gid or uid}," if uid.isdigit() else ""
    config: dict[str, Any] = {
        "NetworkMode": spec.network,
        "CapDrop": ["ALL"],
        "CapAdd": list(spec.capabilities),
        "SecurityOpt": security,
        "ReadonlyRootfs": not spec.writable_root,
        "Tmpfs": {
            tree: f"rw,nosuid,nodev,exec,{owner}mode=0755,size={size}m,nr_inodes={size * 256}"
            for tree, size in spec.tmpfs_mb.items()
        },
        "ShmSize": spec.shm_mb * MB,
        "Memory": spec.memory_mb * MB,
        "MemorySwap": spec.memory_mb * MB,
        "NanoCpus": int(spec.cpus * 1e9),
        "PidsLimit": spec.pids,
        "OomScoreAdj": 500,
        "Ulimits": [
            {"Name": "fsize", "Soft": spec.file_mb * MB, "Hard": spec.file_mb * MB},
            {"Name": "nofile", "Soft": spec.nofile, "Hard": spec.nofile},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "memlock", "Soft": MB, "Hard": MB},
        ],
        "Sysctls": {
            "kernel.shmall": str(spec.shm_mb * 256),
            "kernel.msgmni": "16",
            "kernel.sem": "64 256 32 16",
            **(NO_TRACES if spec.network == "none" else {}),
        },
        "Mounts": [],
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "Init": False,
    }
    if spec.runner == "mount":
        source = str(runner_binary().parent)
        config["Mounts"] = [{"Type": "bind", "Source": source, "Target": RUNNER_DIR, "ReadOnly": True}]
    if spec.writable_root and spec.disk_mb is not None:
        config["StorageOpt"] = {"size": f"{spec.disk_mb}m"}
    if spec.runtime:
        config["Runtime"] = spec.runtime
    return config


def container_config(spec: SandboxSpec, labels: dict[str, str], remapped: bool = False) -> dict[str, Any]:
    """The whole body of the daemon's create call.

    Args:
        spec: the specification; where its user is `auto`, the container gets a unique one.
        labels: the container's.
        remapped: whether the daemon maps users, so that there are only 65,536.
    """
    resident = spec.runner != "none"
    variables = {"HOME": spec.workdir}
    if spec.user == AUTO:
        spec = spec.model_copy(update={"user": own_user(remapped)})
        variables |= {"USER": "agent", "LOGNAME": "agent"}
    variables |= spec.env
    return {
        "Image": spec.image,
        "User": spec.user,
        "Entrypoint": [],
        "Cmd": [RUNNER] if resident else list(IDLE),
        "Env": [f"{key}={value}" for key, value in variables.items()],
        "WorkingDir": "/",
        "Labels": labels,
        "Tty": False,
        "OpenStdin": resident,
        "StdinOnce": resident,
        "AttachStdin": resident,
        "AttachStdout": resident,
        "AttachStderr": resident,
        "NetworkDisabled": spec.network == "none",
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host_config(spec),
    }


def audit(inspection: dict[str, Any], spec: SandboxSpec) -> list[str]:
    """The settings of a specification that a container's inspection does not show; empty where it has all."""
    host, config = inspection["HostConfig"], inspection["Config"]
    limits = {limit["Name"]: limit["Hard"] for limit in host.get("Ulimits") or []}
    security = host.get("SecurityOpt") or []
    mounts = [m for m in inspection.get("Mounts") or [] if m.get("Type") != "tmpfs"]
    runner_mounts = [m for m in mounts if m["Destination"] == RUNNER_DIR and m["Type"] == "bind" and not m["RW"]]
    first = [inspection.get("Path"), *(inspection.get("Args") or [])]
    tmpfs = host.get("Tmpfs") or {}
    settings = {
        "network": host["NetworkMode"] == spec.network,
        "capabilities dropped": host.get("CapDrop") == ["ALL"]
        and sorted(host.get("CapAdd") or []) == sorted(spec.capabilities),
        "not privileged": host.get("Privileged") is False,
        "no new privileges": spec.privilege_gain or "no-new-privileges:true" in security,
        "seccomp": _has_seccomp(security, spec),
        "read-only root": host.get("ReadonlyRootfs") is (not spec.writable_root),
        "bounded layer": not spec.writable_root
        or spec.disk_mb is None
        or host.get("StorageOpt", {}).get("size") == f"{spec.disk_mb}m",
        "user": is_own(config["User"]) if spec.user == AUTO else config["User"] == spec.user,
        "memory": host["Memory"] == host["MemorySwap"] == spec.memory_mb * MB,
        "cpus": host["NanoCpus"] == int(spec.cpus * 1e9),
        "processes": host["PidsLimit"] == spec.pids,
        "file size": limits.get("fsize") == spec.file_mb * MB,
        "descriptors": limits.get("nofile") == spec.nofile,
        "no core files": limits.get("core") == 0,
        "shared memory": host["ShmSize"] == spec.shm_mb * MB,
        "sized tmpfs": set(tmpfs) == set(spec.tmpfs_mb)
        and all(f"size={size}m" in tmpfs[tree] and "nr_inodes=" in tmpfs[tree] for tree, size in spec.tmpfs_mb.items()),
        "init": bool(host.get("Init")) or first == ([RUNNER] if spec.runner != "none" else list(IDLE)),
        "no host mounts": mounts == runner_mounts and not host.get("Binds") and not host.get("VolumesFrom"),
        "no devices": not host.get("Devices") and not host.get("DeviceRequests"),
        "own namespaces": host.get("PidMode", "") == ""
        and host.get("IpcMode") == "private"
        and not host.get("UTSMode"),
        "runtime": spec.runtime is None or host.get("Runtime") == spec.runtime,
    }
    return [name for name, kept in settings.items() if not kept]


def _has_seccomp(security: list[str], spec: SandboxSpec) -> bool:
    given = [option.partition("=")[2] for option in security if option.startswith("seccomp=")]
    if spec.seccomp == "docker":
        return not given
    if spec.seccomp == "unconfined":
        return given == ["unconfined"]
    return (
        len(given) == 1 and given[0] not in ("", "unconfined") and json.loads(given[0]) == json.loads(seccomp_profile())
    )
