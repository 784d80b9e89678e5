"""The format of routed experts: what is packed comes back, and pieces of a path become one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.attachments import routed_experts
from agentrl.errors import InvalidInput

LAYERS, TOPK = 3, 2


def rows(seed: int, count: int, experts: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, experts, (count, LAYERS, TOPK))


@settings(deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(0, 9), experts=st.sampled_from((1, 8, 255, 256, 20_000)))
@pytest.mark.slow
def test_what_is_packed_comes_back_and_unknown_rows_stay_unknown(seed: int, count: int, experts: int) -> None:
    given_TLk = rows(seed, count, experts)
    given_TLk[np.random.default_rng(seed).random(count) < 0.3] = -1
    data = routed_experts.pack(given_TLk, experts)
    assert np.array_equal(routed_experts.unpack(data), given_TLk)
    assert routed_experts.count(data) == count
    assert len(data) == 4 + count * LAYERS * TOPK * (1 if experts <= 255 else 2)
    known = np.flatnonzero(given_TLk[:, 0, 0] >= 0)
    assert routed_experts.unknown_at_end(data) == (count - 1 - known[-1] if known.size else count)


@settings(deadline=None)
@given(
    seed=st.integers(0, 1000),
    tokens=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    recorded=st.lists(st.booleans(), min_size=5, max_size=5),
)
@pytest.mark.slow
def test_a_path_recorded_in_pieces_has_each_tokens_first_known_experts(
    seed: int, tokens: list[int], recorded: list[bool]
) -> None:
    """Each piece has rows from the first unknown token on, as `generation.generate` asks, and not its last token's."""
    whole = rows(seed, sum(tokens))
    joined: bytes | None = None
    known = end = 0
    for count, records in zip(tokens, recorded, strict=False):
        end += count
        piece = None
        if records and end > known:
            piece = whole[known:end].copy()
            piece[-1] = -1
            known = end - 1
        joined = routed_experts.join(joined, None if piece is None else routed_experts.pack(piece, 8), count)
    if joined is None:
        return
    found = routed_experts.unpack(joined)
    assert np.array_equal(found[: len(found) - routed_experts.unknown_at_end(joined)], whole[end - len(found) : known])
    assert len(found) - routed_experts.unknown_at_end(joined) == known - (end - len(found))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no header"),
        (b"\x03\x02\x01\x00", "no header"),
        (b"\x01\x02\x00\x00", "no header"),
        (b"\x01\x02\x01\x00abc", "no whole number of rows of 2 bytes"),
    ],
)
def test_bytes_that_are_no_routed_experts_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        routed_experts.unpack(data)


@pytest.mark.slow
def test_arrays_of_another_shape_or_with_experts_that_are_not_there_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"\(tokens, layers, k\), not \(2, 3\)"):
        routed_experts.pack(np.zeros((2, 3), int), 8)
    with pytest.raises(InvalidInput, match="experts are 0 to 8, of 8"):
        routed_experts.pack(np.array([[[0, 8]]]), 8)
    with pytest.raises(InvalidInput, match="different shapes"):
        routed_experts.join(routed_experts.pack(rows(0, 2), 8), routed_experts.pack(rows(0, 2)[:, :1], 8), 1)
