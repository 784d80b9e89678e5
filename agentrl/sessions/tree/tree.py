"""The session tree: pure functions over `Session.nodes`, and its invariants, stated in one place (`check`).

Nodes only ever get added. A node holds its message's own tokens (its delta), so a path's tokens are a plain
concatenation, and a branch costs what is new in it. There is no clock, network or randomness here.
Lookups scan the list of nodes; callers that need a path on every turn keep it, as `Conversation` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl import attachments
from agentrl.attachments import support
from agentrl.errors import InvalidInput, TreeError, UnknownName
from agentrl.sessions.renderers.base import RenderedMessage
from agentrl.sessions.tree import trainability
from agentrl.types import AGENT, MAIN, FinishReason, Message, Node, Sampling, Session, Turn, VersionSpan

SLACK = 1e-3
"""The most that rounding may lift a log-probability above 0."""


def add(
    session: Session,
    parent: int | None,
    message: Message,
    token_ids: Sequence[int],
    *,
    trainable: Sequence[bool] | None = None,
    logprobs: Sequence[float] | None = None,
    versions: Sequence[VersionSpan] = (),
    sampling: Sampling | None = None,
    finish_reason: FinishReason | None = None,
    stopped_by: int | str | None = None,
    agent: str = AGENT,
    policy: str | None = None,
    attached: Mapping[str, bytes] | None = None,
    tools: Sequence[Any] = (),
    reply_id: str | None = None,
    copy_of: int | None = None,
    copied_tokens: int | None = None,
) -> Node:
    """Append a node; without `trainable` and `logprobs` none of its tokens is trained on.

    Raises:
        TreeError: the result would break an invariant (see `check`); the session is left as it was.
    """
    ids = list(token_ids)
    node = Node(
        id=len(session.nodes),
        parent=parent,
        message=message,
        token_ids=ids,
        trainable=list(trainable) if trainable is not None else [False] * len(ids),
        logprobs=list(logprobs) if logprobs is not None else [0.0] * len(ids),
        versions=list(versions),
        sampling=sampling,
        finish_reason=finish_reason,
        stopped_by=stopped_by,
        agent=agent,
        policy=policy,
        attachments=dict(attached or {}),
        tools=[dict(tool) for tool in tools],
        reply_id=reply_id,
        copy_of=copy_of,
        copied_tokens=copied_tokens,
    )
    _check_place(session, node)
    _check_node(node)
    if node.attachments:
        _check_attachments(session, node, len(ids) + len(path_ids(session, parent)))
    session.nodes.append(node)
    return node


def adopt(session: Session, node: Node) -> Node:
    """Append a node that was added to a copy of the session, below the same parent; its id becomes the next one."""
    node.id = len(session.nodes)
    session.nodes.append(node)
    return node


def add_turn(
    session: Session,
    parent: int | None,
    opening: Sequence[int],
    turn: Turn,
    sampling: Sampling,
    message: Message,
    *,
    agent: str = AGENT,
    policy: str = MAIN,
    trained: bool = True,
    reply_id: str | None = None,
) -> Node:
    """Append a turn that an engine generated: the generation prompt's tokens, then the turn's.

    Which sampled tokens are trainable is decided by `trainability.reasons`; none is of a policy that is not `trained`.
    """
    before, sampled = len(opening), len(turn.token_ids)
    found = trainability.reasons(sampling, turn.attachments, sampled, trained=trained)
    node = add(
        session,
        parent,
        message,
        [*opening, *turn.token_ids],
        trainable=[False] * before + [reason is None for reason in found],
        logprobs=[0.0] * before + list(turn.logprobs),
        versions=[VersionSpan(v.version, v.start + before, v.end + before) for v in turn.versions if v.end > v.start],
        sampling=sampling,
        finish_reason=turn.finish_reason,
        stopped_by=turn.stopped_by,
        agent=agent,
        policy=policy,
        attached=turn.attachments,
        reply_id=reply_id,
    )
    node.engines, node.timings = turn.engines, dict(turn.timings)
    return node


def add_rendered(
    session: Session,
    parent: int | None,
    rendered: RenderedMessage,
    *,
    trainable: Sequence[bool] | None = None,
    agent: str = AGENT,
    tools: Sequence[Any] = (),
) -> Node:
    """Append a rendered message; without `trainable` it is not trained on."""
    return add(
        session,
        parent,
        rendered.message,
        rendered.token_ids,
        trainable=trainable,
        agent=agent,
        tools=tools,
        copy_of=rendered.copy_of,
        copied_tokens=rendered.copied_tokens,
        attached=rendered.attachments,
    )


def path(session: Session, node_id: int | None) -> list[Node]:
    """The nodes from the root to `node_id`, both included; nothing for None."""
    found: list[Node] = []
    while node_id is not None:
        node = get(session, node_id)
        found.append(node)
        node_id = node.parent
    return found[::-1]


def path_ids(session: Session, node_id: int | None) -> list[int]:
    """The tokens of the path to `node_id`: exactly what the engine received and generated."""
    return [token for node in path(session, node_id) for token in node.token_ids]


def get(session: Session, node_id: int) -> Node:
    """The node of that id; TreeError where there is none."""
    if not 0 <= node_id < len(session.nodes):
        raise TreeError(f"session {session.id!r} has no node {node_id}; it has {len(session.nodes)} nodes")
    return session.nodes[node_id]


def children(session: Session, node_id: int | None) -> list[Node]:
    """The nodes right below `node_id`, oldest first; the roots for None."""
    return [node for node in session.nodes if node.parent == node_id]


def roots(session: Session) -> list[Node]:
    """The nodes without a parent, oldest first."""
    return children(session, None)


def leaves(session: Session) -> list[Node]:
    """The nodes without children, oldest first."""
    parents = {node.parent for node in session.nodes}
    return [node for node in session.nodes if node.id not in parents]


def depth(session: Session, node_id: int) -> int:
    """Return the number of nodes above this one."""
    return len(path(session, node_id)) - 1


def find_unrecorded(session: Session, node_id: int | None, kinds: Iterable[str]) -> attachments.Record:
    """For each kind of attachment, the token from which on the path to `node_id` has none yet."""
    record: attachments.Record = tuple((kind, 0) for kind in sorted(kinds))
    length = 0
    for node in path(session, node_id) if record else ():
        length += len(node.token_ids)
        record = attachments.list_unrecorded(record, node.attachments, length)
    return record


def position(session: Session, node_id: int) -> int:
    """The place of the node's first token in its path, in tokens."""
    return sum(len(node.token_ids) for node in path(session, get(session, node_id).parent))


