from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from agentrl.tools.sandbox.docker.hardening import audit, container_config
from agentrl.tools.sandbox.runner.build import runner_binary, seccomp_profile
from agentrl.tools.sandbox.spec import SandboxSpec


def test_the_default_is_not_loosened() -> None:
    assert SandboxSpec().loosened == ()


@pytest.mark.parametrize(
    "field",
    [
        {"network": "bridge"},
        {"writable_root": True},
        {"capabilities": ("NET_ADMIN",)},
        {"seccomp": "unconfined"},
        {"seccomp": "docker"},
        {"privilege_gain": True},
        {"user": "0:0"},
        {"user": "root"},
    ],
)
def test_every_loosening_is_named(field: dict[str, Any]) -> None:
    assert [entry.split("=")[0] for entry in SandboxSpec(**field).loosened] == list(field)


def test_an_unbounded_layer_is_a_loosening_of_its_own() -> None:
    assert len(SandboxSpec(writable_root=True, disk_mb=None).loosened) == 2


def test_writable_trees_must_fit_into_memory_or_a_full_one_would_kill_the_runner() -> None:
    with pytest.raises(ValidationError, match=r"memory_mb=128.*416"):
        SandboxSpec(memory_mb=128)


def test_commands_must_start_somewhere_writable() -> None:
    with pytest.raises(ValidationError, match="workdir='/opt'"):
        SandboxSpec(workdir="/opt")


@pytest.mark.parametrize("entry", ["example.org", "example.org:", "a b:1", "http://x:80", ":80", "*.*:443"])
def test_an_egress_entry_is_a_host_and_a_port(entry: str) -> None:
    with pytest.raises(ValidationError):
        SandboxSpec(egress=(entry,))


def test_equal_specifications_share_a_key_and_others_do_not() -> None:
    assert SandboxSpec(env={"a": "1"}).key == SandboxSpec(env={"a": "1"}).key
    assert SandboxSpec(env={"a": "1"}).key != SandboxSpec(env={"a": "2"}).key


def inspection(spec: SandboxSpec) -> dict[str, Any]:
    """What a daemon that does as it is told would show."""
    body = container_config(spec, {})
    mounts = [
        {"Type": m["Type"], "Source": m["Source"], "Destination": m["Target"], "RW": not m["ReadOnly"]}
        for m in body["HostConfig"]["Mounts"]
    ]
    host = {"Privileged": False, **body["HostConfig"]}
    return {"HostConfig": host, "Config": {"User": body["User"]}, "Mounts": mounts, "Path": body["Cmd"][0], "Args": []}


WEAKENED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "network": lambda i: i["HostConfig"].update(NetworkMode="bridge"),
    "capabilities dropped": lambda i: i["HostConfig"].update(CapAdd=["SYS_ADMIN"]),
    "not privileged": lambda i: i["HostConfig"].update(Privileged=True),
    "no new privileges": lambda i: i["HostConfig"]["SecurityOpt"].pop(0),
    "seccomp": lambda i: i["HostConfig"]["SecurityOpt"].pop(1),
    "read-only root": lambda i: i["HostConfig"].update(ReadonlyRootfs=False),
    "user": lambda i: i["Config"].update(User="0"),
    "memory": lambda i: i["HostConfig"].update(MemorySwap=-1),
    "cpus": lambda i: i["HostConfig"].update(NanoCpus=0),
    "processes": lambda i: i["HostConfig"].update(PidsLimit=None),
    "file size": lambda i: i["HostConfig"]["Ulimits"].pop(0),
    "descriptors": lambda i: i["HostConfig"]["Ulimits"].pop(1),
    "no core files": lambda i: i["HostConfig"]["Ulimits"].pop(2),
    "shared memory": lambda i: i["HostConfig"].update(ShmSize=1 << 40),
    "sized tmpfs": lambda i: i["HostConfig"]["Tmpfs"].update({"/work": "rw"}),
    "init": lambda i: i.update(Path="/bin/sh"),
    "no host mounts": lambda i: i["Mounts"].append(
        {"Type": "bind", "Source": "/var/run/docker.sock", "Destination": "/var/run/docker.sock", "RW": True}
    ),
    "no devices": lambda i: i["HostConfig"].update(Devices=[{"PathOnHost": "/dev/sda"}]),
    "own namespaces": lambda i: i["HostConfig"].update(PidMode="host"),
}


@pytest.mark.parametrize("promise", WEAKENED)
def test_the_audit_notices_a_violated_requirement(promise: str) -> None:
    spec = SandboxSpec()
    shown = copy.deepcopy(inspection(spec))
    assert audit(shown, spec) == []
    WEAKENED[promise](shown)
    assert audit(shown, spec) == [promise]


def test_the_seccomp_profile_allows_by_name_and_refuses_the_dangerous() -> None:
    profile = json.loads(seccomp_profile())
    always = {
        name
        for rule in profile["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("args")
        for name in rule["names"]
    }
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert {"read", "execve", "futex", "wait4"} <= always
    dangerous = (
        "ptrace mount umount2 unshare setns bpf keyctl add_key io_uring_setup userfaultfd perf_event_open kexec_load"
    )
    for name in [*dangerous.split(), "init_module", "reboot", "pidfd_getfd", "process_vm_writev", "clone", "prlimit64"]:
        assert name not in always, name


def test_the_runner_is_compiled_once_and_found_again() -> None:
    program = runner_binary()
    assert program.stat().st_mode & 0o777 == 0o555
    runner_binary.cache_clear()
    changed = program.stat().st_mtime_ns
    assert runner_binary() == program
    assert program.stat().st_mtime_ns == changed
