"""The session tree: nodes, sessions and groups. Functions that grow and check a tree are in `sessions.tree.tree`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean
from typing import Any

from agentrl.types.branches import Branch, mean_score
from agentrl.types.generation import Arrival, FinishReason, Sampling, VersionSpan
from agentrl.types.messages import Message, Task

AGENT = "agent"
"""The agent's name in an environment that has only one."""
MAIN = "main"
"""The name of the policy that a run trains, or evaluates."""


GREEDY = "greedy"
"""The phase of a session at temperature 0 beside the sessions of a group: a baseline, and no member of the group."""

OVERLONG = "overlong_prompts"
"""Counts, in a session, prompts that left no room for a turn while it had none."""


class Status(StrEnum):
    """The way in which a session ended; OPEN while it has not."""

    OPEN = "open"
    COMPLETED = "completed"
    TRUNCATED = "truncated"  # a limit was reached
    ABORTED = "aborted"  # stopped by the run, may be continued
    AGENT_ERROR = "agent_error"  # by the model or the user's agent program
    INFRA_ERROR = "infra_error"  # by the infrastructure: retried, never trained on, never in a baseline


class RewardState(StrEnum):
    """The state of a session's rewards: whether they may still change."""

    PENDING = "pending"  # rewards by name and for turns may come, and a final one
    FINAL = "final"  # the final reward was given; it stands, whatever rewards by name come
    SEALED = "sealed"  # nothing changes any more


@dataclass(slots=True)
class Node:
    """One message's own tokens: what it adds to its path.

    `token_ids`, `trainable` and `logprobs` have one entry per token; `logprobs` is the behaviour policy's at the
    sampling temperature, and 0.0 where a token was not sampled. `versions` counts from the node's first token. An
    assistant node begins with the generation prompt's tokens, which are not trainable.

    Attributes:
        agent: the agent on whose path the node is: who wrote the message, or who was sent it.
        policy: the policy that generated the tokens, and whose versions they are; None where none did. A turn of a
            policy that is not trained is not trainable.
        tools: the tool schemas available along the paths of a root; empty elsewhere.
        reply_id: the id under which a gateway returned the turn to its client.
        arrival: when the request for the turn reached the gateway; None for turns that no gateway returned.
        copy_of: the id of the turn that this node is an untrained copy of: without its reasoning
            (model.reasoning=strip), or with text that its client appended. The path continues from the copy; the
            turn itself is trained.
        copied_tokens: for a copy with appended text, how many of the turn's first tokens the copy begins with.
        attachments: what the node carries besides tokens, by kind (see `agentrl.attachments`).
        engines: those of a fleet that generated the turn, in order; empty where there is a single one.
        timings: seconds. Of a turn: `generation`, from the request to its last token; in it `first_token`, until the
            first arrived; in that `queue`, before the engine computed anything, where the engine says so. Of the first
            message of an environment's answer: `env`, the call of `step` or `reset`; in it `tool`, its tools, and
            `sandbox`, waiting for one. Of both `began`, when, since 1970. They don't count when nodes are compared.
    """

    id: int
    parent: int | None
    message: Message
    token_ids: list[int]
    trainable: list[bool]
    logprobs: list[float]
    versions: list[VersionSpan] = field(default_factory=list)
    sampling: Sampling | None = None
    finish_reason: FinishReason | None = None
    stopped_by: int | str | None = None
    reward: float | None = None
    agent: str = AGENT
    policy: str | None = None
    attachments: dict[str, bytes] = field(default_factory=dict)
    tools: list[dict[str, Any]] = field(default_factory=list)
    reply_id: str | None = None
    arrival: Arrival | None = None
    copy_of: int | None = None
    copied_tokens: int | None = None
    engines: tuple[str, ...] = ()
    timings: dict[str, float] = field(default_factory=dict, compare=False)

    @property
    def sampled(self) -> bool:
        """True if an engine sampled this node's tokens."""
        return self.sampling is not None

    @property
    def spawned(self) -> bool:
        """True if the node is of a sub-agent that an environment began (`Env.spawn`)."""
        return "/" in self.agent


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
        return [session for session in self._scored() if session.phase != GREEDY]

    @property
    def greedy(self) -> list[Session]:
        """The group's greedy sessions, by the same rule."""
        return [session for session in self._scored() if session.phase == GREEDY]

    def _scored(self) -> list[Session]:
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
