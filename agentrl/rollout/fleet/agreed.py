"""The common promises of a fleet's engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrl.errors import InvalidInput
from agentrl.types import Capabilities


def combine_capabilities(each: Sequence[Capabilities]) -> Capabilities:
    """Return what all engines can promise; InvalidInput where they serve different models."""
    if len({capabilities.vocab_size for capabilities in each}) > 1:
        raise InvalidInput("the engines of a fleet must serve the same model: their vocabularies differ")
    return replace(
        each[0],
        max_context=min(c.max_context for c in each),
        deterministic=all(c.deterministic for c in each),
        score=all(c.score for c in each),
        json_schema=all(c.json_schema for c in each),
        lark=all(c.lark for c in each),
        attachments=frozenset.intersection(*(c.attachments for c in each)),
        inputs=frozenset(),  # a fleet hands on token ids alone yet
        pause_modes=frozenset.intersection(*(c.pause_modes for c in each)),
    )
