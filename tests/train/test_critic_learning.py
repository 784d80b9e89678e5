"""Where returns can be foreseen, the critic foresees them, of sessions that it has not seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.critic import chests, last


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_where_the_prompt_says_what_can_be_earned_most_of_the_variance_is_explained(
    tmp_path: Path,
) -> None:
    result = chests(tmp_path, "policy", steps=10)
    first = result.metrics[0]
    assert first["critic/explained_variance"] == pytest.approx(0.0, abs=1e-6), "a critic begins as a constant"
    assert first["critic/value_mean"] == pytest.approx(first["critic/return_mean"], abs=1e-6)
    assert last(result) > 0.7