def size(session: Session) -> int:
    """Return the number of tokens that the tree holds, shared ones once."""
    return sum(new_tokens(node) for node in session.nodes)


def new_tokens(node: Node) -> int:
    """Return the number of a node's own tokens: all but those copied from another turn (`Node.copied_tokens`)."""
    return len(node.token_ids) - (node.copied_tokens or 0)


def check(session: Session) -> None:
    """Check every invariant of a session tree.

    1. `nodes[i].id == i`, and a parent was there before its children.
    2. `token_ids`, `trainable` and `logprobs` are equally long; ids are not negative.
    3. Tokens that are trained on end their node: before an assistant's is the generation prompt. Those of others are
       trained on only where no engine sampled anything in it (`data.train_on`). A gap is a sampled token that can't be
       trained.
    4. A sampled node has at least one sampled token; its version spans cover the sampled tokens, in order and
       without a gap, up to the node's end. None of them is trainable, or those that can be
       (`trainability.reasons`).
    5. Log-probabilities are finite, not above 0, and 0.0 where a token was not sampled.
    6. A sampled turn has ended (`stop` or `length`), and one that a length limit cut has no children.
    7. Rewards are finite; tools stand at roots only.
    8. A copy (`copy_of`) is of an earlier assistant node, and is not trained on. One with `copied_tokens` is a sibling
       of a sampled turn that has ended, and begins with that many of its tokens; all such copies of a turn have the
       same number.
    9. Attachments are of known kinds and fit the path up to the node's end (`attachments.AttachmentKind.check`).

    Raises:
        TreeError: the first violation, with the session and the node.
    """
    ends: dict[int | None, int] = {None: 0}
    for place, node in enumerate(session.nodes):
        if node.id != place:
            raise TreeError(f"session {session.id!r}: the node at place {place} has the id {node.id}")
        _check_place(session, node)
        _check_node(node)
        ends[place] = ends[node.parent] + len(node.token_ids)
        _check_attachments(session, node, ends[place])


