"""Sessions that an earlier process of a run left: what has ended is taken as it is, what has not is continued.

While sessions are generated the states of their episodes are stored (`StateSaver`). A resumed run begins the groups
that were in progress again; a session of theirs that had ended is taken from the store, and an unfinished one goes on
from its stored turns, of which none is generated twice (`LeftSessions`). Where the environment has no state, it is
generated again from the same seeds.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentrl.envs import calls
from agentrl.envs.base import Env, has_state
from agentrl.envs.episode import ResumePoint
from agentrl.envs.state import EnvState, EpisodeState
from agentrl.errors import AgentRLError, InvalidInput, StateUnsupported
from agentrl.sessions.store.query import Between
from agentrl.sessions.store.recorder import Records
from agentrl.sessions.store.store import Store
from agentrl.sessions.store.summary import Summary
from agentrl.sessions.tree.codec import same_task
from agentrl.types import GREEDY, MAIN, Session, Status, Task

logger = logging.getLogger(__name__)

SaveStates = Literal["never", "cheap", "always"]
CHEAP_SECONDS, CHEAP_BYTES = 0.005, 65536
"""A state that takes longer, or is larger, is not cheap."""
PATIENCE = 3
"""States of one environment in succession that may be expensive before no more are saved: one may have waited."""
ENDED = (Status.COMPLETED, Status.TRUNCATED, Status.AGENT_ERROR)
"""Statuses of sessions that are taken as they are."""


@dataclass
class StateSaver:
    """Saves the states of episodes before each turn.

    Attributes:
        when: `never`, after every turn (`always`), or for environments whose states are `cheap`.
    """

    when: SaveStates = "cheap"
    _expensive: Counter[str] = field(default_factory=Counter)

    async def save(
        self, recorder: Records, session: Session, env: Env, made: Callable[[EnvState], EpisodeState]
    ) -> None:
        """Store the state of a session's episode, where the environment has one."""
        name = env._identity()
        if self.when == "never" or not has_state(env) or self._expensive[name] >= PATIENCE:
            return
        began = time.monotonic()
        try:
            state = made(await calls.state(env)).to_bytes()
        except StateUnsupported:  # not at this point of the episode
            return
        except AgentRLError as error:
            logger.warning("the states of %s are not saved, so its sessions can't be continued: %s", name, error)
            self._expensive[name] = PATIENCE
            return
        recorder.update(session, state)
        if self.when == "cheap":
            costs = time.monotonic() - began > CHEAP_SECONDS or len(state) > CHEAP_BYTES
            self._expensive[name] = self._expensive[name] + 1 if costs else 0


@dataclass(frozen=True)
class Left:
    """A session that an earlier process left.

    Attributes:
        session: as it is stored.
        attempt: which attempt of its sample comes next, where it has not ended.
        state: of its episode, where there is one to continue from.
    """

    session: Session
    attempt: int
    state: EpisodeState | None = None

    @property
    def ended(self) -> bool:
        """True where the session is taken as it is: whole, rewards included, or ABORTED by its group's deadline."""
        late = self.session.status is Status.ABORTED and "group_deadline" in self.session.counters
        return self.session.ended is not None and (self.session.status in ENDED or late)


