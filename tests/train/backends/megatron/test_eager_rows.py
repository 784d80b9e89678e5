"""Families on Megatron against transformers' eager rows, forward and backward, on forests longer than their windows.

Here under each of the layouts where it matters most, the other families under one rank; under all of them by
`python -m tests.train.backends.megatron.rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.suite import pairs
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.rows import compare, possible
from tests.train.backends.megatron.world import World

CLOSE = 1e-5
SHARDED = [
    ("phi3", "TP2"),
    ("olmo2", "TP2"),
    ("mixtral", "TP2 SP"),
    ("gemma2", "TP2 SP"),
    ("qwen2_moe", "TP2 SP"),
    ("mixtral", "EP2"),
    ("gpt_oss", "EP2"),
    ("gpt_oss", "TP2 EP2"),
    ("granite", "PP2"),
    ("gemma3_text", "PP2"),
    ("mistral", "CP2"),
]
ALONE = [(case, "one") for case in zoo.MORE if pairs.whole or case not in dict(SHARDED)]


@pytest.mark.parametrize(("case", "layout"), [*ALONE, *SHARDED])
@pytest.mark.slow
def test_a_family_says_and_learns_what_eager_rows_do_and_gives_its_weights_back(
    case: str, layout: str, world: World, tiny: Callable[[str], Path]
) -> None:
    assert possible(case, layout)
    found = compare(world, tiny(case), layout)
    assert found.logp < CLOSE
    assert found.gradient < CLOSE, found.where
    assert found.learning > 0.9, "weights that learn nothing would prove little"
    assert found.changed == []
