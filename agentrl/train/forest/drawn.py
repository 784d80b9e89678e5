"""The recorded conditions, besides temperature and version, that a turn's tokens were drawn under."""

from __future__ import annotations

from agentrl.attachments import support
from agentrl.types import Node, Sampling


def drawn_from(node: Node) -> support.Support | None:
    """The recorded supports of a turn that was not drawn from the whole vocabulary; None where there are none."""
    if node.sampling is None or node.sampling.full_support or support.NAME not in node.attachments:
        return None
    return support.unpack(node.attachments[support.NAME])


def apart(node: Node) -> list[tuple[bytes, ...]]:
    """For each token of a node what, besides temperature and version, it was drawn by; empty where that is nothing."""
    found = drawn_from(node)
    if found is None or node.sampling is None:
        return []
    given = repr((found.rule, penalties_of(node.sampling), node.sampling.logit_bias)).encode()
    codes = codes_of(node, found)
    rows = [found.sets[code - support.SETS] if code >= support.SETS else bytes((code,)) for code in codes]
    if not node.sampling.penalised:
        return [(given, row) for row in rows]
    start = len(codes) - len(found.codes)
    return [(given, row, str(place - start).encode()) for place, row in enumerate(rows)]


def codes_of(node: Node, found: support.Support) -> list[int]:
    """A code for each token of a node; of those that no row is about nothing is known."""
    return [support.UNKNOWN] * (len(node.token_ids) - len(found.codes)) + list(found.codes)


def penalties_of(sampling: Sampling) -> tuple[float, float, float]:
    """Repetition, presence and frequency penalty."""
    return sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty
