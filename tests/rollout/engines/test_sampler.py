"""Sampling: a token depends on the row, its seed and its position, and follows the filters' definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentrl.config import RolloutConfig
from agentrl.errors import InvalidInput
from agentrl.rollout.engines.checks import check_sampling, check_temperature
from agentrl.rollout.engines.local.sampler import RowSampling, sample, uniform
from agentrl.types import Sampling
from tests.sessions.gateway import inside

SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    top_k=st.sampled_from([None, 1, 3]),
    min_p=st.sampled_from([0.0, 0.2]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
)
ROW = st.builds(RowSampling, SAMPLINGS, st.integers(0, 2**63), st.integers(0, 10**6), st.just((1, 2, 2)))
ROWS = st.lists(ROW, min_size=1, max_size=6)


@pytest.mark.slow
@given(ROWS, st.integers(0, 1000))
def test_a_row_is_sampled_the_same_alone_and_in_a_batch(rows: list[RowSampling], seed: int) -> None:
    logits = torch.randn(len(rows), 11, generator=torch.Generator().manual_seed(seed)) * 3
    together = sample(logits, rows)
    for index, row in enumerate(rows):
        (token,), (logprob,), _ = sample(logits[index : index + 1], [row])
        assert (token, logprob) == (together[0][index], together[1][index])


@given(SAMPLINGS, st.integers(0, 300), st.integers(0, 100))
@pytest.mark.slow
def test_samples_stay_inside_what_the_filters_leave(sampling: Sampling, seed: int, position: int) -> None:
    """Against the definitions, written out once more with sets and sorted lists."""
    logits = torch.randn(1, 11, generator=torch.Generator().manual_seed(seed)) * 3
    (token,), (logprob,), _ = sample(logits, [RowSampling(sampling, seed, position, ())])
    temperature = sampling.temperature or 1.0
    scaled = [value / temperature for value in logits[0].tolist()]
    norm = math.log(sum(math.exp(value) for value in scaled))
    assert logprob == pytest.approx(scaled[token] - norm, abs=1e-5)
    order = sorted(range(11), key=lambda index: -scaled[index])
    if sampling.temperature == 0:
        assert token == order[0]
        return
    allowed = order[: sampling.top_k]
    mass, kept = sum(math.exp(scaled[index]) for index in allowed), []
    before = 0.0
    for index in allowed:
        if before / mass < sampling.top_p + 1e-6:
            kept.append(index)
        before += math.exp(scaled[index])
    floor = scaled[order[0]] + (math.log(sampling.min_p) if sampling.min_p else -math.inf) - 1e-6
    assert token in [index for index in kept if scaled[index] >= floor]


def test_uniform_numbers_are_uniform_and_differ_by_seed_and_position() -> None:
    grid = uniform([seed for seed in range(100) for _ in range(100)], list(range(100)) * 100)
    assert len(set(grid.tolist())) == 10_000
    counts, _ = np.histogram(grid, bins=20, range=(0, 1))
    assert sum((count - 500) ** 2 / 500 for count in counts) < 60  # 19 degrees of freedom; chance: one in a million
    rows = grid.reshape(100, 100)
    assert abs(np.corrcoef(rows[:, 0], rows[:, 1])[0, 1]) < 0.5
    assert abs(np.corrcoef(rows[0], rows[1])[0, 1]) < 0.5


def test_frequency_penalties_count_and_presence_penalties_do_not() -> None:
    logits = torch.zeros(1, 3)
    written = (0, 0, 1)
    by_count = Sampling(temperature=0.0, frequency_penalty=1.0)
    assert sample(logits, [RowSampling(by_count, 0, 0, written)])[0] == [2]
    logits = torch.tensor([[1.5, 1.0, 0.0]])
    presence = Sampling(temperature=0.0, presence_penalty=1.0)
    assert sample(logits, [RowSampling(presence, 0, 0, written)])[0] == [0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("logit_bias", ((5, math.inf),)), ("presence_penalty", math.nan), ("temperature", math.inf)],
)
def test_numbers_that_leave_no_distribution_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"sampling\.{name}=.* finite"):
        check_sampling(Sampling(**{name: value}), 100)


@pytest.mark.parametrize("value", [5e-324, 1e-8, 0.0099])
def test_a_temperature_below_the_least_that_all_engines_draw_at_is_refused(value: float) -> None:
    """vLLM draws at 0.01 then, SGLang greedily, and a trainer would divide by what was stored."""
    with pytest.raises(InvalidInput, match=r"must be 0, or at least 0\.01"):
        check_sampling(Sampling(temperature=value), 100)
    with pytest.raises(InvalidInput, match=r"at least 0\.01"):
        check_temperature(value)
    with pytest.raises(ValidationError, match=r"at least 0\.01"):
        RolloutConfig(temperature=value)
    assert inside.turn_request([{"role": "user", "content": "hi"}], temperature=value).sampling.temperature == 0
    check_sampling(Sampling(temperature=0.01), 100)
