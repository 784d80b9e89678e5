"""Sessions and groups, and the weights of a session's paths.

A fork continues a session several times from one of its nodes. Turns that were sampled there from the same prefix, by
the same policy and with the same sampling settings, are *siblings*: each of them is as likely as the others, so what
follows a fork is their plain mean, recursively. Every other branch (a compaction, a client's echo or retry, a
sub-agent's root) is a part of the path that made it, and has no siblings. Functions that grow and check a tree are in
`agentrl.sessions.tree.tree`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from agentrl.types.messages import Message, Task
from agentrl.types.nodes import AGENT, GREEDY, OVERLONG, Branch, Node, RewardState, Status

COUNTERFACTUALS = "counterfactuals"
"""The key in `Session.info` of the returns of counterfactual continuations (`algo=coma`), by agent, then by the number
of its turn, from 0."""
JOINT_PATH = "joint_path"
"""The key in `Session.info` of a path through a tree of joint turns that begins with known ones (`algo.pairing=cross`,
`algo.tree`): `agents`, in order, and `path`, a `JointPath` up to the first joint action that is the session's own."""

JointPath = tuple[tuple[int, ...], ...]
"""For each joint turn which of each agent's completions, from 0, it consists of."""


@dataclass(slots=True)
class Session:
    """A conversation: a forest of nodes in creation order (`nodes[i].id == i`, a parent before its children).

    Attributes:
        phase: what the session is for: train, eval, demo, or greedy (`GREEDY`).
        step: how many of the run's steps were done when it began.
        group_number: its group's; so is `group_attempt`.
        attempt: how many attempts at this sample failed before, by the infrastructure's fault.
        environment: the name under which the environment was configured.
        started: seconds since 1970; so is `ended`.
        nonce: where a gateway opened the session, what its key follows from beside the gateway's secret.
        reward_state: whether a gateway's clients may still give rewards.
        rewards: the final rewards by name.
        reward: their weighted sum; None until there is a reward. No reward means not trained on, never 0.
        agent_rewards: where an environment has several agents, the final reward of each one that the trained or
            evaluated policy plays; `reward` is then their mean. Empty for a single agent.
        partner_rewards: those of the other agents; nothing is learned from them.
        counters: event counts (tool errors, branches).
        timings: seconds by activity: `total`, until the rewards; in it `env`, the environment; then `reward`.
        info: the environment's own data, from `StepResult.info`.
        branches: where the run forked the session on purpose, each way in which it was continued (`Branch`); `reward`
            and `rewards` are then means over the paths, and status and error those of the first.
        excluded: roots whose trees are neither trained on nor credited, in order: helpers beside the task, such as the
            request for a title (`gateway.exclude`). They are never all of the roots.
    """

    id: str
    task: Task
    group: str = ""
    sample: int = 0
    seed: int = 0
    phase: str = ""
    step: int | None = None
    group_number: int | None = None
    group_attempt: int = 0
    attempt: int = 0
    environment: str = ""
    started: float | None = None
    ended: float | None = None
    nonce: str = ""
    reward_state: RewardState = RewardState.PENDING
    nodes: list[Node] = field(default_factory=list)
    status: Status = Status.OPEN
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float | None = None
    agent_rewards: dict[str, float | None] = field(default_factory=dict)
    partner_rewards: dict[str, float | None] = field(default_factory=dict)
    error: str | None = None
    counters: dict[str, int] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    branches: list[Branch] = field(default_factory=list)
    excluded: list[int] = field(default_factory=list)

    @property
    def turns(self) -> int:
        """The number of assistant messages over all branches, without copies (`Node.copy_of`)."""
        return sum(node.message.role == "assistant" and node.copy_of is None for node in self.nodes)

    @property
    def overlong(self) -> bool:
        """True if the session has no turn because its prompt left no room for one."""
        return OVERLONG in self.counters and not self.turns

    @property
    def score(self) -> float | None:
        """The final reward plus the mean over the tree's paths of the step rewards along each; None without either.

        Where there are `agent_rewards`, the mean over those agents; where there are forks, siblings count equally.
        """
        if self.agent_rewards:
            scores = [score for view in self.by_agent() if (score := view.score) is not None]
            return fmean(scores) if scores else None
        if self.branches:
            return mean_score(self)
        if all(node.reward is None for node in self.nodes):
            return self.reward
        totals = [sum(node.reward or 0.0 for node in path) for path in self.paths()]
        return (self.reward or 0.0) + sum(totals) / len(totals)

    def continued(self) -> set[int]:
        """The ids of nodes that the conversation continued from: those with children or copies (`Node.copy_of`)."""
        ids = {node.parent for node in self.nodes} | {node.copy_of for node in self.nodes}
        return {i for i in ids if i is not None}

    def unused(self) -> set[int]:
        """The ids of unused samples: turns without a reward that were not continued although a sibling was.

        Only turns that were returned to a client (`Node.reply_id`) count: a program may sample several and choose.
        The session's outcome does not depend on the others, so they get no credit for it.
        """
        returned = [node for node in self.nodes if node.sampled and node.reply_id is not None]
        continued = self.continued() if len(returned) > 1 else set()
        chosen = {node.parent for node in returned if node.id in continued}
        others = (node for node in returned if node.id not in continued and node.parent in chosen)
        return {node.id for node in others if node.reward is None}

    def excluded_nodes(self) -> set[int]:
        """The ids of the nodes below `excluded` roots; a reward for one of its turns makes a tree count."""
        if not self.excluded:
            return set()
        trees: dict[int, list[int]] = {root: [] for root in self.excluded}
        root_of: dict[int, int] = {}
        for node in self.nodes:
            root = root_of[node.id] = node.id if node.parent is None else root_of[node.parent]
            if root in trees:
                trees[root].append(node.id)
        rewarded = (any(self.nodes[i].reward is not None for i in own) for own in trees.values())
        return {i for own, counts in zip(trees.values(), rewarded, strict=True) if not counts for i in own}

    def uncredited(self) -> set[int]:
        """The ids of nodes that get no credit for the outcome: unused samples, and what is excluded."""
        return self.unused() | self.excluded_nodes()

    def partly_used(self) -> dict[int, int]:
        """Turns of which only the first tokens are on a path to an outcome: their ids and those tokens' number.

        A client that appended text to a turn (`Node.copied_tokens`) replaced its end (its end-of-turn token), which
        gets no credit unless another path goes through it.
        """
        copies = [node for node in self.nodes if node.copy_of is not None]
        partial = {node.copy_of: node.copied_tokens for node in copies if node.copied_tokens is not None}
        whole = {node.parent for node in self.nodes} | {n.copy_of for n in copies if n.copied_tokens is None}
        return {turn: count for turn, count in partial.items() if turn is not None and turn not in whole}

    def stored_paths(self) -> Iterator[list[Node]]:
        """The paths from a root to a leaf, root first, but for those that end in a node without credit."""
        left_out = self.continued() | self.uncredited()
        for leaf in (node.id for node in self.nodes if node.id not in left_out):
            path: list[Node] = []
            at: int | None = leaf
            while at is not None:
                path.append(self.nodes[at])
                at = path[-1].parent
            yield path[::-1]

    def paths(self) -> Iterator[list[Node]]:
        """The stored paths, with each copy (`Node.copy_of`) replaced by the turn that it is a copy of."""
        for path in self.stored_paths():
            yield [self.original(node) for node in path]

    def original(self, node: Node) -> Node:
        """The turn that a node is a copy of; the node itself where it is no copy."""
        return node if node.copy_of is None else self.nodes[node.copy_of]

    def by_agent(self) -> list[Session]:
        """A session for each agent of `agent_rewards`, of its own paths and reward; without any the session itself.

        So credit and training see sessions of a single agent only. Nodes are renumbered; ids end in "/AGENT".
        """
        if not self.agent_rewards:
            return [self]
        return [self._view(agent, reward) for agent, reward in self.agent_rewards.items()]

    def _view(self, agent: str, reward: float | None) -> Session:
        own = [node for node in self.nodes if node.agent == agent or node.agent.startswith(f"{agent}/")]
        ids: dict[int | None, int | None] = {None: None} | {node.id: place for place, node in enumerate(own)}
        nodes = [
            replace(node, id=place, parent=ids[node.parent], copy_of=ids[node.copy_of])
            for place, node in enumerate(own)
        ]
        id_, group = f"{self.id}/{agent}", f"{self.group}/{agent}"
        excluded = [place for root in self.excluded if (place := ids.get(root)) is not None]
        return replace(self, id=id_, group=group, nodes=nodes, reward=reward, agent_rewards={}, excluded=excluded)

    @property
    def main_agent(self) -> str:
        """The agent that began the first root which is not excluded; the others are its helpers."""
        roots = (node for node in self.nodes if node.parent is None and node.id not in self.excluded)
        return next((node.agent for node in roots), AGENT)

    @property
    def messages(self) -> list[Message]:
        """The conversation that ends in the newest node that is not excluded, root first."""
        found: list[Message] = []
        excluded = self.excluded_nodes()
        at = next((node.id for node in reversed(self.nodes) if node.id not in excluded), None)
        while at is not None:
            found.append(self.nodes[at].message)
            at = self.nodes[at].parent
        return found[::-1]

    @property
    def answer(self) -> str:
        """The text of the newest assistant message ('' where there is none), sub-agents' and excluded ones left out."""
        excluded = self.excluded_nodes()
        own = (node for node in reversed(self.nodes) if not node.spawned and node.id not in excluded)
        return next((node.message.text for node in own if node.message.role == "assistant"), "")

    def count(self, name: str, by: int = 1) -> None:
        """Add `by` to a counter."""
        self.counters[name] = self.counters.get(name, 0) + by


