"""The parts of a session: nodes, branches, and the states that a session and its rewards are in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from agentrl.errors import TreeError
from agentrl.types.generation import Arrival, FinishReason, Sampling, Turn, VersionSpan
from agentrl.types.messages import Message

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
    def drawn_with(self) -> Sampling:
        """The parameters that the turn was sampled with.

        Raises:
            TreeError: the node is no sampled turn.
        """
        if self.sampling is None:
            raise TreeError(f"node {self.id} was not sampled")
        return self.sampling

    @property
    def above(self) -> int:
        """The parent's id.

        Raises:
            TreeError: the node is a root.
        """
        if self.parent is None:
            raise TreeError(f"node {self.id} is a root")
        return self.parent

    def turn(self) -> Turn:
        """Return the sampled turn as its engine gave it, without the tokens that open it.

        Raises:
            TreeError: the node is no sampled turn.
        """
        if self.finish_reason is None:
            raise TreeError(f"node {self.id} was not sampled")
        start = self.versions[0].start
        versions = tuple(replace(span, start=span.start - start, end=span.end - start) for span in self.versions)
        ids, logprobs = tuple(self.token_ids[start:]), tuple(self.logprobs[start:])
        return Turn(ids, logprobs, versions, self.finish_reason, self.stopped_by)

    @property
    def spawned(self) -> bool:
        """True if the node is of a sub-agent that an environment began (`Env.spawn`)."""
        return "/" in self.agent


@dataclass(slots=True)
class Branch:
    """One way in which a session was continued to an end of its own: nodes [start, end), and their outcome.

    A session's first branch is what it was without any fork. A session without forks lists no branches.

    Attributes:
        head: the node that it continues; None for the first branch.
        start: the id of its first own node.
        end: one past its last own node; its path ends at the node before.
        status: how it ended.
        rewards: its final rewards by name.
        reward: their weighted sum; None where there is none.
        error: what ended it, where it did not complete.
        trained: whether its own turns may be trained on; otherwise it is only an estimate of the value of its head.
    """

    head: int | None
    start: int
    end: int
    status: Status
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float | None = None
    error: str | None = None
    trained: bool = True
