"""Images, and the command line's thin layer over the library."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from agentrl.envs.sandboxes import Supplier
from agentrl.errors import InvalidInput
from agentrl.tools.sandbox.base import DaemonError
from agentrl.tools.sandbox.commands import app, check_sandbox
from agentrl.tools.sandbox.conformance import CHECKS
from agentrl.tools.sandbox.docker import images
from agentrl.tools.sandbox.docker.daemon import daemon
from agentrl.tools.sandbox.docker.hardening import audit
from agentrl.tools.sandbox.runner.build import runner_binary
from tests.tools.sandbox.conftest import SMALL, TINY, Make

runner = CliRunner()


@pytest.fixture
def dockerfile(tmp_path: Path) -> Path:
    (tmp_path / "Dockerfile").write_text(f"FROM {TINY.image}\nENV GREETING=hello\nLABEL agentrl.test=1\n")
    return tmp_path


@pytest.mark.slow
async def test_an_image_is_built_with_progress_and_serves_sandboxes(docker: None, dockerfile: Path, make: Make) -> None:
    lines: list[str] = []
    tag = "agentrl/test-build:latest"
    try:
        await images.build(dockerfile, tag, lines.append)
        assert any("ENV GREETING" in line for line in lines)
        assert await images.image_id(tag)
        sandbox = await asyncio.to_thread(make, TINY.model_copy(update={"image": tag}))
        assert (await sandbox.exec("echo $GREETING")).stdout == b"hello\n"
        await sandbox.close()
    finally:
        daemon().api.remove_image(tag, force=True)


@pytest.mark.slow
async def test_files_of_an_image_that_a_writable_tree_hides_are_told(
    docker: None, dockerfile: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A task's files under /work were not there, and nobody said why."""
    tag = "agentrl/test-hidden:latest"
    (dockerfile / "Dockerfile").write_text(f"FROM {TINY.image}\nCOPY Dockerfile /work/\nCOPY Dockerfile /tmp/\n")
    try:
        await images.build(dockerfile, tag)
        assert await images.find_hidden(tag, ["/tmp", "/work", "/nowhere"]) == ["/work"]
        supplier = Supplier("docker")
        for image in (SMALL.image, TINY.image, tag, tag):
            await supplier.check(TINY.model_copy(update={"image": image}))
        (told,) = [record.getMessage() for record in caplog.records if "writable tree" in record.getMessage()]
        assert f"at /work (tmpfs_mb), where the image {tag} has files" in told
    finally:
        daemon().api.remove_image(tag, force=True)


async def test_a_step_that_fails_is_named(docker: None, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {TINY.image}\nCOPY nowhere /x\n")
    with pytest.raises(DaemonError, match=r"building agentrl/test-broken failed.*nowhere"):
        await images.build(tmp_path, "agentrl/test-broken")


async def test_a_folder_without_a_dockerfile_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has no Dockerfile"):
        await images.build(tmp_path, "x")


@pytest.mark.slow
def test_list_shows_whose_sandboxes_there_are_and_reap_leaves_the_living(make: Make) -> None:
    sandbox = make(TINY)
    listed = runner.invoke(app, ["list"])
    assert listed.exit_code == 0, listed.output
    line = next(line for line in listed.output.splitlines() if sandbox.id[:12] in line)
    assert "running" in line
    assert "(alive)" in line
    reaped = runner.invoke(app, ["reap", "--dry-run"])
    assert reaped.exit_code == 0
    assert sandbox.id[:12] not in reaped.output


def test_without_a_daemon_a_command_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    error = runner.invoke(app, ["list"]).exception
    assert isinstance(error, DaemonError)
    assert str(error).startswith("no Docker daemon at unix:///nowhere/docker.sock")
    assert "\n" not in str(error)


@pytest.mark.slow
def test_check_prints_a_line_for_each_requirement() -> None:
    out = Console(record=True, width=200)
    assert check_sandbox("subprocess", {}, out)
    lines = out.export_text().splitlines()
    assert len(lines) == len(CHECKS) + 2
    assert all(line.startswith("✓") for line in lines)


@pytest.mark.slow
async def test_an_image_can_bring_the_runner_itself(docker: None, tmp_path: Path, make: Make) -> None:
    """So that a daemon elsewhere, which can't mount a folder of this machine, has it too."""
    shutil.copy(runner_binary(), tmp_path / "agentrl-runner")
    (tmp_path / "Dockerfile").write_text(f"FROM {TINY.image}\nCOPY agentrl-runner /.agentrl/agentrl-runner\n")
    tag = "agentrl/test-baked:latest"
    try:
        await images.build(tmp_path, tag)
        sandbox = await asyncio.to_thread(make, TINY.model_copy(update={"image": tag, "runner": "image"}))
        assert (await sandbox.exec("echo baked")).stdout == b"baked\n"
        inspection = await sandbox.inspect()
        assert inspection["Mounts"] == []
        assert audit(inspection, sandbox.spec) == []
        await sandbox.close()
    finally:
        daemon().api.remove_image(tag, force=True)
