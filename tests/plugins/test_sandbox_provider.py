"""A sandbox provider is one file, which a run names in the place of every environment's own."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrl
from agentrl.errors import UnknownName

PROVIDER = """
from pathlib import Path

from agentrl.plugins.sandbox import Sandbox, SandboxSpec, create


async def provide(spec: SandboxSpec) -> Sandbox:
    made = await create(spec, "subprocess")
    with Path(__file__).with_name("made").open("a") as log:
        log.write(made.id + "\\n")
    return made
"""


@pytest.mark.slow
def test_a_run_plays_in_the_sandboxes_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "provider.py").write_text(PROVIDER)
    run = {"policy": "expert", "eval.tasks": 1, "eval.n": 1, "env.timeout": 120, "run_dir": str(tmp_path / "run")}
    with pytest.raises(UnknownName, match=r"there is no 'other' in .*provider\.py \(known: provide\)"):
        agentrl.evaluate("code", sandbox=f"{tmp_path}/provider.py:other", **run)
    assert agentrl.evaluate("code", sandbox=f"{tmp_path}/provider.py:provide", **run).mean == 1.0
    assert (tmp_path / "made").read_text().strip()
