"""Packing of sessions and their credit into forests: merge, trim, split to the budget, and bin-pack.

The loss is a sum over distinct trained tokens with fixed weights, so packing is free to do whatever is
fastest. Trailing tokens after a branch's last trained one are dropped. A tree longer than the budget is split
between its leaves: each part includes the ancestors that it needs, and they are trained in the first part
only. A single path longer than the budget can't be split and gets a forest of its own, which is then longer:
better a large micro-batch than a session silently left out. The budget counts tokens, and patches of images, whose
tower needs memory too.

Parts are placed largest first into the first forest with enough free tokens; the seed shuffles parts of equal size.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl.errors import InvalidInput
from agentrl.train.algorithms.credit import Credit, NodeKey, SequenceKind, passed_to_helpers
from agentrl.train.algorithms.fields import FieldValues, ForestField
from agentrl.train.algorithms.sequences import SequenceIndex, Sequences
from agentrl.train.driver.minibatches import updates_of
from agentrl.train.forest import supports
from agentrl.train.forest.columns import Column
from agentrl.train.forest.forest import Forest, Membership
from agentrl.train.forest.layout import ForestPart, Merge, build_forest
from agentrl.train.forest.pictures import Pictures
from agentrl.train.forest.recorded_experts import experts_by_node, experts_of_segments
from agentrl.train.forest.trie import Segment, Stamp, Stamps, merge_sessions
from agentrl.types import Group, Session

if TYPE_CHECKING:
    from agentrl.train.algorithms import Algorithm
    from agentrl.train.algorithms.credit import Values

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """`length` tokens of a node, from the node's `start` on, are trained in a forest, where they begin at `at`."""

    node: NodeKey
    start: int
    at: int
    length: int


def pack(
    groups: Sequence[Group],
    credit: Credit,
    token_budget: int,
    *,
    seed: int = 0,
    merge: Merge = "mean",
    sequence: SequenceKind | None = None,
    view: int = 0,
    updates: Mapping[str, tuple[Membership, ...]] | None = None,
    fields: Sequence[ForestField] = (),
) -> list[Forest]:
    """Pack the sessions that have credit into forests of at most `token_budget` tokens (see the exception above).

    Args:
        groups: sessions merge within a group, and never across groups.
        credit: advantages by session and node; nodes without an entry are not trained.
        token_budget: tokens of one forest, and patches of its images.
        seed: decides the order among trees of equal size.
        merge: how several advantages at one token are combined.
        sequence: also list which sequences the trained tokens belong to; see `agentrl.train.algorithms.sequences`.
        view: how many numbers of `Env.critic_view` forests have; tokens before which they differ are not merged.
        updates: of groups, by id, which updates they are a part of; groups with others are never in one forest.
        fields: declared by the algorithm and its loss (`Algorithm.fields`).

    Raises:
        InvalidInput: the budget is not positive, two sessions or fields have one name, or recorded experts or a
            field's values don't fit their nodes.
    """
    found = pack_with_spans(
        groups,
        credit,
        token_budget,
        seed=seed,
        merge=merge,
        sequence=sequence,
        view=view,
        updates=updates,
        fields=fields,
    )
    return [forest for forest, _ in found]


def pack_credited(
    algorithm: Algorithm, groups: Sequence[Group], values: Values | None, token_budget: int, seed: int
) -> tuple[Credit, list[Forest]]:
    """A step's credit, and the forests that its trainer gets.

    Args:
        algorithm: gives credit, and says how advantages are merged.
        groups: of one agent each, with rewards as credit is to see them.
        values: a critic's or a reward model's, where the algorithm needs them.
        token_budget: tokens of one forest.
        seed: see `pack`.
    """
    config = algorithm.config
    credit = passed_to_helpers(algorithm.credit(groups, values), groups, config.helper_credit)
    reads_own = algorithm.needs.critic and not algorithm.reads_joint_paths  # a critic, with these forests
    view, merge = algorithm.critic_config.value_view if reads_own else 0, config.merge
    updates = updates_of(groups, credit, config, seed) if config.minibatches > 1 else None
    settings: dict[str, Any] = {"sequence": algorithm.sequence, "updates": updates, "fields": algorithm.fields}
    return credit, pack(groups, credit, token_budget, seed=seed, merge=merge, view=view, **settings)


