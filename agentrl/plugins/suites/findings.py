"""Runner of a suite's checks, and the sessions that they are run on."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from agentrl.errors import ConfigError
from agentrl.registry import Registry
from agentrl.rollout.engines.contract import ContractFinding
from agentrl.rollout.engines.contract.subject import expect as expect
from agentrl.types import FinishReason, Group, Message, Node, Sampling, Session, Status, Task, VersionSpan

S = TypeVar("S")
VOCABULARY = 64
"""The token ids of the sessions here are below it."""


def find_problems(checks: Iterable[Callable[[S], None]], subject: S) -> list[ContractFinding]:
    """Return the problems that checks find in a subject; a check raises where a promise is broken."""
    findings = []
    for check in checks:
        try:
            check(subject)
        except Exception as error:
            findings.append(finding_of(check, error))
    return findings


async def find_problems_async(
    checks: Iterable[Callable[[S], Awaitable[None] | None]], subject: S
) -> list[ContractFinding]:
    """As `find_problems`, of checks some of which are coroutines."""
    findings = []
    for check in checks:
        try:
            if inspect.isawaitable(result := check(subject)):
                await result
        except Exception as error:
            findings.append(finding_of(check, error))
    return findings


def configure(registry: Registry[Any], given: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return a plug-in by its name, or as it is given, and its section of the configuration.

    Raises:
        UnknownName: there is none of that name.
        ConfigError: it does not have these settings.
    """
    kind = registry.find(given) if isinstance(given, str) else given
    own = getattr(given, "name", "") or getattr(given, "__name__", "checked")
    name = given if isinstance(given, str) else own
    try:
        return kind, kind.settings.model_validate({"name": name, **settings})
    except ValueError as error:
        raise ConfigError(f"{registry.setting}={name!r}: {error}") from error


def finding_of(check: Callable[..., object], error: Exception) -> ContractFinding:
    """A check's name, and what it said."""
    words = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
    return ContractFinding(check.__name__, words)


def sampled_groups(seed: int = 0, groups: int = 3, size: int = 4, turns: int = 2) -> list[Group]:
    """Groups of sessions with random tokens and rewards; the rewards of the last group are all equal."""
    rng = random.Random(seed)
    made = []
    for number in range(groups):
        task = Task(id=f"task-{number}")
        prompt = [rng.randrange(1, VOCABULARY) for _ in range(4)]
        sessions = [_session(rng, f"train-{number}-{place}", task, prompt, turns) for place in range(size)]
        for place, session in enumerate(sessions):
            session.reward = 1.0 if number == groups - 1 else round(rng.random() * 0.9 + 0.1 * (place % 2), 3)
            session.rewards = {"score": session.reward}
        made.append(Group(f"group-{number}", task, sessions, number=number))
    return made


def _session(rng: random.Random, name: str, task: Task, prompt: Sequence[int], turns: int) -> Session:
    group = f"group-{task.id.rpartition('-')[2]}"
    session = Session(name, task, group=group, phase="train", status=Status.COMPLETED)
    nodes = session.nodes
    nodes.append(_message(0, None, "user", list(prompt)))
    for turn in range(turns):
        ids = [rng.randrange(1, VOCABULARY) for _ in range(rng.randint(2, 5))]
        count, parent = len(ids), nodes[-1].id
        node = Node(
            len(nodes),
            parent,
            Message(role="assistant", content=f"answer {turn}"),
            ids,
            [True] * count,
            [-rng.uniform(1.0, 5.0) for _ in ids],
            [VersionSpan(0, 0, count)],
            Sampling(),
            FinishReason.STOP,
            policy="main",
        )
        nodes.append(node)
        if turn + 1 < turns:
            nodes.append(_message(len(nodes), node.id, "user", [3]))
    return session


def _message(number: int, parent: int | None, role: str, ids: list[int]) -> Node:
    message = Message.model_validate({"role": role, "content": "a message"})
    return Node(number, parent, message, ids, [False] * len(ids), [0.0] * len(ids))
