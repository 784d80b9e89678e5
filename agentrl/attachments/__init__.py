"""Bytes of a *kind* that a turn or a node carries besides tokens (`attachments: dict[str, bytes]`, by kind).

The tree, conversations, the gateway, the store and exports only move attachments. What has to be known about a kind
while they do is known by its `AttachmentKind`: whether data is well formed, how much of a path it covers, and how what
two pieces of a path carry becomes one. Only those who produce and use a kind look inside: for `routed_experts` the
engines that record them, `train/forest/recorded_experts.py`, and Megatron's replay.

A kind covers a path in pieces: a request names what is not recorded yet (`Sampling.record`), the engine returns it for
the tokens from there on, and the turn's node keeps that. Nothing that was stored is rewritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl.registry import Registry

Record = tuple[tuple[str, int], ...]
"""Kinds to record, and for each the path's token from which on it is not recorded yet."""


class AttachmentKind:
    """A kind of attachment and its relation to the tokens of a path. By default each node's data is complete.

    Attributes:
        name: the key in `Node.attachments`.
        of_turn: whether it is about a turn's own tokens: a request for it names where the turn began, also where it
            continues the turn after an abort.
    """

    name: str
    of_turn: bool = False

    def check(self, data: bytes, tokens: int) -> None:
        """Check data that belongs to the end of a path of `tokens` tokens.

        Raises:
            InvalidInput: it is malformed, or covers more tokens than the path has.
        """

    def covered(self, data: bytes, tokens: int) -> int:
        """Return the number of a path's first tokens that are recorded by now.

        Args:
            data: the newest that the path has.
            tokens: the path's length where that data belongs.
        """
        return tokens

    def join(self, first: bytes | None, last: bytes | None, tokens: int) -> bytes | None:
        """The data of a path that was recorded in two pieces; None for none.

        Args:
            first: belongs to where the path ended first.
            last: belongs to where it ends now.
            tokens: how many tokens are in between.

        Raises:
            InvalidInput: the two don't fit together.
        """
        return first if last is None else last

    def split(self, data: bytes) -> tuple[bytes, list[bytes]]:
        """Return what a store keeps of data for its node alone, and the parts that other nodes' data may have, too."""
        return data, []

    def unite(self, rest: bytes, parts: Sequence[bytes]) -> bytes:
        """Return the data that was split so.

        Raises:
            InvalidInput: they don't fit together.
        """
        return rest


KINDS = Registry[AttachmentKind](
    "attachment",
    "attachment",
    "agentrl.attachments",
    {
        "critic_view": "agentrl.attachments.critic_view:KIND",
        "images": "agentrl.attachments.images:KIND",
        "routed_experts": "agentrl.attachments.routed_experts:KIND",
        "support": "agentrl.attachments.support:KIND",
    },
    accept=lambda found: found if isinstance(found, AttachmentKind) else None,
)


_PART = "#"
"""The text between a kind's name and the number of a part."""


def split(attached: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a node's attachments as a store keeps them: parts that several nodes' data may have are entries."""
    found: dict[str, bytes] = {}
    for name, data in attached.items():
        found[name], parts = KINDS.find(name).split(data)
        found |= {f"{name}{_PART}{place}": part for place, part in enumerate(parts)}
    return found


def unite(stored: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the attachments that were split so.

    Raises:
        InvalidInput: parts are missing.
    """
    found = {name: data for name, data in stored.items() if _PART not in name}
    for name in {name.partition(_PART)[0] for name in stored.keys() - found.keys()}:
        count = sum(other.startswith(name + _PART) for other in stored)
        found[name] = KINDS.find(name).unite(found[name], [stored[f"{name}{_PART}{place}"] for place in range(count)])
    return found


def check(attached: Mapping[str, bytes], tokens: int) -> None:
    """Check what belongs to the end of a path of `tokens` tokens.

    Raises:
        UnknownName: a kind is not known.
        InvalidInput: its data does not fit.
    """
    for name, data in attached.items():
        KINDS.find(name).check(data, tokens)


def list_unrecorded(record: Record, attached: Mapping[str, bytes], tokens: int) -> Record:
    """Return what is still to be recorded of a path of `tokens` tokens, to whose end `attached` belongs."""
    if not attached:
        return record
    kinds = {k: KINDS.find(k) for k, _ in record if k in attached}
    return tuple(
        (k, kinds[k].covered(attached[k], tokens) if k in kinds and not kinds[k].of_turn else start)
        for k, start in record
    )


def join(first: Mapping[str, bytes], last: Mapping[str, bytes], tokens: int) -> dict[str, bytes]:
    """Return the attachments of a path that was recorded in two pieces, `tokens` tokens apart."""
    joined = (
        (name, KINDS.find(name).join(first.get(name), last.get(name), tokens)) for name in sorted({*first, *last})
    )
    return {name: data for name, data in joined if data is not None}
