"""Rows with a better and a worse reply, as one tree with a branch for each, whose prompt is computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.config.data import DataConfig
from agentrl.errors import ConfigError
from agentrl.rollout.sources.messages import Example, MessageReader
from agentrl.rollout.sources.trees import TreeCounts, TreeWriter
from agentrl.sessions.tree import tree
from agentrl.types import Session


@dataclass(frozen=True, slots=True)
class PairLeaves:
    """The last nodes of a better and a worse path of one session."""

    chosen: int
    rejected: int


def read_pair(row: Mapping[str, Any], config: DataConfig, place: str, reader: MessageReader) -> tuple[Example, Example]:
    """Read a row's better and worse conversation: `chosen` and `rejected`, behind a `prompt` where there is one.

    Without a prompt the two are whole conversations, of which only the last message is trained.

    Raises:
        ConfigError: a column is missing, or text can be read in two ways.
    """
    if missing := [name for name in ("chosen", "rejected") if row.get(name) is None]:
        raise ConfigError(f"data={config.name}: {place} has no {missing[0]}: data.columns.{missing[0]}=COLUMN names it")
    prompt = row.get("prompt")
    texts = isinstance(row["chosen"], str) and (prompt is None or isinstance(prompt, str))
    if texts and (config.strings is None or prompt is None):
        if prompt is None:
            raise ConfigError(
                f"data={config.name}: {place} has text and no prompt: data.columns.prompt=COLUMN names it"
            )
        raise ConfigError(
            f"data={config.name}: {place} has text: data.strings=chat or data.strings=plain says what it is"
        )

    def example(reply: Any) -> Example:
        before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt or ())
        after = [{"role": "assistant", "content": reply}] if isinstance(reply, str) else list(reply)
        whole = [*before, *after] if not before or after[: len(before)] != before else after
        untrained = [{**message, "train": False} for message in whole[:-1]]
        plain = texts and config.strings == "plain"
        return reader.example(place, [*untrained, *whole[-1:]], row.get("tools"), plain=plain)

    try:
        return example(row["chosen"]), example(row["rejected"])
    except ValueError as error:
        raise ConfigError(f"data={config.name}: {place}: {error}") from None


def write_pair(
    session: Session, pair: tuple[Example, Example], writer: TreeWriter, counts: TreeCounts | None = None
) -> PairLeaves | None:
    """Write both conversations of a pair into a session, and return where they end.

    Returns:
        None where one of them has no trained tokens, is left out as too long, or they are the same: no pair is left.
    """
    leaves = []
    for example in pair:
        before = len(session.nodes)
        writer.write(session, [example], counts)
        if len(session.nodes) == before:
            return None
        leaves.append(session.nodes[-1].id)
    shared = {node.id for node in tree.path(session, leaves[0])} & {node.id for node in tree.path(session, leaves[1])}
    return None if leaves[0] in shared or leaves[1] in shared else PairLeaves(*leaves)