def pack_with_spans(
    groups: Sequence[Group],
    credit: Credit,
    token_budget: int,
    *,
    seed: int = 0,
    merge: Merge = "mean",
    sequence: SequenceKind | None = None,
    view: int = 0,
    updates: Mapping[str, tuple[Membership, ...]] | None = None,
    fields: Sequence[ForestField] = (),
) -> Iterator[tuple[Forest, Iterator[NodeSpan]]]:
    """`pack`, with each forest's node spans; tokens that several sessions share have a span for each of them."""
    if token_budget < 1:
        raise InvalidInput(f"token_budget must be at least 1, not {token_budget}")
    groups = [*groups, *credit.added]
    sessions = [session for group in groups for session in group.sessions]
    if len({s.id for s in sessions}) < len(sessions):
        raise InvalidInput("session ids must be unique within a batch")
    declared = FieldValues(fields)
    stamps = Stamps(view, declared)
    parts: dict[tuple[Membership, ...], list[ForestPart]] = {}
    for group, members in _by_group(groups).items():
        own = parts.setdefault((updates or {}).get(group, ()), [])
        own += _split(merge_sessions(members, credit, stamps), token_budget, stamps.pictures)
    placed = [(which, bin_) for which in sorted(parts) for bin_ in _fill(parts[which], token_budget, seed)]
    bins = [bin_ for _, bin_ in placed]
    table = [Stamp(view=(0.0,) * view), *stamps.known]
    names = tuple(session.id for session in sessions)
    agents = tuple(sorted({node.agent for session in sessions for node in session.nodes}))
    critic = any(share.returns is not None for shares in credit.shares.values() for share in shares)
    experts = [experts_by_node(session) for session in sessions]
    pairs: Sequence[Sequences | None] = [None] * len(bins)
    if sequence is not None:
        pairs = SequenceIndex(sessions, credit, sequence).pairs([list(_list_trained(parts)) for parts in bins])
    for (which, bin_), together in zip(placed, pairs, strict=True):
        forest = build_forest(bin_, table, names, agents, merge, critic)
        forest.routed_experts = experts_of_segments(_in_order(bin_), experts)
        forest.sequences, forest.updates = together, which
        drawn = supports.fields_of(_in_order(bin_), sessions)
        forest.fields = drawn | {field.name: _column(field, declared, bin_, sessions) for field in fields}
        if stamps.pictures:
            seen = stamps.pictures.restore(forest.token_ids, forest.position, forest.path_sum)
            forest.token_ids, forest.fields = seen[0], forest.fields | seen[1]
        yield forest, _node_spans(bin_, names)


def _in_order(parts: Sequence[ForestPart]) -> Iterator[tuple[Segment, int]]:
    """A forest's segments, and how many tokens of each are in it."""
    for part in parts:
        yield from zip(part.segments, part.lengths, strict=True)


def _column(
    field: ForestField, declared: FieldValues, parts: Sequence[ForestPart], sessions: Sequence[Session]
) -> Column:
    """A declared field of a forest's tokens, each from its first owner."""
    values = []
    for segment, length in _in_order(parts):
        first = segment.owners[0]
        found = declared.of_node(field, sessions[first.session], first.node)
        values += found[first.start : first.start + length]
    return Column.of(field, values)


def _list_trained(parts: Sequence[ForestPart]) -> Iterator[tuple[Segment, int, int]]:
    """The segments that a forest trains, their lengths, and where they begin in it."""
    at = 0
    for part in parts:
        for segment, length, trained in zip(part.segments, part.lengths, part.trained, strict=True):
            if trained:
                yield segment, length, at
            at += length


def _node_spans(parts: Sequence[ForestPart], sessions: Sequence[str]) -> Iterator[NodeSpan]:
    for segment, length, at in _list_trained(parts):
        for owner in segment.owners:
            if owner.shares:
                yield NodeSpan((sessions[owner.session], owner.node.id), owner.start, at, length)


