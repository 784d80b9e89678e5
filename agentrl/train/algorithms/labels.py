"""Credit for losses over single sequences with a verdict (KTO), and the mismatched completions that they measure.

KTO compares a sequence's log-ratio to the reference with that of completions under prompts that they don't belong to,
whose mean over the batch estimates the policy's divergence (Ethayarajh et al., arXiv:2402.01306, section 4.1). Such a
completion hangs as an untrained branch on the tree of its new prompt, whose tokens are computed anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentrl.rollout.stream.seeds import derive
from agentrl.train.algorithms.credit import Credit, Label, NodeKey, SequenceKind
from agentrl.train.algorithms.pairs import compared_nodes, spread
from agentrl.types import Group, Node, Session


def label_credit(groups: Sequence[Group], labels: Sequence[Label], kind: SequenceKind, seed: int) -> Credit:
    """Credit that trains the labelled sequences, and measures each of them below another prompt.

    Args:
        groups: of the sessions that the labels name.
        labels: in any order; verdicts of 1 and -1.
        kind: what a sequence is.
        seed: decides which prompt a completion is measured below.

    Raises:
        InvalidInput: a label names what is no sequence with trainable tokens.
    """
    added = mismatched(groups, [label.sequence for label in labels], kind, seed)
    sessions = [session for group in (*groups, *added) for session in group.sessions]
    weight = 1 / max(len(labels), 1)  # of what is measured it only has to be above 0
    measured = [Label((s.id, s.nodes[-1].id), 0, weight) for group in added for s in group.sessions]
    every = [*labels, *measured]
    return Credit(spread(sessions, every, kind), labels=every, added=added)


@dataclass(frozen=True, slots=True)
class _Example:
    """A sequence with its prompt: the nodes before its first trained one, and those from there to its last."""

    name: NodeKey
    session: Session
    group: Group
    prompt: list[Node]
    completion: list[Node]

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return tuple(token for node in self.prompt for token in node.token_ids)


def mismatched(groups: Sequence[Group], sequences: Sequence[NodeKey], kind: SequenceKind, seed: int) -> list[Group]:
    """Groups of sessions in which each sequence's completion follows another prompt, by their groups' ids.

    Distinct prompts, in the order of their sessions' ids, are shifted by a number of places that the seed decides, so
    each completion is below a prompt that is not its own, and each prompt gets those of one other. With a single
    prompt there are none.
    """
    wanted: dict[str, list[int]] = {}
    for name, last in sequences:
        wanted.setdefault(name, []).append(last)
    sessions = [(session, group) for group in groups for session in group.sessions]
    examples = [
        _example(session, group, last, kind) for session, group in sessions for last in wanted.get(session.id, ())
    ]
    examples.sort(key=lambda example: example.name)
    prompts: dict[tuple[int, ...], list[_Example]] = {}
    for example in examples:
        prompts.setdefault(example.prompt_ids, []).append(example)
    members = list(prompts.values())
    if len(members) < 2:
        return []
    shift = 1 + derive(seed, "mismatched", members[0][0].session.id) % (len(members) - 1)
    added: dict[str, Group] = {}
    for place, (host, *_) in enumerate(members):
        own = added.setdefault(host.group.id, replace(host.group, sessions=[]))
        for example in members[(place + shift) % len(members)]:
            number = sorted(wanted[example.session.id]).index(example.name[1])
            made = _below(host, example, f"{example.session.id}~{number}")
            own.sessions += [made] if compared_nodes(made) else []  # a copy's tokens are not measured
    return list(added.values())


def _example(session: Session, group: Group, last: int, kind: SequenceKind) -> _Example:
    path, at = list[Node](), session.nodes[last]
    while True:
        path.insert(0, at)
        if at.parent is None:
            break
        at = session.nodes[at.parent]
    trained = {last} if kind == "turn" else {node.id for node in compared_nodes(session)}
    first = next(place for place, node in enumerate(path) if session.original(node).id in trained)
    return _Example((session.id, last), session, group, path[:first], path[first:])


def _measured(node: Node, completes: bool) -> list[bool]:
    return list(node.trainable) if completes and node.copy_of is None else [False] * len(node.token_ids)


def _below(host: _Example, example: _Example, name: str) -> Session:
    """A session of the host's prompt and the example's completion, which no policy sampled there."""
    nodes = [
        replace(
            node,
            id=place,
            parent=place - 1 if place else None,
            trainable=_measured(node, place >= len(host.prompt)),
            versions=[],
            reward=None,
            reply_id=None,
            copy_of=None,
            copied_tokens=None,
        )
        for place, node in enumerate((*host.prompt, *example.completion))
    ]
    session = host.session
    return Session(name, session.task, group=session.group, phase=session.phase, nodes=nodes)