def _check_place(session: Session, node: Node) -> None:
    if node.copy_of is not None and (
        not 0 <= node.copy_of < node.id
        or session.nodes[node.copy_of].message.role != node.message.role
        or node.sampled
        or any(node.trainable)
    ):
        raise TreeError(f"session {session.id!r}: node {node.id} can't be a copy of node {node.copy_of}")
    if node.copied_tokens is not None:
        _check_copied(session, node, node.copied_tokens)
    if node.parent is None:
        return
    if not 0 <= node.parent < node.id:
        raise TreeError(f"session {session.id!r}: node {node.id} names {node.parent} as its parent, which isn't before")
    if session.nodes[node.parent].finish_reason is FinishReason.LENGTH:
        raise TreeError(f"session {session.id!r}: node {node.parent} was cut by a length limit; nothing can follow it")
    if node.tools:
        raise TreeError(f"session {session.id!r}: node {node.id} has tools, which belong to a root")


def _check_copied(session: Session, node: Node, copied: int) -> None:
    where = f"session {session.id!r}: node {node.id} copies {copied} tokens"
    if node.copy_of is None:
        raise TreeError(f"{where} of no turn")
    turn = session.nodes[node.copy_of]
    if not turn.versions or turn.finish_reason is not FinishReason.STOP or turn.parent != node.parent:
        raise TreeError(f"{where} of node {turn.id}; expected a sampled turn that has ended, with the same parent")
    if not turn.versions[0].start < copied <= len(turn.token_ids) or node.token_ids[:copied] != turn.token_ids[:copied]:
        raise TreeError(f"{where} of node {turn.id}, which does not begin with them, or samples none of them")
    others = {n.copied_tokens for n in session.nodes[: node.id] if n.copy_of == turn.id} - {None, copied}
    if others:
        raise TreeError(f"{where} of node {turn.id}, of which others copy {sorted(filter(None, others))}")


def _check_attachments(session: Session, node: Node, end: int) -> None:
    try:
        attachments.check(node.attachments, end)
    except (InvalidInput, UnknownName) as error:
        raise TreeError(f"session {session.id!r}: node {node.id}: {error}") from None


def _check_node(node: Node) -> None:
    where = f"node {node.id} ({node.message.role})"
    count = len(node.token_ids)
    if not len(node.trainable) == len(node.logprobs) == count:
        lengths = f"{count} ids, {len(node.trainable)} trainable, {len(node.logprobs)} logprobs"
        raise TreeError(f"{where}: entries differ in number: {lengths}")
    first = _check_tokens(node, where) if count else 0
    if node.reward is not None and not math.isfinite(node.reward):
        raise TreeError(f"{where}: reward {node.reward} is not finite")
    _check_sampled(node, where, first)


def _check_tokens(node: Node, where: str) -> int:
    """Returns the place of the first trainable token: their number where there is none."""
    if min(node.token_ids) < 0:
        raise TreeError(f"{where}: token id {min(node.token_ids)} is negative")
    first = node.trainable.index(True) if True in node.trainable else len(node.token_ids)
    if not all(node.trainable[first:]) and support.NAME not in node.attachments:
        raise TreeError(f"{where}: trainable tokens must end the node, without a gap")
    if first < len(node.token_ids) and node.message.role != "assistant" and node.sampled:
        raise TreeError(f"{where}: of what an engine sampled, only an assistant's tokens can be trained on")
    if not all(map(math.isfinite, node.logprobs)) or max(node.logprobs) > SLACK:
        raise TreeError(f"{where}: a log-probability is not finite or above 0")
    return first


def _check_sampled(node: Node, where: str, first: int) -> None:
    count = len(node.token_ids)
    start = node.versions[0].start if node.versions else count
    if any(node.logprobs[:start]):
        raise TreeError(f"{where}: a token that was not sampled has a log-probability")
    if node.sampling is None:
        if node.versions or node.finish_reason is not None:
            raise TreeError(f"{where}: versions and a finish reason belong to sampled turns")
        return
    ends = [span.start for span in node.versions[1:]] + [count]
    if not node.versions or any(not s.start < s.end == end for s, end in zip(node.versions, ends, strict=True)):
        raise TreeError(f"{where}: version spans must cover the sampled tokens up to the node's end: {node.versions}")
    if node.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
        raise TreeError(f"{where}: a stored turn has ended by stop or length, not {node.finish_reason}")
    if first == count or (first == start and node.sampling.full_support):
        return
    if node.trainable != [False] * start + [reason is None for reason in trainability.of_node(node)]:
        raise TreeError(f"{where}: sampled tokens are trainable where their support is known, and then all of these")