def path_tokens(groups: Sequence[Group], credit: Credit) -> int:
    """Tokens that the same batch takes with each root-to-leaf path as a row of its own (for the metrics)."""
    total = 0
    for session in (s for group in (*groups, *credit.added) for s in group.sessions):
        length: dict[int | None, int] = {None: 0}
        for node in session.nodes:
            length[node.id] = length[node.parent] + len(node.token_ids)
        inner: set[int | None] = set()
        for node in reversed(session.nodes):
            leaf = node.id not in inner and (session.id, node.id) in credit.shares
            total += length[node.id] if leaf else 0
            if leaf or node.id in inner:
                inner |= {node.parent} if node.copied_tokens is None else {node.parent, node.copy_of}
    return total


def _by_group(groups: Sequence[Group]) -> dict[str, list[tuple[int, Session]]]:
    index = 0
    members: dict[str, list[tuple[int, Session]]] = {}
    for group in groups:
        for session in group.sessions:
            members.setdefault(group.id, []).append((index, session))
            index += 1
    return members


def _split(root: Segment, budget: int, pictures: Pictures) -> list[ForestPart]:
    """The tree in depth-first order, trimmed, as parts that fit the budget wherever paths allow it."""
    segments: list[Segment] = []
    parents: list[int] = []
    stack = [(child, -1) for child in reversed(root.children.values())]
    while stack:
        segment, parent = stack.pop()
        stack += [(child, len(segments)) for child in reversed(segment.children.values())]
        segments.append(segment)
        parents.append(parent)
    lengths = [0] * len(segments)
    inner = [False] * len(segments)
    for i in reversed(range(len(segments))):
        lengths[i] = segments[i].key.size if inner[i] else segments[i].trained
        if lengths[i] and parents[i] >= 0:
            inner[parents[i]] = True
    leaves = [i for i, length in enumerate(lengths) if length and not inner[i]]
    patches = [
        pictures.patches(one.key[:length]) if pictures else 0 for one, length in zip(segments, lengths, strict=True)
    ]
    parts, current, size, seen = [], set[int](), 0, set[int]()
    for leaf in leaves:
        path = _path(leaf, parents)
        cost = sum(lengths[i] + patches[i] for i in path if i not in current)
        if current and size + cost > budget:
            parts.append(_part(current, seen, segments, lengths, parents, patches))
            seen |= current
            current, size = set(), 0
            cost = sum(lengths[i] + patches[i] for i in path)
        current.update(path)
        size += cost
    if current:
        parts.append(_part(current, seen, segments, lengths, parents, patches))
    return parts


def _path(at: int, parents: Sequence[int]) -> list[int]:
    path = []
    while at >= 0:
        path.append(at)
        at = parents[at]
    return path


def _part(
    chosen: set[int],
    seen: set[int],
    segments: Sequence[Segment],
    lengths: Sequence[int],
    parents: Sequence[int],
    patches: Sequence[int],
) -> ForestPart:
    order = sorted(chosen)
    place = {-1: -1} | {segment: i for i, segment in enumerate(order)}
    return ForestPart(
        tuple(segments[i] for i in order),
        tuple(lengths[i] for i in order),
        tuple(place[parents[i]] for i in order),
        tuple(i not in seen for i in order),
        sum(patches[i] for i in order),
    )


def _fill(parts: Sequence[ForestPart], budget: int, seed: int) -> list[list[ForestPart]]:
    order = list(parts)
    random.Random(seed).shuffle(order)
    return fill_bins(order, lambda part: part.load, budget)


def fill_bins(items: Iterable[T], size: Callable[[T], int], budget: int) -> list[list[T]]:
    """Return bins of at most `budget`, unless one item has more: the largest first, each where there is room first."""
    bins: list[list[T]] = []
    free: list[int] = []
    for item in sorted(items, key=size, reverse=True):
        place = next((i for i, left in enumerate(free) if left >= size(item)), None)
        if place is None:
            bins.append([])
            free.append(budget)
            place = len(bins) - 1
        bins[place].append(item)
        free[place] -= size(item)
    return bins
