"""`agentrl.rollouts`: finished groups for a training loop of one's own.

    async with agentrl.rollouts("calculator", model="smollm2-135m", steps=10) as run:
        async for group in run:                 # sessions with tokens, log-probabilities and rewards
            ...
            await run.publish(model.state_dict())   # optional: new weights for the engine

Environment, engine, budgets and the order of groups are those of `agentrl.train` with the same settings; the script is
the trainer. A step is `rollout.groups_per_step` groups: the next step's groups begin when its first one is requested,
with `rollout.staleness` as many steps earlier. So a script that publishes after a step's last group gets, at staleness
0, only what the newest weights generated; one that publishes nothing had better set a staleness of 1, which keeps the
engine at work while a long session goes on.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from agentrl.common.imports import refuse_within_import
from agentrl.config import PAST, RunConfig
from agentrl.envs import sandboxes
from agentrl.envs.added_tools import with_tools
from agentrl.envs.base import Env
from agentrl.envs.registry import factory
from agentrl.errors import ConfigError, InvalidInput, require_extra
from agentrl.overrides import spread
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.fleet import wait_until_started
from agentrl.rollout.stream.filters import FILTERS, make_measure
from agentrl.rollout.stream.health import sampling_notes, sessions_of, with_retries
from agentrl.rollout.stream.stream import Stream
from agentrl.sessions.store.store import Store
from agentrl.train.algorithms import make_algorithm
from agentrl.train.display.console import Display
from agentrl.train.driver.api import configure
from agentrl.train.plan.preflight import check_rollouts
from agentrl.train.record.run_folder import RunFolder
from agentrl.types import MAIN, Engine, Group

if TYPE_CHECKING:
    from torch import Tensor

UNUSED = (
    *("warm_start", "eval", "resume", "rerun", "rerun_answers", "policy"),
    *("checkpoint_every", "keep_checkpoints", "checkpoint_url", "checkpoint_url_timeout", "grace", "mismatch_bound"),
    *("require_provenance", "record_logprobs", "keep_best"),
)
"""Settings of `agentrl.train` that have no meaning where a script is the trainer."""


def rollouts(env: str | type[Env] | None = None, /, *, display: Display | None = None, **settings: Any) -> RolloutRun:
    """Groups of finished, rewarded sessions, one after the other: `async for group in agentrl.rollouts(...)`.

    Args:
        env: a registered name, path/to/file.py:Class, or an environment's class; its settings may stand in `env={…}`.
        display: where warnings are shown; standard error by default.
        **settings: any setting of `RunConfig` that `agentrl.train` takes, except those of `UNUSED`. `algo` and
            `trainer` are for the script (`RolloutRun.config`). Sessions are stored where there is a `run_dir`.

    Raises:
        ConfigError: a setting is unknown, has the wrong type, is of no use here, or contradicts another.
    """
    refuse_within_import("agentrl.rollouts")
    if wrong := [name for name in UNUSED if name in spread(settings)]:
        raise ConfigError(f"{wrong[0]} is for agentrl.train; agentrl.rollouts leaves training to the script")
    config = configure(env, settings)
    if past := next((name for name, policy in config.policies.items() if policy.name == PAST), None):
        raise ConfigError(f"policies.{past}={PAST} is for agentrl.train, which keeps versions of what it trains")
    if config.cluster.sessions:
        raise ConfigError("cluster.sessions=true is for agentrl.train: a script gets sessions whole")
    if again := config.rollout.reuse:
        raise ConfigError(f"rollout.reuse={again:g} is for agentrl.train; a script repeats groups itself")
    return RolloutRun(config, display or Display(Console(stderr=True)))


class RolloutRun:
    """The rollouts of a run without its trainer; an asynchronous iterator of groups, and a context manager.

    Outside of `async with` the iteration itself opens and closes the run. It ends after `steps` ·
    `rollout.groups_per_step` groups, in the order of their numbers or as they are ready (`rollout.order`).

    Attributes:
        config: the settings.
        model: the folder of the model that the engine began with; once the run is open.
        policy: renderer and engine; once the run is open.
        stream: groups under way and finished, and their metrics; once the run is open.
    """

    model: Path
    policy: Policy
    stream: Stream

    def __init__(self, config: RunConfig, display: Display) -> None:
        self.config, self._display = config, display
        self._stack: AsyncExitStack | None = None
        self._batch: list[Group] = []
        self._replaced, self._most = 0, config.rollout.max_replaced * config.rollout.groups_per_step

    async def __aenter__(self) -> RolloutRun:
        if self._stack is not None:
            raise InvalidInput("these rollouts are open already")
        check_rollouts(self.config)
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.__aexit__(kind, error, trace)
            gc.collect()  # see `interrupt.run`

    async def _open(self, stack: AsyncExitStack) -> None:
        with require_extra("train"):
            from agentrl.train.driver import base_model, launch, preparation, setup
            from agentrl.train.plan import model_checks
        config, display = self.config, self._display
        setup.quiet()
        sandboxes.configure(config.sandbox)
        plain = factory(config.env.name, **config.env.kwargs)
        make_env = await stack.enter_async_context(with_tools(plain, config.tools))
        folder = Path(stack.enter_context(TemporaryDirectory()))
        self.model = await base_model.find_or_build(config.model, config.algo, config.seed, make_env, folder)
        model_checks.prove_architecture(config.learners[MAIN], config.policies, self.model, display, trains=False)
        if config.run_dir is not None:
            kept = RunFolder.create(Path(config.run_dir), config)
            stack.callback(kept.close)
            folder = kept.path
        store = stack.enter_context(Store(folder / "sessions.db"))
        where, played = Path(store.path).parent, [(config, make_env)]
        policy = await launch.load_policy(stack, played, self.model, where, ("train",), publishes=True)
        made, act = await launch.open_rollouts(stack, policy, config, make_env, store)
        self.policy = made.policy
        for engine in made.engines:
            await wait_until_started(engine)
        stream = preparation.make_stream(made, make_env, act(config.rollout), make_algorithm(config.algo), config.steps)
        self.stream = await stack.enter_async_context(stream)

    def __aiter__(self) -> AsyncIterator[Group]:
        return self._groups()

    async def _groups(self) -> AsyncIterator[Group]:
        async with self if self._stack is None else nullcontext():
            while True:
                if len(self._batch) == self.config.rollout.groups_per_step:
                    self.stream.published(self._batch)
                    self.stream.take_outcomes()  # there is no ledger to write them into
                    self._batch, self._replaced = [], 0
                if self.stream.gate.published == self.config.steps:
                    return
                group = await self._next_kept()
                self._batch.append(group)
                yield group

    async def _next_kept(self) -> Group:
        """The next group that `rollout.filter` keeps, or the last one that a step may replace."""
        keep = make_measure(FILTERS, self.config.rollout.filter)
        [group] = await self._next()
        while keep is not None and not keep(group) and self._replaced < self._most:
            self._replaced += 1
            self.stream.drop([group], "replaced")
            [group] = await self._next()
        return group

    async def _next(self) -> list[Group]:
        """The next group; one whose sessions all failed by infrastructure is generated again a few times."""
        lost: list[Group] = []

        async def attempt() -> list[Group]:
            self.stream.discard(lost)
            lost[:] = await self.stream.take(1)
            return list(lost)

        groups = await with_retries(attempt, f"step {self.stream.gate.published + 1}", self._display.warn)
        for note in sampling_notes(sessions_of(groups), trained=True):
            self._display.warn_once(note)
        return groups

    @property
    def engine(self) -> Engine:
        """The engine of the run."""
        if self._stack is None or self.policy.engine is None:
            raise InvalidInput("these rollouts are not open: use `async with agentrl.rollouts(...) as run`")
        return self.policy.engine

    async def publish(
        self, weights: Mapping[str, Tensor] | Callable[[], Iterable[tuple[str, Tensor]]], version: int | None = None
    ) -> int:
        """Send new weights to the engine; turns that begin from then on are generated by them.

        Args:
            weights: all tensors by their Hugging Face names, or a function that yields them, for example
                `trainer.weights`; called again where a transport has to start over.
            version: what the sessions call these weights (`Node.versions`); None is one more than the engine has.

        Returns:
            The version.

        Raises:
            InvalidInput: the run is not open, or the version is not larger than the engine's.
            EngineError: the weights don't fit, or did not arrive.
        """
        from agentrl.rollout.weights.buckets import Weights

        present = self.engine.version()
        new = present + 1 if version is None else version
        if new <= present:
            raise InvalidInput(f"version={new}: the engine has version {present}; a new one must be larger")
        source = weights if callable(weights) else weights.items
        await self.engine.publish(Weights(source), new)
        return new
