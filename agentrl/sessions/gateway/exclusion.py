"""Roots of a session's tree that are helpers beside the task: they are neither trained on nor credited.

Clients send requests for titles, summaries and checks in the session that has the task. Their tokens would take the
outcome's credit, and their paths a part of its mean. The rules look at what a root begins with; what they exclude is
`Session.excluded`, and stored with the session.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl.config.gateway import ONE_TURN
from agentrl.types import Session

COUNTER = "gateway/excluded"
"""The counter of excluded roots."""
HEADER = "header."


class Exclusion:
    """The rules of `gateway.exclude`; each excludes what it names."""

    def __init__(self, rules: tuple[str, ...] = (ONE_TURN,)) -> None:
        parts = (rule.partition("=") for rule in rules)
        named = [(name, re.compile(pattern)) for name, equals, pattern in parts if equals]
        self._one_turn = ONE_TURN in rules
        self._headers = [(name[len(HEADER) :], pattern) for name, pattern in named if name.startswith(HEADER)]
        self._named = [(name, pattern) for name, pattern in named if not name.startswith(HEADER)]

    def by_header(self, headers: Mapping[str, str]) -> bool:
        """Return whether a root that a request with these headers begins is excluded."""
        return any(name in headers and pattern.search(headers[name]) for name, pattern in self._headers)

    def apply(self, session: Session, *, by_agent: bool = False) -> None:
        """Add to `Session.excluded` what the rules find in a session that has ended, and count it; never all roots.

        Args:
            session: it.
            by_agent: whether a root without tools is a helper only beside its own agent's roots with tools.
        """
        roots = _roots(session)
        found = set(session.excluded)
        agents = {root.agent for root in roots}
        equipped = {root.agent for root in roots if root.tools} if self._one_turn else set()
        equipped = agents if equipped and not by_agent else equipped
        for root in roots:
            looked_at = {"prompt": "\n".join(root.texts), "tools": root.tools}
            if any(pattern.search(looked_at[name]) for name, pattern in self._named):
                found.add(root.node)
            if root.agent in equipped and root.turns == 1 and not root.tools:
                found.add(root.node)
        if len(found) == len(roots):
            found = set()
        session.excluded = sorted(found)
        session.counters.pop(COUNTER, None)
        if found:
            session.count(COUNTER, len(found))


@dataclass(slots=True)
class _Root:
    """A root as the rules see it.

    Attributes:
        node: the root's id.
        agent: whose it is.
        tools: the names of its tools, joined by commas.
        texts: of the messages before any turn.
        turns: the most that follow one another.
    """

    node: int
    agent: str
    tools: str
    texts: list[str] = field(default_factory=list)
    turns: int = 0


def _roots(session: Session) -> list[_Root]:
    roots: list[_Root] = []
    home: dict[int, _Root] = {}
    turns: dict[int | None, int] = {None: 0}
    for node in session.nodes:
        if node.parent is None:
            roots.append(_Root(node.id, node.agent, ",".join(tool["function"]["name"] for tool in node.tools)))
        root = home[node.id] = roots[-1] if node.parent is None else home[node.parent]
        turns[node.id] = turns[node.parent] + (node.sampled or node.copy_of is not None)
        if not root.turns and not node.sampled:
            root.texts.append(node.message.text)
        root.turns = max(root.turns, turns[node.id])
    return roots