@dataclass
class LeftSessions:
    """The sessions of groups in progress that are in the store when a run is resumed.

    Attributes:
        counts: what became of them since `metrics` was last called.
    """

    counts: Counter[str] = field(default_factory=Counter)
    _found: dict[str, dict[int, tuple[Store, Summary]]] = field(default_factory=dict)  # by group, by sample

    def find(self, store: Store, first: int, versions: Mapping[str, int]) -> None:
        """Find the sessions of training groups from number `first` on; those of lost weights are deleted.

        Args:
            store: the run's.
            first: the lowest number of a group in progress.
            versions: of the policies that the run continues with, by name. A later one was learned in steps that the
                run takes again, perhaps on other groups: what it generated is not of the policy whose version it has.
        """
        for row in store.summaries({"phase": ["train", GREEDY], "group_number": Between(first)}):
            late = row.version_max is not None and row.version_max > versions[MAIN]
            if late or (len(versions) > 1 and _is_later(store.load(row.id), versions)):
                store.delete(row.id)
                self.counts["lost"] += 1
            else:
                self._keep(store, row)

    def find_evaluated(self, store: Store) -> None:
        """Find the sessions of an evaluation that an earlier process began, by the same policy."""
        for row in store.summaries({"phase": "eval"}):
            self._keep(store, row)

    def _keep(self, store: Store, row: Summary) -> None:
        members = self._found.setdefault(row.group, {})
        if row.sample not in members or members[row.sample][1].attempt < row.attempt:
            members[row.sample] = store, row

    def begun(self, group: str) -> int | None:
        """The step that a group was begun in, from 0; None where it has no sessions here."""
        steps = [row.step for _, row in self._found.get(group, {}).values() if row.step is not None]
        return min(steps, default=None)

    def forget(self, group: str) -> None:
        """Forget a group, which begins anew."""
        if members := self._found.pop(group, None):
            self.counts["lost"] += len(members)

    def take(self, group: str, sample: int, task: Task, seed: int) -> Left | None:
        """Return what there is of a session; None where it begins anew."""
        found = self._found.get(group, {}).pop(sample, None)
        if found is None:
            return None
        store, row = found
        session = store.load(row.id)
        if session.seed != seed or not same_task(session.task, task):
            return None  # the sampler chose otherwise
        if row.status is Status.INFRA_ERROR:
            return Left(session, row.attempt + 1)
        left = Left(session, row.attempt)
        data = None if left.ended else store.state(row.id)
        if data is None:
            return left
        try:
            state = EpisodeState.from_bytes(data)
        except InvalidInput as error:
            logger.warning("session %s is generated again: %s", row.id, error)
            return left
        if state.nodes > len(session.nodes):
            logger.warning(
                "session %s is generated again: %d nodes are stored, and its episode's state is of %d",
                *(row.id, len(session.nodes), state.nodes),
            )
            return left
        return Left(rewound(session, state), row.attempt, state)

    def metrics(self) -> dict[str, float]:
        """Sessions since the last call: taken as they had ended, continued, generated again, of lost weights."""
        found = {f"resumed/{name}": float(count) for name, count in sorted(self.counts.items())}
        self.counts.clear()
        return found


def _is_later(session: Session, versions: Mapping[str, int]) -> bool:
    """Return whether a session has tokens of a later version of a policy than `versions` has."""
    return any(
        span.version > versions[policy]
        for node in session.nodes
        if (policy := node.policy) is not None and policy in versions
        for span in node.versions
    )


def rewound(session: Session, state: EpisodeState) -> Session:
    """The session at its episode's state, and with the turns that come next where those are stored."""
    more = session.nodes[state.nodes : state.nodes + len(state.agents)]
    if [node.agent for node in more if node.message.role == "assistant"] != state.agents:
        more = []
    session.nodes = session.nodes[: state.nodes] + more
    for node, reward in zip(session.nodes, [*state.rewards, *(None for _ in more)], strict=True):
        node.reward = reward
    session.status, session.error, session.ended = Status.OPEN, None, None
    session.rewards, session.reward, session.counters = {}, None, dict(state.counters)
    return session


@dataclass(frozen=True)
class Restored:
    """An episode of an earlier process: its environment, and where it stands."""

    env: Env
    state: EpisodeState

    def heads(self, session: Session) -> dict[str, int]:
        """The node in which each agent's conversation ends; the turns after the state included."""
        return self.state.heads | {node.agent: node.id for node in session.nodes[self.state.nodes :]}

    def middle(self, session: Session) -> ResumePoint:
        """Return where the episode goes on."""
        state = self.state
        return ResumePoint(None, state.turn, state.agents, state.order, session.nodes[state.nodes :])


async def restore_env(env: Env, state: EpisodeState) -> bool:
    """Restore an episode's environment in a new instance; where that fails it is closed."""
    try:
        await calls.restore(env, state.env)
    except AgentRLError as error:
        logger.warning("a session is generated again, since its environment can't be restored: %s", error)
        await calls.close(env)
        return False
    return True
