"""`launch/docker`: commands, ports and checks of images and compose file fit, and what needs no registry builds."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import agentrl
from agentrl.overrides import merge_settings, parse_words, validate
from agentrl.rollout.workers.serve_process import ServeConfig
from agentrl.train.driver.setup import complete
from agentrl.viewer.serve import ViewConfig
from tests.tools.sandbox.conftest import docker

__all__ = ["docker"]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "launch" / "docker"
FILES = sorted(FOLDER.glob("*.Dockerfile"))
VARIABLE = re.compile(r"\$\{(\w+):\?[^}]*\}")


def instructions(file: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, in order, each with its words on one line."""
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.partition(" ")[0], " ".join(line.split()[1:])) for line in text.splitlines() if line.strip()]


def last(file: Path, name: str) -> str:
    """The last instruction of a kind, which is the image's."""
    return [words for instruction, words in instructions(file) if instruction == name][-1]


def services() -> dict[str, Any]:
    """The services of the compose file, with secrets in the place of variables."""
    text = VARIABLE.sub(lambda found: f"/{found[1]}-0123456789abcdef", (FOLDER / "compose.yaml").read_text())
    return yaml.safe_load(text)["services"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_image_has_a_user_a_command_a_port_and_a_check_of_that_port(file: Path) -> None:
    names = [name for name, _ in instructions(file)]
    assert set(names) <= {
        "ARG",
        "FROM",
        "RUN",
        "ENV",
        "WORKDIR",
        "COPY",
        "USER",
        "VOLUME",
        "EXPOSE",
        "HEALTHCHECK",
        "CMD",
    }
    assert last(file, "USER") == "agentrl"
    assert names.index("USER") > max(place for place, name in enumerate(names) if name in ("RUN", "COPY"))
    port = last(file, "EXPOSE")
    assert f"http://127.0.0.1:{port}/" in last(file, "HEALTHCHECK").partition(" CMD ")[2]
    assert any(port in word for word in json.loads(last(file, "CMD")))


def test_the_trainers_command_is_a_run_that_answers_its_check() -> None:
    words = json.loads(last(FOLDER / "agentrl.Dockerfile", "CMD"))
    assert words[:4] == ["agentrl", "train", "-c", "run.yaml"]
    config = complete(parse_words(["env=calculator", *words[4:]]))
    assert "prometheus" in config.metrics
    assert config.metrics_address.endswith(last(FOLDER / "agentrl.Dockerfile", "EXPOSE"))


def test_the_engines_are_of_the_versions_and_with_the_flags_that_the_docs_name() -> None:
    page = (ROOT / "docs/engines.md").read_text()
    for name in ("sglang", "vllm"):
        file = FOLDER / f"{name}.Dockerfile"
        (version,) = re.findall(rf"{name}==[\d.]+", file.read_text())
        assert version in page
        started = " ".join([last(file, "ENV") if name == "vllm" else "", *json.loads(last(file, "CMD"))])
        told = page.partition("## Servers that run already")[2].partition("\n## ")[0]
        own = told.partition("with `--incremental")[2].partition(", vLLM")
        flags = re.findall(r"`([^`]+)`", f"`--incremental{own[0]}" if name == "sglang" else own[2].partition(". ")[0])
        assert flags
        assert [flag for flag in flags if flag not in started] == []


def test_the_services_settings_are_valid_and_reach_each_other() -> None:
    parts = services()
    gateway = validate(merge_settings(parts["gateway"]["command"][2:]), ServeConfig)
    view = validate(merge_settings(parts["viewer"]["command"][3:]), ViewConfig)
    assert gateway.engine.url == f"http://engine:{last(FOLDER / 'sglang.Dockerfile', 'EXPOSE')}"
    assert "ports" not in parts["engine"], "whoever reaches an engine controls it"
    for name, config in (("gateway", gateway), ("viewer", view)):
        assert parts[name]["ports"] == [f"127.0.0.1:{config.port}:{config.port}"]
        assert f"{config.port}" in parts[name]["healthcheck"]["test"][-1]
    for part in parts.values():
        if build := part.get("build"):
            assert (FOLDER / build["context"] / build["dockerfile"]).resolve() in FILES
    assert str(gateway.model.name) == parts["gateway"]["volumes"][0].split(":")[1]


@pytest.mark.slow
@pytest.mark.usefixtures("docker")
def test_the_images_are_built_to_the_point_where_packages_come_from_a_registry() -> None:
    """The checkout is in it, without what a checkout has besides, and /runs belongs to nobody with rights."""
    tag = "agentrl-test/launch:user"
    command = ["docker", "build", "--quiet", "--file", f"{FOLDER}/agentrl.Dockerfile", "--target", "user"]
    command += ["--tag", tag, "--build-arg", "BASE=agentrl/base", "."]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr
        look = "id -u; touch /runs/file && ls -A /src; cd /src; python3 -c 'import agentrl as a; print(a.__version__)'"
        words = ["docker", "run", "--rm", "--network", "none", "--user", "agentrl", tag]
        said = subprocess.run(
            [*words, "sh", "-c", look], capture_output=True, text=True, timeout=100, check=True
        ).stdout.split()
        assert said[0] == "10001"
        assert said[-1] == agentrl.__version__
        assert {"agentrl", "sandboxes", "pyproject.toml"} <= set(said)
        assert not {".git", "tests", ".venv", "docs"} & set(said)
    finally:
        subprocess.run(["docker", "rmi", "--force", tag], capture_output=True, timeout=100)
