"""Rewards by models that judge, and rewards that compare siblings: `llm_judge`, `pairwise`, `rank`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, TypeVar

from pydantic import Field, PositiveInt, model_validator

from agentrl.common.concurrency import concurrently
from agentrl.config import LISTED, GroupRewardConfig
from agentrl.envs.rewards import GroupReward, Reward
from agentrl.envs.scoring import judge_prompts
from agentrl.envs.scoring.judge_client import JudgeClient, JudgeConfig
from agentrl.envs.scoring.judge_prompts import Sees
from agentrl.envs.scoring.texts import field_of, right_answers
from agentrl.errors import ConfigError
from agentrl.types import Session, Task

T = TypeVar("T")
FILES = (".md", ".txt")


class RubricConfig(JudgeConfig):
    """The rubric and question of a judge."""

    rubric: Annotated[tuple[str, ...], LISTED] = ()
    """The criteria of a good answer, in words, or a .md or .txt file with it; with a list of criteria the judge says of
    each whether it is met, and the score is their share."""
    rubric_field: str = ""
    """The field of the task with its own rubric, a text or a list, beside `rubric`."""
    sees: Sees = "answer"
    """The text that the judge reads beside the task: the last message (`answer`), or all that follows the task
    (`conversation`), tool calls and their results included."""

    @model_validator(mode="after")
    def _files_exist(self) -> RubricConfig:
        if missing := [text for text in self.rubric if _is_file(text) and not Path(text).expanduser().is_file()]:
            raise ValueError(f"rubric={missing[0]!r}: there is no such file")
        return self

    def criteria(self, task: Task) -> list[str]:
        """Return the rubric's texts for a task; ConfigError where the task has no such field."""
        own = [Path(text).expanduser().read_text("utf-8").strip() if _is_file(text) else text for text in self.rubric]
        if not self.rubric_field:
            return own
        value = field_of(task, self.rubric_field, "rubric_field")
        return own + [str(each) for each in (value if isinstance(value, list) else [value])]


def _is_file(text: str) -> bool:
    return text.endswith(FILES) and "\n" not in text


class LlmJudgeConfig(RubricConfig):
    """The settings of `llm_judge`."""

    reference: str = ""
    """The field of the task with a right answer, which the judge is shown; empty: none."""
    scale: tuple[float, float] = (0.0, 10.0)
    """The worst and the best score that the judge is asked for; the reward is the share of the way between them."""

    @model_validator(mode="after")
    def _scale_rises(self) -> LlmJudgeConfig:
        if not self.scale[0] < self.scale[1]:
            raise ValueError(f"scale={list(self.scale)} must rise")
        return self


class LlmJudge(Reward):
    """The score from 0 to 1 that a judge gives a session, by a rubric; the mean of its votes."""

    settings = LlmJudgeConfig
    config: LlmJudgeConfig

    def __init__(self, config: LlmJudgeConfig) -> None:
        super().__init__(config)
        self._judge = JudgeClient(config)

    async def compute(self, session: Session) -> float:
        config = self.config
        criteria = config.criteria(session.task)
        reference = "\n".join(right_answers(session.task, config.reference)) if config.reference else None
        question = judge_prompts.scoring(session, config.sees, criteria, reference, config.scale)

        def read(text: str) -> float:
            if len(criteria) > 1:
                return judge_prompts.read_criteria(text, len(criteria))
            return judge_prompts.read_score(text, config.scale)

        return fmean(await _votes(self._judge, question, read, config.votes))

    async def close(self) -> None:
        await self._judge.close()


class PairwiseConfig(RubricConfig, GroupRewardConfig):
    """The settings of `pairwise`."""

    timeout: Annotated[float, Field(gt=0)] = 900.0
    """Seconds that the judge may take for a group."""
    opponents: PositiveInt | None = None
    """With how many siblings each session is compared, at least; None: with all, n(n-1) questions for a group of n."""


class Pairwise(GroupReward):
    """The share of its siblings that a session is better than, as a judge says; a tie is half.

    Each pair is judged in both orders, since judges favour a place; where the two verdicts differ it is a tie.
    Sessions that the judge would read the same are one without being asked. A session alone gets none.
    """

    settings = PairwiseConfig
    config: PairwiseConfig

    def __init__(self, config: PairwiseConfig) -> None:
        super().__init__(config)
        self._judge = JudgeClient(config)

    async def compute_group(self, sessions: Sequence[Session]) -> list[float | None]:
        pairs = list_pairs(len(sessions), self.config.opponents)
        won = await concurrently(self._compare(sessions[one], sessions[other]) for one, other in pairs)
        shares: list[list[float]] = [[] for _ in sessions]
        for (one, other), share in zip(pairs, won, strict=True):
            shares[one].append(share)
            shares[other].append(1.0 - share)
        return [fmean(each) if each else None for each in shares]

    async def close(self) -> None:
        await self._judge.close()

    async def _compare(self, one: Session, other: Session) -> float:
        """1 where the first is better, 0 where the second is, and a half for a tie."""
        config, read = self.config, judge_prompts.read_better
        if judge_prompts.show_session(one, config.sees) == judge_prompts.show_session(other, config.sees):
            return 0.5
        criteria = config.criteria(one.task)
        orders = [
            judge_prompts.comparing(first, second, config.sees, criteria)
            for first, second in ((one, other), (other, one))
        ]
        first, second = await concurrently(_votes(self._judge, question, read, config.votes) for question in orders)
        return (fmean(first) + 1.0 - fmean(second)) / 2


def list_pairs(count: int, opponents: int | None) -> list[tuple[int, int]]:
    """Return the pairs of places that are compared: all, or each with the places that follow it in a circle."""
    if opponents is None or opponents >= count - 1:
        return list(combinations(range(count), 2))
    each_way = range(1, (opponents + 1) // 2 + 1)
    found = {tuple(sorted((place, (place + step) % count))) for place in range(count) for step in each_way}
    return sorted((one, other) for one, other in found)


class RankConfig(GroupRewardConfig):
    """The settings of `rank`."""

    of: str = ""
    """The reward by which sessions are ranked, the environment's own or the run's; empty: their whole score."""


class SiblingRank(GroupReward):
    """A session's place among its siblings by another reward: 1 for the best, 0 for the worst, equal ones share theirs.

    It keeps a reward with a few large values from deciding all; where the other one is to count by its rank alone, its
    own weight is 0. A session alone, or without that reward, gets none.
    """

    settings = RankConfig
    config: RankConfig

    async def compute_group(self, sessions: Sequence[Session]) -> list[float | None]:
        """Count the siblings that are below, and half of those that are equal."""
        values = [session.rewards.get(self.config.of) if self.config.of else session.score for session in sessions]
        given = [value for value in values if value is not None]
        if not given and self.config.of:
            known = ", ".join(sorted({name for session in sessions for name in session.rewards})) or "none"
            raise ConfigError(f"of={self.config.of!r}: the sessions have no such reward (rewards: {known})")
        if len(given) < 2:
            return [None] * len(sessions)
        return [None if value is None else _place(value, given) for value in values]


def _place(value: float, given: Sequence[float]) -> float:
    below, equal = sum(each < value for each in given), sum(each == value for each in given) - 1
    return (below + equal / 2) / (len(given) - 1)


async def _votes(judge: JudgeClient, question: Any, read: Callable[[str], float], votes: int) -> list[float]:
    return await concurrently(judge.ask(question, read, vote) for vote in range(votes))
