"""Do prompts fit? The opening messages of tasks are compared with the token budgets before anything is generated.

Only some tasks are opened, and only while that is quick: opening one may start a sandbox. Half of them are those whose
data is largest, which costs no more than reading the data, and half are evenly spread over the split. What is found
later is `rollout.overlong`'s (`envs.episode`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentrl.config import EngineConfig, EvalConfig, RolloutConfig
from agentrl.envs import calls
from agentrl.envs.base import Env
from agentrl.errors import AgentRLError, ConfigError, InfraError, RenderError
from agentrl.rollout.engines.folder import ModelFacts
from agentrl.sessions.renderers.base import Renderer
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import MAIN, Message, Session, Task

EXAMINED = 16
"""Tasks of a split that are opened."""
SECONDS = 1.0
"""Seconds after which no further task is opened."""
MEASURED = 10_000
"""Tasks whose data is measured, evenly spread."""
_log = logging.getLogger(__name__)


def context(engine: EngineConfig, name: str, limits: RolloutConfig, model: Path) -> dict[str, int]:
    """The limits of a path's tokens that hold in a run, by what sets them."""
    found = {
        f"engine.max_context={engine.max_context}": engine.max_context,
        f"rollout.context_tokens={limits.context_tokens}": limits.context_tokens,
        f"model={name}'s context of {(own := ModelFacts.read(model).context)} tokens": own,
    }
    return {name: limit for name, limit in found.items() if limit is not None}


def split_budgets(
    engine: EngineConfig, name: str, model: Path, rollout: RolloutConfig, measured: EvalConfig, split: str
) -> tuple[RolloutConfig, dict[str, int], str]:
    """Return the limits of a split's sessions, all that limits their tokens by its setting, and their own setting."""
    evaluated = split != "train" and measured.session_tokens is not None
    limits = measured.limits(rollout) if evaluated else rollout
    own = f"{'eval' if evaluated else 'rollout'}.session_tokens={limits.session_tokens}"
    return limits, context(engine, name, limits, model) | {own: limits.session_tokens}, own


async def check_room(
    budgets: Callable[[str], tuple[RolloutConfig, dict[str, int], str]],
    make_env: Callable[[], Env],
    renderer: Renderer,
    splits: Sequence[str] = (),
    agents: Mapping[str, str] = MappingProxyType({}),
    program: str | None = None,
    seed: int = 0,
) -> list[str]:
    """Refuse token budgets that leave no space for a first turn, by tasks' opening messages and the tools.

    Where some tasks of a split leave space there is a warning, but for `rollout.overlong=refuse`. An infrastructure
    error (of a sandbox) is ignored here: the run has retries for that.

    `budgets`: of a split; see `split_budgets`. `splits`: which are played; none is the environment's first one.
    `agents`: the policies that play some of them; or `program` acts.

    Returns:
        A line for each split of which not all tasks were opened: how many were, and what the longest takes.

    Raises:
        ConfigError: the smallest budget is used up by the openings.
        RenderError: the model's format has no place for a message of one, an image for example.
    """
    if program is not None:  # which writes its own prompts
        return []
    others = frozenset(agent for agent, policy in agents.items() if policy != MAIN)
    measure = partial(_tokens, seed=seed, others=others, renderer=renderer)
    env, lines = make_env(), list[str]()
    for split in dict.fromkeys(splits or env.splits[:1]):
        limits, known, own = budgets(split)
        setting = min(known, key=known.__getitem__)
        source = calls.list_tasks(env, split)
        count = len(source) if isinstance(source, Sequence) else None
        opened = await _open_tasks(make_env, _choose(env, split, source), measure)
        over = [(task, tokens) for task, tokens in opened if tokens >= known[setting]]
        if over and len(over) == len(opened):
            task, tokens = over[0]
            room = min(2 * tokens, *(most for name, most in known.items() if name != own), 2 * tokens)
            hint = f"; {own.partition('=')[0]}={room} gives it room" if setting == own and room > tokens else ""
            raise ConfigError(
                f"{setting} leaves no room for a turn: task {task.id!r} opens with {tokens} tokens, tools included"
                f"{hint}"
            )
        if over:
            _some(over, len(opened), split, setting, limits)
        if opened and (count is None or len(opened) < count):
            most = max(tokens for _, tokens in opened)
            of = f"of {count:,} tasks" if count is not None else "tasks"
            lines.append(
                f"lengths: {len(opened)} {of} of the split {split!r} were opened, those with most data among them; "
                f"the longest takes {most:,} tokens of {setting} (longer ones: rollout.overlong={limits.overlong})"
            )
    return lines


def _some(over: Sequence[tuple[Task, int]], examined: int, split: str, setting: str, limits: RolloutConfig) -> None:
    task, tokens = max(over, key=lambda each: each[1])
    found = (
        f"{setting} leaves no room for a turn in {len(over)} of {examined} tasks of the split {split!r} that were "
        f"opened; {task.id!r} opens with {tokens} tokens"
    )
    if limits.overlong == "refuse":
        raise ConfigError(f"{found} (rollout.overlong=refuse)")
    kept = {"skip": "such sessions have no reward and don't count", "keep": "such sessions are rewarded as they are"}
    _log.warning("%s: %s (rollout.overlong=%s)", found, kept[limits.overlong], limits.overlong)


async def _open_tasks(
    make_env: Callable[[], Env], tasks: Iterator[Task], tokens: Callable[[Env, Task], Awaitable[int]]
) -> list[tuple[Task, int]]:
    """Some tasks, and how many tokens the longest opening of each has."""
    found: list[tuple[Task, int]] = []
    began = time.monotonic()
    for task in tasks:
        try:
            found.append((task, await tokens(make_env().for_task(task), task)))
        except RenderError:
            raise
        except AgentRLError as error:
            if not found and not isinstance(error, InfraError):
                raise
            break
        if time.monotonic() - began > SECONDS:
            break
    return found


def _choose(env: Env, split: str, source: Iterable[Any]) -> Iterator[Task]:
    if not isinstance(source, Sequence):
        yield from islice(calls.tasks(env, split), EXAMINED)
        return
    for index in _places(source):
        yield calls.task(env, split, index, source[index])


def _places(source: Sequence[Any]) -> list[int]:
    """The tasks that are opened: those with most data first."""
    if len(source) <= EXAMINED:
        return [*range(len(source))]
    began, sizes = time.monotonic(), dict[int, int]()
    for index in _spread(len(source), MEASURED):
        sizes[index] = len(repr(source[index]))
        if time.monotonic() - began > SECONDS:
            break
    largest = sorted(sizes, key=lambda index: (-sizes[index], index))[: EXAMINED // 2]
    return [*dict.fromkeys([*largest, *_spread(len(source), EXAMINED - len(largest))])]


def _spread(count: int, most: int) -> list[int]:
    """So many numbers below `count` at most, evenly spread."""
    most = min(count, most)
    return [place * (count - 1) // max(most - 1, 1) for place in range(most)]


async def _tokens(env: Env, task: Task, *, seed: int, others: Collection[str], renderer: Renderer) -> int:
    try:
        openings = await calls.openings(env, task.model_copy(deep=True), seed=seed)
    finally:
        await calls.close(env)

    def tokens(opening: list[Message]) -> int:
        conversation = Conversation(Session("opening", task), TurnGenerator(renderer, None), tools=env.tools.schemas())
        conversation.add(opening)
        return len(conversation.token_ids) + len(renderer.generation_prompt(conversation.head))

    return max((tokens(o) for agent, o in openings.items() if agent not in others), default=0)
