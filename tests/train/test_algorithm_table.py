"""The tables of docs/algorithms.md are those of the registries, and every entry says where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.train.algorithms import ALGORITHMS
from agentrl.train.algorithms.policy_losses import LOSSES
from agentrl.train.algorithms.table import list_built_in, update_page

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"


@pytest.mark.slow
def test_the_tables_are_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == update_page(page), "run python -m agentrl.train.algorithms.table docs/algorithms.md"


def test_every_row_of_the_tables_is_one_line_with_as_many_cells_as_its_head() -> None:
    """The separator of `prm`, a line break, once divided its row."""
    lines = PAGE.read_text().partition("<!-- generated")[2].partition("\n## ")[0].splitlines()
    rows = [line.replace("\\|", "").count("|") for line in lines if line.startswith("| `")]
    assert set(rows) == {6 + 1, 7 + 1}, rows


@pytest.mark.slow
@pytest.mark.parametrize("registry", [ALGORITHMS, LOSSES], ids=["advantages", "losses"])
def test_every_built_in_one_has_a_formula_a_source_and_a_use(registry: object) -> None:
    for name in list_built_in(registry, "agentrl."):
        kind = registry.find(name)  # type: ignore[attr-defined]
        assert kind.name == name
        assert kind.about.formula
        assert kind.about.use
        assert kind.about.paper or name == "sft"
        assert kind.__doc__
