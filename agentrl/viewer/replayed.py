"""A session with its replays as branches of its tree.

`agentrl replay` writes each replay into `replays.db` as a session of its own, which begins with the recorded messages.
Messages that are the same, bit for bit, are one node here, so that a replay leaves the recorded path where it differs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from statistics import fmean, stdev
from typing import Any

from agentrl.sessions.store.query import Contains
from agentrl.sessions.tree.codec import pack_floats, pack_ids
from agentrl.types import Branch, Node, Session
from agentrl.viewer.runs import Run

STORE = "replays.db"
MOST = 256
"""Replays of one session that are shown, the oldest ones."""
_NAME = re.compile(r"(?P<turn>\d+)(?:\.(?P<seed>\d+))?(?:~(?P<model>.*))?")


@dataclass(frozen=True)
class Replayed:
    """A session and its replays.

    Attributes:
        session: as the run recorded it.
        tree: the session with the nodes of the replays behind its own; the session itself where there are none. Its
            branches are the recorded ones and the replays.
        replays: what is known of each replay.
    """

    session: Session
    tree: Session
    replays: list[dict[str, Any]] = field(default_factory=list)


def stamp(run: Run, session: str) -> list[tuple[Any, ...]]:
    """The replays of a session and how far they are: changes when one of them does."""
    if not (run.path / STORE).is_file():
        return []
    wanted = {"id": Contains(f"{session}@"), "phase": "replay"}
    rows = run.store(STORE).find(wanted, limit=MOST).rows
    own = (row for row in rows if row.id.startswith(f"{session}@") and _NAME.fullmatch(row.id[len(session) + 1 :]))
    return [(row.id, row.nodes, row.status, row.score) for row in own]


def with_replays(run: Run, session: Session, names: Sequence[str]) -> Replayed:
    """A session with some of its replays."""
    if not names:
        return Replayed(session, session)
    nodes, known, first = list(session.nodes), dict[bytes, int](), dict[int | None, int | None]({None: None})
    for node in nodes:  # two branches may begin alike: what follows them is found below the first one
        first[node.id] = known.setdefault(_key(node, first[node.parent]), node.id)
    whole = Branch(None, 0, len(nodes), session.status, session.rewards, session.reward, session.error)
    branches = list(session.branches) or [whole]
    replays = []
    for name in names:
        played, start = run.store(STORE).load(name), len(nodes)
        places = _graft(nodes, known, played)
        leaf = places[-1] if places else None
        if leaf is not None and leaf >= start:
            head = nodes[start].parent
            branches.append(Branch(head, start, len(nodes), played.status, played.rewards, played.reward, played.error))
        replays.append({**_about(session, played), "leaf": leaf, "start": start, "own": len(nodes) - start})
    return Replayed(session, replace(session, nodes=nodes, branches=branches), replays)


def _graft(nodes: list[Node], known: dict[bytes, int], played: Session) -> list[int]:
    """Add a replay's nodes that are not there yet; returns the places of all of them."""
    places: list[int] = []
    for node in played.nodes:
        parent = None if node.parent is None else places[node.parent]
        key = _key(node, parent)
        if key not in known:
            known[key] = len(nodes)
            copy_of = None if node.copy_of is None else places[node.copy_of]
            nodes.append(replace(node, id=len(nodes), parent=parent, copy_of=copy_of))
        places.append(known[key])
    return places


def _key(node: Node, parent: int | None) -> bytes:
    """The identity of a message: its parent, role, tokens and their log-probabilities."""
    digest = blake2b(f"{parent} {node.message.role} {node.agent}".encode(), digest_size=16)
    digest.update(pack_ids(node.token_ids))
    digest.update(pack_floats(node.logprobs) or b"")
    return digest.digest()


def _about(session: Session, played: Session) -> dict[str, Any]:
    named = _NAME.fullmatch(played.id[len(session.id) + 1 :])
    assert named is not None
    return {
        "id": played.id,
        "turn": int(named["turn"]),
        "seed": named["seed"],
        "model": named["model"],
        "status": played.status.value,
        "error": played.error,
        "score": played.score,
        "turns": played.turns,
    }


def values(replays: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The value of each turn that was replayed: the mean score of its replays, with its standard error.

    Replays with another model are counted by themselves; a turn with fewer than two scores has no value.
    """
    scores = defaultdict(list)
    for each in replays:
        if each["score"] is not None:
            scores[each["turn"], each["model"]].append(each["score"])
    return [
        {"turn": turn, "model": model, "mean": fmean(found), "error": stdev(found) / len(found) ** 0.5, "n": len(found)}
        for (turn, model), found in scores.items()
        if len(found) > 1
    ]
