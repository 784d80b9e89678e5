"""What every backend does, and what docker's does besides; on the real daemon."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import time
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, DeadlineExceeded, MissingExtra, ToolArguments
from agentrl.tools.sandbox.base import Outcome, PathError
from agentrl.tools.sandbox.conformance import check_sandbox
from agentrl.tools.sandbox.docker.backend import DockerSandbox, create_docker
from agentrl.tools.sandbox.docker.hardening import audit
from agentrl.tools.sandbox.docker.plain import PlainSandbox
from agentrl.tools.sandbox.local import create_subprocess
from agentrl.tools.sandbox.runner.build import assets
from agentrl.tools.sandbox.spec import SandboxSpec
from tests.tools.sandbox.conftest import SMALL, TINY, Make


@pytest.mark.slow
async def test_the_subprocess_backend_conforms_and_says_that_it_isolates_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    verdicts = await check_sandbox("subprocess")
    assert [v for v in verdicts if not v.ok] == []
    assert sum("isolates nothing" in record.message for record in caplog.records) == 3, "one made, and two forked"


@pytest.mark.slow
async def test_the_runner_makes_no_memory_error_while_it_conforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "agentrl-runner"
    flags = ["-g", "-O1", "-std=gnu11", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = [str(source) for source in (assets() / "runner").glob("*.c")]
    await asyncio.to_thread(subprocess.run, ["gcc", *flags, "-o", str(program), *sources], check=True)
    monkeypatch.setattr("agentrl.tools.sandbox.local.runner_binary", lambda: program)
    assert [v for v in await check_sandbox("subprocess") if not v.ok] == []
    assert "Sanitizer" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(SMALL, id="debian"),
        pytest.param(TINY, id="an image without Python, bash or libc", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
async def test_the_docker_backend_conforms(spec: SandboxSpec, docker: None) -> None:
    assert [v for v in await check_sandbox("docker", spec) if not v.ok] == []


@pytest.mark.slow
async def test_plain_exec_is_used_where_the_runner_can_not_start_and_a_warning_says_so(
    docker: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> Path:
        raise MissingExtra("the sandbox runner needs a C compiler once, and finds none")

    monkeypatch.setattr("agentrl.tools.sandbox.docker.backend._without_runner", {})
    monkeypatch.setattr("agentrl.tools.sandbox.docker.hardening.runner_binary", missing)
    verdicts = await check_sandbox("docker", SMALL)
    broken = {v.requirement: v.detail for v in verdicts if not v.ok}
    assert list(broken) == [
        "A background process runs beside commands, and ends with everything it started when stopped",
        "A reset removes all files and processes, and leaves a writable working directory",
    ], broken
    assert any("plain docker exec is used" in record.message for record in caplog.records)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a program of another machine", "a folder that the daemon does not see"])
async def test_a_runner_that_can_not_be_executed_or_mounted_is_replaced_by_plain_exec(
    what: str, docker: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "agentrl-runner"
    program.write_bytes(b"\x7fELF of another world")
    program.chmod(0o555)
    if "folder" in what:
        program = Path("/nowhere/on/this/machine/agentrl-runner")
    monkeypatch.setattr("agentrl.tools.sandbox.docker.backend._without_runner", {})
    monkeypatch.setattr("agentrl.tools.sandbox.docker.hardening.runner_binary", lambda: program)
    sandbox = await create_docker(SMALL)
    try:
        assert isinstance(sandbox, PlainSandbox)
        assert (await sandbox.exec("echo plain")).stdout == b"plain\n"
        assert any("plain docker exec is used" in record.message for record in caplog.records)
    finally:
        await sandbox.close()


@pytest.mark.slow
async def test_plain_exec_keeps_the_same_hardening_and_survives_a_timeout(docker: None) -> None:
    sandbox = await create_docker(SMALL.model_copy(update={"runner": "none"}))
    assert isinstance(sandbox, PlainSandbox)
    try:
        assert audit(await sandbox.inspect(), sandbox.spec) == []
        assert (await sandbox.exec("setsid sleep 300 & sleep 300", timeout=1)).outcome is Outcome.TIMEOUT
        assert (await sandbox.exec("until [ $(ps -eo comm | grep -c sleep) -le 1 ]; do :; done")).ok
        assert await sandbox.healthy()
    finally:
        await sandbox.close()


async def test_a_missing_image_is_the_configurations_fault_and_says_how_to_get_it(docker: None) -> None:
    from agentrl.tools.sandbox.docker.images import require

    with pytest.raises(ConfigError, match="not there"):
        await create_docker(SandboxSpec(image="agentrl/nowhere:none"))
    with pytest.raises(ConfigError, match=r"make-base\.sh"):
        await require("agentrl/nowhere:none")


async def test_an_unknown_runtime_is_the_configurations_fault(docker: None) -> None:
    with pytest.raises(ConfigError, match="runtime='runsc-not-here'"):
        await create_docker(SMALL.model_copy(update={"runtime": "runsc-not-here"}))


async def test_no_daemon_is_said_in_one_line() -> None:
    from agentrl.tools.sandbox.base import DaemonError

    with pytest.raises(DaemonError, match="no Docker daemon at unix:///nowhere"):
        await create_docker(SandboxSpec(daemon="unix:///nowhere/docker.sock"))


@pytest.mark.slow
async def test_a_loosening_is_logged_when_such_a_sandbox_is_made(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    spec = SMALL.model_copy(update={"user": "0:0", "env": {"n": str(time.time())}})
    with caplog.at_level(logging.WARNING):
        sandbox = await asyncio.to_thread(make, spec)
    assert any("weaker than the default: user='0:0'" in record.message for record in caplog.records)
    assert (await sandbox.exec("id -u")).stdout == b"0\n"
    assert (await sandbox.exec("mount -t tmpfs x /mnt")).exit_code != 0


@pytest.mark.slow
async def test_cancelling_a_command_kills_its_tree(shared: DockerSandbox) -> None:
    task = asyncio.ensure_future(shared.exec("echo $$ > pid; sleep 300 & sleep 300"))
    assert (await shared.exec("until [ -s pid ]; do sleep 0.01; done")).ok
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await shared.exec("while kill -0 $(cat pid); do sleep 0.01; done")
    assert b"No such process" in (await shared.exec("kill -0 $(cat pid); rm pid")).stderr


async def test_sandboxes_serve_any_event_loop(shared: DockerSandbox) -> None:
    def elsewhere() -> bytes:
        return asyncio.run(shared.exec("echo from another loop")).stdout

    assert await asyncio.to_thread(elsewhere) == b"from another loop\n"
    assert (await shared.exec("echo here")).stdout == b"here\n"


@pytest.mark.slow
async def test_what_the_caller_did_wrong_is_not_the_sandboxs_fault(shared: DockerSandbox) -> None:
    with pytest.raises(ToolArguments, match="empty"):
        await shared.exec("  ")
    with pytest.raises(PathError, match="NUL"):
        await shared.exec(["a\0b"])
    for path, word in (("/", "directory"), ("/etc/shadow", "denied"), ("/nowhere/x", "No such file")):
        with pytest.raises(PathError, match=word):
            await shared.read(path)
    with pytest.raises(PathError, match="Read-only"):
        await shared.write("/etc/x", "x")
    with pytest.raises(PathError, match="too large"):
        await shared.write("big", b"x" * (25 << 20))
    await shared.write("big1", b"x" * (20 << 20))
    with pytest.raises(PathError, match="No space"):
        await shared.write("big2", b"x" * (20 << 20))
    assert (await shared.exec("rm -f big*; ls -A")).stdout == b""


async def test_a_background_process_is_waited_for_no_longer_than_requested(shared: DockerSandbox) -> None:
    process = await shared.start("trap 'echo terminated; exit 3' TERM; touch ready; while :; do sleep 0.05; done")
    with pytest.raises(DeadlineExceeded):
        await process.wait(0.1)
    assert (await shared.exec("until [ -e ready ]; do sleep 0.01; done; rm ready")).ok
    result = await process.stop(grace=60)
    assert (result.stdout, result.exit_code) == (b"terminated\n", 3)


@pytest.mark.slow
async def test_a_closed_sandbox_leaves_no_container(make: Make) -> None:
    from agentrl.tools.sandbox.docker.reaper import find

    sandbox = await asyncio.to_thread(make, SMALL)
    assert sandbox.id in {one.id for one in await find()}
    await sandbox.close()
    assert sandbox.id not in {one.id for one in await find()}


@pytest.mark.slow
async def test_the_runner_ends_with_its_controllers_connection(make: Make) -> None:
    from agentrl.tools.sandbox.runner.loop import on_loop

    sandbox = await asyncio.to_thread(make, SMALL)

    async def cut() -> None:
        sandbox.client.close()

    await on_loop(cut())
    async with asyncio.timeout(60):
        while (await sandbox.inspect())["State"]["Status"] != "exited":  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_lifetime_ends_a_sandbox_in_any_state() -> None:
    from agentrl.tools.sandbox.base import SandboxDied

    sandbox = await create_subprocess(SandboxSpec(timeout=0.2, lifetime=0.3))
    try:
        await asyncio.sleep(0.4)
        with pytest.raises(SandboxDied, match="lifetime"):
            await sandbox.exec("true")
    finally:
        await sandbox.close()
