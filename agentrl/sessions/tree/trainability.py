"""The one place that decides whether sampled tokens can be trained, and why not.

A sampled token can be trained where its log-probability is that of a distribution that the trainer can compute: the
softmax over the whole vocabulary at the sampling temperature, or one whose support and rule are recorded with the turn
(`agentrl.attachments.support`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import repeat

from agentrl.attachments import support
from agentrl.types import Node, Sampling


class Untrainable(StrEnum):
    """A reason for a sampled token not to be trainable, whatever it is worth."""

    FROZEN = "frozen"  # its policy is not trained
    GREEDY = "greedy"  # temperature 0: there is no distribution
    GRAMMAR = "grammar"  # drawn under a schema or a regular expression, and the support is not recorded
    UNRECORDED = "sampling"  # drawn by truncation, penalties or a bias, and the support is not recorded
    OVERSIZE = "oversize"  # the support takes more bytes than engine.support_bytes
    OUTSIDE = "outside"  # the recorded support lacks the token, by rounding at its border

    @property
    def words(self) -> str:
        """The reason in words."""
        return _WORDS[self]


_WORDS = {
    Untrainable.FROZEN: "its policy is not trained",
    Untrainable.GREEDY: "temperature 0 leaves no distribution",
    Untrainable.GRAMMAR: "drawn under a schema or grammar, and what that left of the vocabulary is not recorded",
    Untrainable.UNRECORDED: "drawn with top-p, top-k, min-p, penalties or a logit bias, and what these left of the "
    "vocabulary is not recorded",
    Untrainable.OVERSIZE: "what was left of the vocabulary takes more bytes than engine.support_bytes",
    Untrainable.OUTSIDE: "by rounding, it is outside of what was left of the vocabulary",
}

_BY_CODE = {support.OVERSIZE: Untrainable.OVERSIZE, support.OUTSIDE: Untrainable.OUTSIDE}
Reasons = list[Untrainable | None]
"""For each sampled token of a turn why it can't be trained; None where it can."""


def reasons(sampling: Sampling, attached: Mapping[str, bytes], sampled: int, *, trained: bool = True) -> Reasons:
    """Return, for each of a turn's sampled tokens, why it can't be trained.

    Raises:
        InvalidInput: its supports are malformed.
    """
    if not trained:
        return [Untrainable.FROZEN] * sampled
    if sampling.full_support:
        return [None] * sampled
    if sampling.temperature == 0:
        return [Untrainable.GREEDY] * sampled
    unrecorded = Untrainable.GRAMMAR if sampling.grammar else Untrainable.UNRECORDED
    data = attached.get(support.NAME)
    found = None if data is None else support.unpack(data)
    if found is None or not support.is_known(found.rule):
        return [unrecorded] * sampled
    codes = found.codes[-sampled:]
    known = [None if code >= support.FULL else _BY_CODE.get(code, unrecorded) for code in codes]
    return [*repeat(unrecorded, sampled - len(codes)), *known]


def of_node(node: Node) -> Reasons:
    """Return the reasons of a stored turn's sampled tokens; whether its policy is trained is not known here."""
    if node.sampling is None or not node.versions:
        return []
    return reasons(node.sampling, node.attachments, len(node.token_ids) - node.versions[0].start)


def list_reasons(node: Node) -> Reasons:
    """Return the reasons of a stored turn's sampled tokens; where all could be trained and none is, it is the policy's.

    Raises:
        InvalidInput: its supports are malformed.
    """
    found = of_node(node)
    frozen = None in found and not any(node.trainable)
    return [Untrainable.FROZEN] * len(found) if frozen else found


def list_lost(node: Node) -> Iterator[Untrainable]:
    """Yield the reason of each sampled token of a stored turn that can't be trained."""
    yield from (reason for reason in of_node(node) if reason is not None)
