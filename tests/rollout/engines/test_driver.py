"""A driver library for SGLang's kernels: built where there is none, and never in place of a real one."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import MissingExtra
from agentrl.rollout.engines.servers import driver
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.engines.servers.sglang import SGLangEngine

LOAD = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuPointerGetAttribute(None, 0, None))"


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a driver, wherever the tests run."""
    monkeypatch.setattr(driver, "_installed", lambda: False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)


@pytest.mark.slow
def test_a_process_without_a_driver_finds_one_that_has_no_device() -> None:
    """`engine=sglang` once died on such a machine unless LD_LIBRARY_PATH was set by hand."""
    env = {**os.environ, **driver.driver_environment()}
    done = subprocess.run([sys.executable, "-c", LOAD], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "100\n", done.stderr


@pytest.mark.slow
def test_sglang_is_started_with_it_on_a_cpu(folder: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$*" in *metadata*) echo 0.5.23;; *) echo "path: $LD_LIBRARY_PATH";; esac\n')
    python.chmod(0o755)
    engine = SGLangEngine(folder, ServerConfig(name="sglang", device="cpu", python=str(python)))
    assert engine.server is not None
    engine.server._process.wait(60)
    assert str(driver.stand_in().parent) in engine.server.tail()
    engine.server.kill()


def test_a_users_library_path_goes_before_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/a::/opt/b")
    path = driver.driver_environment()["LD_LIBRARY_PATH"].split(":")
    assert path[:2] == ["/opt/a", "/opt/b"]
    assert path[2:] == [str(driver.stand_in().parent)]


@pytest.mark.parametrize("where", ["loader", "path"])
def test_a_driver_that_is_there_is_left_alone(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "loader":
        monkeypatch.setattr(driver, "_installed", lambda: True)
    else:
        (tmp_path / "libcuda.so.1").touch()
        monkeypatch.setenv("LD_LIBRARY_PATH", f"/opt/a:{tmp_path}")
    assert driver.driver_environment() == {}


def test_without_a_compiler_the_message_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtra, match=r"sglang on a CPU .*libcuda.* needs a C compiler"):
        driver.driver_environment()


def test_the_driver_is_loaded_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    asked: list[str] = []

    def load(name: str) -> Any:
        asked.append(name)
        return object()

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert driver._installed()
    assert asked == ["libcuda.so.1"]
