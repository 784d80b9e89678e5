"""Authors of plug-ins import `agentrl` and `agentrl.plugins`, nothing deeper, and nothing heavy before its time."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import agentrl.plugins

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
FILES = sorted((ROOT / "examples").rglob("*.py")) + sorted((ROOT / "agentrl" / "envs" / "template").rglob("*.tmpl"))
KINDS = sorted(module.name for module in pkgutil.iter_modules(agentrl.plugins.__path__) if module.name[0] != "_")
KINDS = [kind for kind in KINDS if kind not in ("later", "suites")]
LIGHT = ("torch", "transformers", "numpy", "pyarrow", "docker", "openai", "ray", "fastapi")


def imported(source: str) -> Iterator[str]:
    """The modules that a text imports, of those of agentrl."""
    for line in source.splitlines():
        found = re.match(r"\s*(?:>>> )?(?:from|import)\s+(agentrl[\w.]*)", line)
        if found:
            yield found[1]


def is_public(module: str) -> bool:
    """Whether authors may import it."""
    return module == "agentrl" or module.startswith("agentrl.plugins")


def test_docs_examples_and_templates_import_nothing_deeper_than_agentrl_and_agentrl_plugins() -> None:
    texts = {str(file): file.read_text() for file in FILES}
    texts |= {f"{page}:{number}": text for page in PAGES for number, text in enumerate(BLOCK.findall(page.read_text()))}
    deeper = {
        f"{where}: {module}" for where, text in texts.items() for module in imported(text) if not is_public(module)
    }
    assert deeper == set()
    assert sum(bool(list(imported(text))) for text in texts.values()) > 20  # they were found


def test_a_deeper_import_would_be_found() -> None:
    assert [
        is_public(module)
        for module in imported("import agentrl\n    from agentrl.train.algorithms.tokens import Tokens")
    ] == [
        True,
        False,
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_of_a_kind_is_there_and_it_says_what_it_is(kind: str) -> None:
    module = importlib.import_module(f"agentrl.plugins.{kind}")
    assert "as a plug-in" in module.__doc__ or kind == "software_task"
    assert "- Named by" in module.__doc__ or "- Named where" in module.__doc__
    for name in module.__all__:
        if name != "AsGymnasium" or find_spec("gymnasium"):
            assert getattr(module, name) is not None
    with pytest.raises((AttributeError, ImportError)):
        _ = module.nothing_of_that_name


def test_the_package_lists_every_kind() -> None:
    listed = re.findall(r"^    .{22,24}?(\w+) +\S.*$", agentrl.plugins.__doc__, re.MULTILINE)
    assert set(KINDS) <= set(listed)


@pytest.mark.slow
def test_no_kind_loads_a_heavy_library_before_a_name_that_needs_it_is_asked_for() -> None:
    code = (
        f"import importlib, sys\nfor kind in {KINDS!r}:\n    importlib.import_module('agentrl.plugins.' + kind)\n"
        f"    print(*[kind + ':' + name for name in {LIGHT!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == []


def test_a_policy_loss_needs_one_line() -> None:
    source = (ROOT / "examples" / "plugins" / "tempered.py").read_text()
    assert list(imported(source)) == ["agentrl.plugins.loss"]
