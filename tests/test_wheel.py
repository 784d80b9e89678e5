"""What an installed agentrl carries: everything that a checkout has and a run needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import agentrl
from tests.conftest import need

ROOT = Path(__file__).resolve().parents[1]


INSTALL = """
set -e
. tests/engines_env/uv.sh
find_uv
"$UV" venv --quiet "$2"
"$UV" pip install --quiet --python "$2/bin/python" "$1"
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this checkout, with its wheel beside it."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "source")], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(folder), str(folder / "source")], check=True, timeout=150)
    return folder / "source"


@pytest.mark.slow
def test_a_wheel_carries_the_sandbox_runner_its_seccomp_profile_and_every_data_file(source: Path) -> None:
    """Installed from a wheel, sandboxes could once not be built: their sources stayed behind in the checkout."""
    (wheel,) = source.parent.glob("agentrl_platform-*.whl")
    carried = set(zipfile.ZipFile(wheel).namelist())
    for folder, inside in ((source / "sandboxes", "agentrl/_sandboxes"), (source / "agentrl", "agentrl")):
        files = {f"{inside}/{p.relative_to(folder)}" for p in folder.rglob("*") if p.is_file()}
        left = {name for name in files - carried if "__pycache__" not in name}
        assert not left, f"the wheel lacks {sorted(left)[:5]}"


@pytest.mark.slow
def test_the_wheel_alone_installs_in_an_empty_environment_and_is_of_use(source: Path, tmp_path: Path) -> None:
    (wheel,) = source.parent.glob("agentrl_platform-*.whl")
    made = subprocess.run(
        ["bash", "-c", INSTALL, "bash", wheel, tmp_path / "env"], cwd=ROOT, capture_output=True, text=True
    )
    need(made.returncode == 0, f"the requirements can't be installed: {made.stderr[-300:]}")
    packages = next((tmp_path / "env").glob("lib/*/site-packages"))
    size = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file() and file.suffix != ".pyc")
    assert size < 60e6
    assert not any((packages / heavy).exists() for heavy in ("torch", "numpy", "transformers", "docker", "ray"))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [tmp_path / "env/bin/agentrl", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)

    assert f"agentrl {agentrl.__version__}" in run("--version").stdout
    assert run("init", "sums", "--kind", "questions").returncode == 0
    assert (
        "64 carried as questions"
        in run("convert", "data", "sums/questions.csv", "out.jsonl", "--grading", "math").stdout
    )
    assert "the first: trainer=megatron" in run("plan", "model=qwen3-8b").stdout
    trained = run("train", "env=calculator")
    assert (trained.returncode, "agentrl-platform[train]" in trained.stderr) == (2, True)


def interpreter(version: str) -> str:
    """The first Python of a version that runs, of those on PATH and of pyenv's; '' where there is none."""
    kept = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    for found in filter(None, (shutil.which(f"python{version}"), *map(str, kept))):
        if subprocess.run([found, "--version"], capture_output=True).returncode == 0:  # a shim may have none behind it
            return found
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_the_wheel_is_of_use_under_other_pythons_that_are_installed(source: Path, tmp_path: Path, version: str) -> None:
    (wheel,) = source.parent.glob("agentrl_platform-*.whl")
    script = INSTALL.replace("venv --quiet", 'venv --quiet --python "$3"')
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if not (python := interpreter(version)):
        pytest.skip(f"Python {version} is not installed")
    words = ["bash", "-c", script, "bash", wheel, tmp_path / "env", python]
    made = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    need(made.returncode == 0, f"the requirements can't be installed: {made.stderr[-300:]}")
    said = ""
    for command in (["--version"], ["init", "sums", "--kind", "questions"], ["plan", "model=qwen3-8b"]):
        done = subprocess.run(
            [tmp_path / "env/bin/agentrl", *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        said += done.stdout
    assert f"Python {version}." in said
    assert "the first: trainer=megatron" in said
