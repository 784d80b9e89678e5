"""The documentation is a site that builds without a network and without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
import yaml

from agentrl.overrides import fields
from tests.conftest import need

ROOT = Path(__file__).parents[2]
NOWHERE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
LOADED = re.compile(r'<(?:script|img)[^>]+src="(https?:[^"]+)|<link[^>]+rel="?stylesheet[^>]+href="(https?:[^"]+)')

TAG = re.compile(r'<a class="headerlink".*?</a>')


def pages_of(entries: list[object]) -> list[str]:
    """The pages of a navigation, in order."""
    found: list[str] = []
    for entry in entries:
        assert isinstance(entry, dict)
        for page in entry.values():
            found += [page] if isinstance(page, str) else pages_of(page)
    return found


def test_the_navigation_has_each_page_once() -> None:
    pages = pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]))
    assert len(pages) == len(set(pages))
    assert {page for page in pages if "/" not in page} == {page.name for page in (ROOT / "docs").glob("*.md")}


@pytest.mark.slow
def test_the_site_builds_with_warnings_as_errors_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    made = subprocess.run(["make", ".venv-site/installed"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    need(made.returncode == 0, f"mkdocs-material can't be installed: {made.stderr[-300:]}")
    command = [ROOT / ".venv-site/bin/mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    environment = os.environ | NOWHERE | {"NO_MKDOCS_2_WARNING": "1", "AGENTRL_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    built = {page.name: page.read_text() for page in (tmp_path / "site").glob("*.html")}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= {name.removesuffix(".html") for name in built}
    assert {name: found for name, text in built.items() if (found := LOADED.findall(text))} == {}
    reference = {page.name: unescape(page.read_text()) for page in (tmp_path / "site/reference").glob("*.html")}
    names = {line.rpartition(":")[2] for line in (ROOT / "tests/public_names.txt").read_text().splitlines()}
    assert {name for name in names if f"{name}</code></h3" not in TAG.sub("", reference["python.html"])} == set()
    assert {name for name, _, _ in fields() if f"<code>{name}</code>" not in reference["settings.html"]} == set()
    for command in ("train", "convert data", "sandbox serve"):
        assert f"<code>agentrl {command}</code>" in reference["commands.html"]
    index = (tmp_path / "site/search/search_index.json").read_text()
    assert "rollout.group_size" in index
    map_of_packages = built["structure.html"].partition("<li><code>cluster/</code>")[2]
    assert "<li><code>placement/</code>" in map_of_packages.partition("<li><code>common/</code>")[0]  # a list in a list