@dataclass(slots=True)
class Group:
    """The sessions of one task and seed, identified by `id`, never by an array position.

    `number` counts a run's groups from 0 and decides the seed; `choice` is what the task sampler chose for it, as JSON;
    `attempt` counts how often that number was generated before; `step` is the run's step that it was begun in, from 0.
    `sessions` may have a `GREEDY` one beside the group's own. `view_of` is the id of the group that it is one agent's
    view of (`by_agent`).
    """

    id: str
    task: Task
    sessions: list[Session] = field(default_factory=list)
    number: int = 0
    attempt: int = 0
    step: int = 0
    choice: Any = None
    view_of: str | None = None

    @property
    def scored(self) -> list[Session]:
        """The group's own sessions with a score that did not end in an infrastructure error."""
        return [session for session in self._list_scored() if session.phase != GREEDY]

    @property
    def greedy(self) -> list[Session]:
        """The group's greedy sessions, by the same rule."""
        return [session for session in self._list_scored() if session.phase == GREEDY]

    def _list_scored(self) -> list[Session]:
        return [s for s in self.sessions if s.status is not Status.INFRA_ERROR and s.score is not None]

    def by_agent(self) -> list[Group]:
        """A group for each agent that has a reward of its own (`Session.by_agent`), else the group itself.

        So an agent is compared with the same agent in the other sessions, never with another agent.
        """
        views: dict[str, list[Session]] = {}
        for session in self.sessions:
            for agent, view in zip(session.agent_rewards, session.by_agent(), strict=False):
                views.setdefault(agent, []).append(view)
        return [
            replace(self, id=f"{self.id}/{agent}", sessions=each, view_of=self.id) for agent, each in views.items()
        ] or [self]


