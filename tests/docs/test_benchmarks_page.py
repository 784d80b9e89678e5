"""A benchmark is there for a figure or a gate: each is named by a page, and pages name none that has gone."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
PARTS = {
    "central_critic",
    "fidelity",
    "gateway_clients",
    "gateway_parts",
    "gateway_servers",
    "machine",
    "soak_parts",
    "workloads",
}
"""Modules that only other benchmarks and tests use."""
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
NAMED = {name for page in PAGES for name in re.findall(r"benchmarks[./](\w+)(?!\w*/)", page.read_text())}


def test_every_benchmark_is_named_by_a_page() -> None:
    assert set() == MODULES - PARTS - NAMED


def test_the_pages_name_no_benchmark_that_has_gone() -> None:
    assert {name for name in NAMED - MODULES if not (ROOT / "benchmarks" / name).is_dir()} - {"md"} == set()


def test_what_the_table_of_gates_names_exists() -> None:
    _, _, table = (ROOT / "docs" / "benchmarks.md").read_text().partition("| what a benchmark gates |")
    assert set(re.findall(r"`(\w+)`", table.partition("\n\n")[0])) <= MODULES
