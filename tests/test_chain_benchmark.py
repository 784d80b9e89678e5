"""The benchmark of chains compares like with like: the same base, no part with fewer tokens than the chain."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrl
from benchmarks import chain


@pytest.mark.slow
def test_its_small_form_gives_each_part_the_chains_tokens_and_finds_the_base_flat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agentrl.register("Colours", chain.Colours)
    assert chain.compare(tmp_path, 0, small=True) == []
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    tokens = {row[1]: [float(count.strip(" |").replace(",", "") or 0) for count in row[3:5]] for row in rows}
    sampled, trained = tokens["the chain"]
    assert sampled > 0
    assert trained > 0
    for part in ("sft alone", "dpo alone", "grpo alone"):
        assert sum(tokens[part]) >= sampled + trained
    assert tokens["grpo alone"][1] == tokens["dpo alone"][1] == 0
    began = ("imitate", "prefer", "reinforce", "chain/imitate")
    weights = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in began]
    assert weights == [(tmp_path / "base" / "model.safetensors").read_bytes()] * 4


def test_the_demonstrations_are_right_in_a_third_of_their_rows(tmp_path: Path) -> None:
    lines = chain.demonstrations(tmp_path / "rows.jsonl", 0).read_text().splitlines()
    right = [any(chain.answer(thing, chain.colour(thing)) in line for thing in chain.THINGS) for line in lines]
    assert 0.25 < sum(right) / len(right) < 0.43
