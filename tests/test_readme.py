"""The README's environment works as printed, and README names every command and every page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from agentrl.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCK = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "agentrl.Env" in block)


@pytest.mark.slow
def test_the_readmes_environment_has_15_lines_keeps_the_contract_and_is_trained_from_a_script_as_it_says(
    tmp_path: Path,
) -> None:
    assert len([line for line in BLOCK.splitlines() if line.strip()]) <= 16
    script = BLOCK + (
        "\nassert agentrl.check_env(Oracle) == []\n"
        "result = agentrl.train(Oracle, steps=1, warm_start={'steps': 3, 'demos': 32, 'batch': 8}, eval={'tasks': 4},"
        " rollout={'groups_per_step': 2, 'group_size': 2}, run_dir='run')\n"
        "print(result.checkpoint.name, agentrl.evaluate(Oracle, policy='noop').mean)\n"
    )
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "step-000001 0.0" in done.stdout, done.stdout + done.stderr


def test_the_readme_names_every_command_and_no_other() -> None:
    _, _, table = README.partition("| to | command |")
    named = re.findall(r"`([a-z0-9-]+)`", table.partition("\n\n")[0])
    assert sorted(named) == sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_the_readme_leads_to_every_page_of_the_docs() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#]+\.md)", README))
    assert {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")} - linked == set()
