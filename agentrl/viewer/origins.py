"""The origin of a turn's tokens, and what they were trained with, by the run's `provenance.jsonl`.

The file is read as the run writes it, once: what is kept in memory is where the line of each step is, and the weights
that engines had. A step's line is read again for each question.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from agentrl.types import MAIN, Node, Session


def find_credited(session: Session, node: Node) -> tuple[str, int]:
    """The session and the node as which credit counts a turn: its agent's own, where each agent has a reward."""
    if not session.agent_rewards:
        return session.id, node.id
    own = [each.id for each in session.nodes if each.agent == node.agent]  # as `Session.by_agent` numbers them
    return f"{session.id}/{node.agent}", own.index(node.id)


@dataclass
class Origins:
    """A provenance file that another process may be writing; safe for several threads.

    A run only appends, and a resumed one replaces the file.
    """

    path: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _inode: int = 0
    _read: int = 0
    _places: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    _weights: dict[tuple[str, int, int], dict[str, Any]] = field(default_factory=dict)

    def of(self, session: Session, node: Node) -> dict[str, Any]:
        """A turn's engines, the weights of its spans, its sampling settings, and the steps that trained it.

        Weights that the record does not have are None; a step's credit is a list of [advantage, weight].
        """
        name, number = find_credited(session, node)
        with self._lock:
            lines = self._lines(name)
            policy = node.policy or MAIN
            weights = [self._weights.get((policy, span.version, span.incarnation)) for span in node.versions]
        trained = []
        for row in lines:
            step, used = row["step"], row["trained"]
            if shares := used["credit"].get(name, {}).get(str(number)):
                credit = [share[:2] for share in shares]
                trained.append({"step": step, "version": used["version"], "forests": used["forests"], "credit": credit})
        sampling = {} if node.sampling is None else asdict(node.sampling)
        if sampling.get("seed") is not None:
            sampling["seed"] = str(sampling["seed"])  # beyond what JavaScript's numbers hold
        return {"engines": list(node.engines), "weights": weights, "sampling": sampling, "trained": trained}

    def _lines(self, session: str) -> list[dict[str, Any]]:
        """The lines of the steps that counted a session."""
        try:
            with open(self.path, "rb") as file:
                self._follow(file.fileno())
                found = []
                for place, length in self._places.get(session, ()):
                    file.seek(place)
                    found.append(orjson.loads(file.read(length)))
                return found
        except OSError:  # no step is done yet, or an older version wrote the run
            return []

    def _follow(self, descriptor: int) -> None:
        stat = os.fstat(descriptor)
        if stat.st_ino != self._inode or stat.st_size < self._read:
            self._inode, self._read = stat.st_ino, 0
            self._places.clear()
            self._weights.clear()
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._note(line)
                self._read += len(line)

    def _note(self, line: bytes) -> None:
        try:
            row = orjson.loads(line)
            if "published" in row:
                weights = row["published"]
                self._weights[weights.get("policy", MAIN), weights["version"], weights["incarnation"]] = weights
            else:
                for session in {*row["trained"]["credit"], *row["trained"]["scores"]}:
                    self._places[session].append((self._read, len(line)))
        except (ValueError, KeyError, TypeError):  # `agentrl verify` says what is damaged
            return
