"""Copies of records with other values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentrl.sessions.tree.generation import copy_with
from agentrl.types import Sampling, Session, Task, Turn


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        (Session("a", Task(id="t"), seed=3), {"nodes": [], "info": {"x": 1}}),
        (Sampling(temperature=0.5), {"seed": 7, "stop": ("end",)}),
        (Turn((1, 2), (-0.5, -1.0), (), "stop"), {"timings": {"seconds": 1.0}}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_copy_is_what_replacing_fields_one_by_one_makes(record: Any, changes: dict[str, Any]) -> None:
    assert copy_with(record, **changes) == replace(record, **changes)
    with pytest.raises(KeyError, match="unknown"):
        copy_with(record, unknown=1)