def joint_path(session: Session, agents: int) -> JointPath:
    """Return the joint actions of so many agents up to the last that is not the first of its state."""
    if (known := session.info.get(JOINT_PATH)) is None:
        return ((session.sample,) * agents,)
    return tuple(map(tuple, known["path"]))


def branch_of(session: Session, node_id: int) -> Branch | None:
    """The branch that a node is of; None in a session without forks."""
    return next((branch for branch in session.branches if branch.start <= node_id < branch.end), None)


def outcome(session: Session, node_id: int) -> float:
    """The final reward of the path that ends at a node, 0 without one: its branch's, where the session has forks."""
    branch = branch_of(session, node_id)
    return (session.reward if branch is None else branch.reward) or 0.0


def is_scored(session: Session, branch: Branch) -> bool:
    """Return whether anything of a branch was rewarded: otherwise it is neither trained on nor compared with."""
    own = session.nodes[branch.start : branch.end]
    return branch.reward is not None or any(node.reward is not None for node in own)


def siblings(session: Session) -> list[list[int]]:
    """Sets of turns that are siblings at a fork, at least two in each, by the ids of their nodes.

    Turns that lead to no branch that was rewarded are left out.
    """
    heads = dict.fromkeys(branch.head for branch in session.branches if branch.head is not None)
    if not heads:
        return []
    led = set(_scored_leaves(session))
    for node in reversed(session.nodes):
        if node.id in led and node.parent is not None:
            led.add(node.parent)
    sets: dict[tuple[Any, ...], list[int]] = {}
    for node in session.nodes:
        if node.parent in heads and node.sampled and node.id in led:
            sets.setdefault((node.parent, *conditions(node)), []).append(node.id)
    return [members for members in sets.values() if len(members) > 1]


