"""Rules about saved and forked episodes: another instance continues an episode as the original does.

A recorded episode is replayed up to a random turn, where its state is stored, or where it is forked. The original
continues with the same messages, and after it has ended the other instance does. Both must get the results and rewards
of an episode that was never interrupted.
"""

from __future__ import annotations

import copy
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice, product

from agentrl.envs import calls
from agentrl.envs.base import Env, has_fork, has_state
from agentrl.envs.check.subject import MADE_UP, RANDOM, Episode, Subject
from agentrl.envs.state import EnvState
from agentrl.errors import AgentError, StateUnsupported
from agentrl.sessions.renderers.families.null import NullRenderer
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.tools.schema import show_value
from agentrl.types import Message, Session

Open = Callable[[], Awaitable[Env]]
Turn = tuple[str, Message]
"""An agent and its message."""
INTERRUPTED = 12
"""Episodes that are interrupted, at most."""
Take = Callable[[Env], Awaitable[Open]]
"""Takes a copy of an episode; what it returns gives the instance that continues it."""


async def saved_states(subject: Subject) -> AsyncIterator[str]:
    """A state restored in another instance continues with the same results and rewards, and saving changes nothing."""

    async def take(env: Env) -> Open:
        stored = (await calls.state(env)).to_bytes()

        async def restored() -> Env:
            other = subject.make()
            await calls.restore(other, EnvState.from_bytes(stored))
            return other

        return restored

    if has_state(subject.env):
        async for message in _interrupted_episodes(subject, take, "restored from its state"):
            yield message


async def forks(subject: Subject) -> AsyncIterator[str]:
    """A fork continues with the same results and rewards, whatever happens in the original and in other forks."""

    async def take(env: Env) -> Open:
        sibling, other = await calls.fork(env), await calls.fork(env)

        async def forked() -> Env:
            played = _Replay(sibling, Session(id="sibling", task=subject.tasks[0]))
            try:
                await played.step_all([(env.agents[0], Message(role="assistant", content=""))] * 2)
            finally:
                await calls.close(sibling)
            return other

        return forked

    if has_fork(subject.env):
        async for message in _interrupted_episodes(subject, take, "forked"):
            yield message


@dataclass
class _Replay:
    """An episode that is driven by recorded messages.

    Attributes:
        results: what `step` returned for each message.
        heads: each agent's newest node.
        rewards: the final rewards, once `finish` was called.
        over: whether the environment ended the episode.
    """

    env: Env
    session: Session
    results: list[object] = field(default_factory=list)
    heads: dict[str, int] = field(default_factory=dict)
    rewards: object = None
    over: bool = False
    _paths: dict[str, Conversation] = field(default_factory=dict)

    async def begin(self) -> None:
        for agent, messages in (await calls.openings(self.env, self.session.task, seed=self.session.seed)).items():
            self._add(agent, messages)

    async def step_all(self, turns: Sequence[Turn]) -> None:
        """Step with each message, until the environment ends the episode."""
        for agent, message in turns:
            if self.over:
                return
            named = message.model_copy(update={"name": agent}) if len(self.env.agents) > 1 else message
            result = await calls.step(self.env, named)
            self.over = result.terminated or result.truncated
            self._add(agent, [message])
            self.session.nodes[-1].reward = result.reward
            if result.continuation is not None:
                self._add(agent, [Message(role="tool", content=result.continuation)])
            for other, messages in {agent: result.messages, **result.others}.items():
                self._add(other, messages)
            self.session.info.update(result.info)
            self.results.append(asdict(result))

    async def finish(self) -> None:
        try:
            self.rewards = (await calls.compute_rewards(self.env, self.session)).values
        finally:
            await calls.close(self.env)

    def difference(self, other: _Replay) -> str:
        """Describe the other's difference; '' where there is none."""
        for place, (one, two) in enumerate(zip(self.results, other.results, strict=False), 1):
            if one != two:
                return f"the result of turn {place} was {show_value(two, 160)}, not {show_value(one, 160)}"
        if len(self.results) != len(other.results):
            return f"it had {len(other.results)} turns, not {len(self.results)}"
        return "" if self.rewards == other.rewards else f"its rewards were {other.rewards}, not {self.rewards}"

    def _add(self, agent: str, messages: Sequence[Message]) -> None:
        if messages:
            if agent not in self._paths:
                generator = TurnGenerator(NullRenderer(), None)
                self._paths[agent] = Conversation(self.session, generator, agent=agent, head=self.heads.get(agent))
            self.heads[agent] = self._paths[agent].add(messages)[-1].id


async def _interrupted_episodes(subject: Subject, take: Take, how: str) -> AsyncIterator[str]:
    if "not deterministic" in subject.notes:
        return
    agents = (subject.default, RANDOM, MADE_UP)
    for task, agent in islice(product(subject.tasks, dict.fromkeys(agents)), INTERRUPTED):
        episode = await subject.episode(task, agent)
        if episode.session is None or any(node.spawned for node in episode.session.nodes):
            continue  # sub-agents write their messages within a step, and those of a replay have none
        try:
            found = await _interrupt(subject, episode, episode.session, take, how)
        except (StateUnsupported, AgentError):  # no state at this point, or too many files
            continue
        if found:
            yield f"{episode.name}, {found}"
            return


async def _interrupt(subject: Subject, episode: Episode, session: Session, take: Take, how: str) -> str:
    """Return how the original or its copy differs from the uninterrupted episode; '' where they don't."""
    rng = random.Random(f"{episode.task.id}/{episode.agent}/{subject.seed}")
    whole, original = [_Replay(subject.make(), Session("state", episode.task, seed=subject.seed)) for _ in range(2)]
    try:
        await whole.begin()
        recorded = session.nodes[len(whole.session.nodes) :]
        said = [(node.agent, node.message) for node in recorded if node.message.role == "assistant"]
        turns = rng.randrange(1, len(said)) if len(said) > 1 else 0
        subject.label(episode.task, f"{episode.agent} and interrupted after turn {turns}")
        await whole.step_all(said)
        await whole.finish()
        await original.begin()
        await original.step_all(said[:turns])
        if original.over:
            return ""
        open_copy = await take(original.env)
        played = copy.deepcopy((original.session, original.results, original.heads))
        await original.step_all(said[turns:])
        await original.finish()
        if difference := whole.difference(original):
            return f"after turn {turns}: the original continued differently once it was {how}: {difference}"
        other = _Replay(await open_copy(), *played)
        try:
            await other.step_all(said[turns:])
            await other.finish()
        finally:
            await calls.close(other.env)
    finally:
        await calls.close(whole.env)
        await calls.close(original.env)
    difference = whole.difference(other)
    return f"{how} after turn {turns}, continued differently: {difference}" if difference else ""
