"""A driver library for SGLang's kernels: built where there is none, and never in place of a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.errors import MissingExtra
from agentrl.rollout.engines.servers import driver, sglang
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.engines.servers.sglang import SGLangEngine

LOAD = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuPointerGetAttribute(None, 0, None))"


def absent(name: str) -> object:
    """What a loader says on a machine without a driver."""
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.slow
def test_a_process_without_a_driver_finds_one_that_has_no_device() -> None:
    """`engine=sglang` once died on such a machine unless LD_LIBRARY_PATH was set by hand."""
    env = {**os.environ, **driver.driver_environment("", absent)}
    done = subprocess.run([sys.executable, "-c", LOAD], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "100\n", done.stderr


@pytest.mark.slow
def test_sglang_is_started_with_it_on_a_cpu(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "driver_environment", lambda: driver.driver_environment("", absent))
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$*" in *metadata*) echo 0.5.23;; *) echo "path: $LD_LIBRARY_PATH";; esac\n')
    python.chmod(0o755)
    engine = SGLangEngine(folder, ServerConfig(name="sglang", device="cpu", python=str(python)))
    assert engine.server is not None
    engine.server.wait(60)
    assert str(driver.stand_in().parent) in engine.server.tail()
    engine.server.kill()


def test_a_users_library_path_goes_before_the_stand_in() -> None:
    path = driver.driver_environment("/opt/a::/opt/b", absent)["LD_LIBRARY_PATH"].split(":")
    assert path[:2] == ["/opt/a", "/opt/b"]
    assert path[2:] == [str(driver.stand_in().parent)]


def test_a_driver_that_is_there_is_left_alone(tmp_path: Path) -> None:
    asked: list[str] = []
    assert driver.driver_environment("", asked.append) == {}
    assert asked == ["libcuda.so.1"], "the loader has it"
    (tmp_path / "libcuda.so.1").touch()
    assert driver.driver_environment(f"/opt/a:{tmp_path}", absent) == {}


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_message_says_what_is_missing() -> None:
    with pytest.raises(MissingExtra, match=r"sglang on a CPU .*libcuda.* needs a C compiler"):
        driver.driver_environment("", absent)
