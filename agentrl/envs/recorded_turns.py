"""A stored session's turns, taken again in its environment: `agentrl play env=NAME from=RUN session=ID`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from agentrl.errors import ConfigError, unknown_name
from agentrl.sessions.store.store import Store
from agentrl.types import Message, Session

STORE = "sessions.db"


class RecordedTurns:
    """The turns of a stored session, for as long as an episode goes on as it did there.

    Attributes:
        over: whether the episode has left it: somebody wrote something else.
    """

    def __init__(self, session: Session) -> None:
        if session.branches or any(node.spawned for node in session.nodes):
            raise ConfigError(
                f"session {session.id!r} was forked, or has sub-agents: allowed: one that went straight on"
            )
        self.session, self.over = session, False
        self._paths: dict[str, list[list[Message]]] = {}
        for path in session.paths():
            self._paths.setdefault(path[0].agent, []).append([node.message for node in path])
        self._at: dict[str, tuple[int, list[Message]]] = {}

    def turn(self, agent: str, messages: Sequence[Message]) -> Message | None:
        """The turn that followed as many messages of an agent's conversation; None where there is none."""
        path = [] if self.over else self._path(agent, messages)
        found = path[len(messages)] if len(messages) < len(path) else None
        return found if found is not None and found.role == "assistant" else None

    def differences(self, agent: str, messages: Sequence[Message], shown: int) -> Iterator[str]:
        """Return the record's messages that differ from those given, without the ones that were shown before."""
        path = [] if self.over else self._path(agent, messages)
        for now, then in zip(messages[shown:], path[shown:], strict=False):
            if (now.role, now.text) != (then.role, then.text):
                yield f"    recorded was: [{then.role}] {then.text}"

    def _path(self, agent: str, messages: Sequence[Message]) -> list[Message]:
        """The agent's path: the next one, where the conversation has begun anew."""
        number, before = self._at.get(agent, (0, []))
        number += list(messages[: len(before)]) != before
        self._at[agent] = number, list(messages)
        paths = self._paths.get(agent, [])
        return paths[number] if number < len(paths) else []


def read_session(folder: str, session: str) -> Session:
    """A session of a run's folder.

    Raises:
        ConfigError: there is no store, or only one of both is named.
        UnknownName: it has no such session.
    """
    if not folder or not session:
        raise ConfigError("from=RUN_FOLDER and session=ID go together: a session of a run, whose turns are taken again")
    file = Path(folder) / STORE
    if not file.is_file():
        raise ConfigError(f"from={folder}: there is no {STORE}")
    with Store(file, read_only=True) as store:
        if session not in (ids := store.ids()):
            raise unknown_name("session", session, ids)
        return store.load(session)
