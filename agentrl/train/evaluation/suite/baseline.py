"""An earlier result that an evaluation is compared with: its settings, read before anything is played."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentrl.config import NAMED, Section
from agentrl.overrides import Tree, validate
from agentrl.train.evaluation.suite.results import read_results


class CompareConfig(Section):
    """The settings of a comparison with an earlier result."""

    name: str
    """A result.json, or the folder that has it."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """The chance of calling equal policies different, over all parts."""
    accept_changed_data: bool = False
    """Compare the tasks that both have, with the same content, where their data differs."""


class _Compared(Section):
    compare: Annotated[CompareConfig, NAMED]


def take_baseline(tree: Tree) -> CompareConfig | None:
    """Take `compare` out of an evaluation's settings; its file is read at once, so that it is not missed at the end."""
    if "compare" not in tree:
        return None
    chosen = validate({"compare": tree.pop("compare")}, _Compared).compare
    read_results(chosen.name)
    return chosen