def conditions(node: Node) -> tuple[Any, ...]:
    """Return what siblings have in common: agent, policy, sampling without the seed, the generation prompt."""
    opening = node.token_ids[: node.versions[0].start]
    return node.agent, node.policy, replace(node.drawn_with, seed=None, max_new_tokens=0, record=()), tuple(opening)


def path_weights(session: Session) -> dict[int, float]:
    """Return the weight of each rewarded stored path in the session, by the id of its last node; they sum to 1.

    Siblings share equally what their fork has; at any other branch the paths do, as in a session without forks.
    """
    leaves = _scored_leaves(session)
    parents = [node.parent for node in session.nodes]
    set_of = {member: members for members in siblings(session) for member in members}
    paths = [0.0] * len(parents)  # below each node; a fork counts as one of its siblings does, on average
    total = 0.0
    for node in reversed(range(len(parents))):
        paths[node] += node in leaves
        part = paths[node] / len(set_of.get(node, (node,)))
        parent = parents[node]
        if parent is None:
            total += part
        else:
            paths[parent] += part
    weights = [0.0] * len(parents)
    for node, parent in enumerate(parents):
        if not paths[node]:
            continue
        members = set_of.get(node)
        mine = paths[node] if members is None else sum(paths[m] for m in members) / len(members) ** 2
        above, below = (1.0, total) if parent is None else (weights[parent], paths[parent])
        weights[node] = above * mine / below
    return {leaf: weights[leaf] for leaf in leaves}


def mean_score(session: Session) -> float | None:
    """The mean of the paths' final and step rewards, by `path_weights`; None where no path was rewarded."""
    weights = path_weights(session)
    if not weights:
        return None
    paths = {path[-1].id: path for path in session.stored_paths()}
    return sum(
        weight * (outcome(session, leaf) + sum(session.original(node).reward or 0.0 for node in paths[leaf]))
        for leaf, weight in weights.items()
    )


def _scored_leaves(session: Session) -> list[int]:
    """The last nodes of the stored paths that were rewarded, in order."""
    left_out = session.continued() | session.uncredited()
    for branch in session.branches:
        if not is_scored(session, branch):
            left_out.update(range(branch.start, branch.end))
    return [node.id for node in session.nodes if node.id not in left_out]
