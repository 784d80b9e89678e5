"""Self-play against earlier versions of the trained policy, kept during the run, each with an engine of its own.

    RUN/past/step-000020/     the weights after 20 steps, a Hugging Face folder

Which version plays follows from the run's seed, the group's number and the step that the group began in. So all
sessions of a group meet the same opponent, and a resumed run draws the same ones. Evaluations play against the first
version, whose strength does not change, so their rewards can be compared.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from agentrl.config import PastConfig
from agentrl.envs.turns import Actor
from agentrl.errors import ConfigError
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.fleet import wait_until_started
from agentrl.rollout.stream.seeds import derive
from agentrl.types import GREEDY, Session


class PastVersions:
    """Plays agents by earlier versions of the trained policy (`policies.Opponent`).

    A version's number is the number of steps that it was trained for, and it is the policy "NAME/number" of nodes.

    Args:
        name: the policy's.
        config: which versions are kept, and which play.
        folder: where they are kept.
        load: makes a frozen policy of a name and a model's folder.
        actor: acts by any of them.
        seed: the run's.
        staleness: how many steps a group may be behind that is in progress.
        learner: the policy whose versions they are, with its actor, where that is not the main one.
    """

    def __init__(
        self,
        name: str,
        config: PastConfig,
        folder: Path,
        load: Callable[[str, Path], Policy],
        actor: Actor,
        *,
        seed: int,
        staleness: int,
        learner: tuple[Policy, Actor] | None = None,
    ) -> None:
        self.name, self.config, self.folder = name, config, folder
        self._load, self._actor, self._seed, self._staleness = load, actor, seed, staleness
        self._learner = learner
        self._kept: list[int] = []
        self._loaded: dict[int, Policy] = {}

    @property
    def policies(self) -> list[Policy]:
        """The policies that have engines now."""
        return [*([self._learner[0]] if self._learner else []), *self._loaded.values()]

    def plays(self, session: Session) -> tuple[Policy, Actor] | None:
        """The version that a session meets, or the policy whose versions they are; None where that is the main one."""
        if session.phase == "eval":
            return self._loaded[0], self._actor
        if session.phase not in ("train", GREEDY):  # demonstrations, of which all versions learn
            return self._learner
        chance = random.Random(derive(self._seed, "past", self.name, session.group_number or 0))
        if chance.random() < self.config.current:
            return self._learner
        return self._loaded[chance.choice(self.versions(session.step or 0))], self._actor

    def versions(self, step: int) -> list[int]:
        """Return the versions for groups that begin after `step` steps: the first, and the newest, oldest first."""
        later = [version for version in self._kept if 0 < version <= step]
        return [0, *later[-self.config.size :]]

    def path(self, version: int) -> Path:
        """The folder of a version."""
        return self.folder / f"step-{version:06d}"

    def due(self, step: int) -> bool:
        """Return whether the weights after `step` steps are kept."""
        return step % self.config.every == 0

    async def begin(self, step: int, export: Callable[[Path], None]) -> None:
        """Play from `step` steps on; versions of later steps, which a resumed run takes again, are removed.

        Raises:
            ConfigError: a version is missing that groups are to meet.
        """
        self._kept = sorted(int(path.name.removeprefix("step-")) for path in self.folder.glob("step-??????"))
        for version in [version for version in self._kept if version > step]:
            self._remove(version)
        if step == 0:
            return await self.keep(0, export, oldest=0)
        wanted = {0, *range(self.config.every, step + 1, self.config.every)[-self.config.size :]}
        if missing := sorted(wanted - set(self._kept)):
            lost = self.path(missing[0])
            raise ConfigError(f"policies.{self.name}=past: {lost} is missing, and groups are to meet it")
        await self._load_needed(step)

    async def keep(self, step: int, export: Callable[[Path], None], *, oldest: int) -> None:
        """Keep the weights after `step` steps, which later groups meet.

        Args:
            step: how many are done.
            export: writes the weights as they are.
            oldest: how many are done at the oldest checkpoint; what nothing since then meets is removed.
        """
        await asyncio.to_thread(export, self.path(step))
        self._kept = sorted({*self._kept, step})
        await self._load_needed(step)
        first = min(self.versions(max(oldest - self._staleness, 0))[1:], default=0)
        for version in [version for version in self._kept if 0 < version < first]:
            self._remove(version)

    async def close(self) -> None:
        for version in list(self._loaded):
            await self._unload(version)

    async def _load_needed(self, step: int) -> None:
        """Have engines for the versions that groups in progress, and those that begin now, meet."""
        begun = range(max(step - 1 - self._staleness, 0), step + 1)
        needed = {version for each in begun for version in self.versions(each)}
        for version in sorted(self._loaded.keys() - needed):
            await self._unload(version)
        for version in sorted(needed - self._loaded.keys()):
            policy = self._loaded[version] = self._load(f"{self.name}/{version}", self.path(version))
            await wait_until_started(policy.engine)

    async def _unload(self, version: int) -> None:
        engine = self._loaded.pop(version).engine
        if engine is not None:
            await engine.close()

    def _remove(self, version: int) -> None:
        shutil.rmtree(self.path(version), ignore_errors=True)
        self._kept.remove(version)
