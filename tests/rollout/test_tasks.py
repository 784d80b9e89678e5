from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Tasks
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import RunConfig, SamplerConfig
from agentrl.envs.base import Env
from agentrl.errors import ConfigError, EnvError, InvalidInput
from agentrl.overrides import parse_words, validate
from agentrl.rollout.stream.samplers import make_sampler
from agentrl.rollout.stream.samplers.difficulty import Difficulty, DifficultyConfig
from agentrl.rollout.stream.seeds import derive
from agentrl.rollout.stream.tasks import TaskStream
from agentrl.types import Group, Session, Status, Task


class Sequence(Env):
    def tasks(self, split: str = "train") -> Iterable[Task]:
        return [Task(id=str(i)) for i in range(5)]


class Endless(Env):
    def tasks(self, split: str = "train") -> Iterable[Task]:
        return (Task(id=str(i)) for i in count())


class Short(Env):
    def tasks(self, split: str = "train") -> Iterable[Task]:
        yield from (Task(id=str(i)) for i in range(3))


class Empty(Env):
    def tasks(self, split: str = "train") -> Iterable[Task]:
        yield from ()


def ids(stream: TaskStream, start: int, count: int) -> list[str]:
    return [task.id for task in stream.take(start, count)]


@pytest.mark.slow
@pytest.mark.parametrize("env", [Sequence, Endless, Short])
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), min_size=1, max_size=6))
def test_a_task_depends_on_its_number_alone_and_not_on_what_was_taken_before(
    env: type[Env], takes: list[tuple[int, int]]
) -> None:
    one_go = ids(TaskStream(env(), "train", seed=3), 0, 30)
    stream = TaskStream(env(), "train", seed=3)
    for start, number in takes:
        assert ids(stream, start, number) == one_go[start : start + number]


def test_each_pass_over_a_sequence_has_every_task_once_in_an_order_of_its_own() -> None:
    taken = ids(TaskStream(Sequence(), "train", seed=1), 0, 50)
    passes = [taken[i : i + 5] for i in range(0, 50, 5)]
    assert all(sorted(one) == list("01234") for one in passes)
    assert len({tuple(one) for one in passes}) > 1


class Lazy(Tasks[Task]):
    """A billion tasks, made when they are read."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: Any) -> Any:
        return {"id": f"lazy-{index}"}


class Large(Env):
    def tasks(self, split: str = "train") -> Tasks[Task]:
        return Lazy()


def test_a_source_larger_than_memory_is_read_task_by_task() -> None:
    stream = TaskStream(Large(), "train", 0, make_sampler(SamplerConfig(name="sequential"), 0))
    assert ids(stream, 10**9 - 1, 2) == ["lazy-999999999", "lazy-0"]
    hard = TaskStream(Large(), "train", 0, make_sampler(DifficultyConfig(), 0))
    assert len(set(ids(hard, 0, 50))) == 50


def seen(sampler: Difficulty, index: int, *scores: float) -> None:
    task = Task(id=str(index))
    sessions = [Session("s", task, reward=score, status=Status.COMPLETED) for score in scores]
    sampler.see(index, Group("g", task, sessions))


def test_by_difficulty_tasks_that_are_sometimes_solved_are_chosen_most() -> None:
    sampler = Difficulty(DifficultyConfig(candidates=3, weight=1.0), seed=2)
    for index in range(9):
        seen(sampler, index, *[[0.0, 0.0], [1.0, 1.0], [0.0, 1.0]][index % 3])
    chosen = Counter(sampler.choose(number, 9) % 3 for number in range(300))
    assert chosen[2] > 180 > 120 > chosen[0] + chosen[1]
    seen(sampler, 2, 1.0, 1.0)
    assert sampler.state()[2] == [2, 1.0]
    assert [sampler.choose(7, 9)] * 2 == [sampler.choose(7, 9) for _ in range(2)]


def test_a_stream_of_tasks_can_not_be_chosen_from_by_difficulty() -> None:
    with pytest.raises(ConfigError, match="has to return a sequence"):
        TaskStream(Endless(), "train", 0, make_sampler(DifficultyConfig(), 0)).take(0, 1)


def test_a_sampler_of_ones_own_is_named_by_its_file_and_has_settings_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from agentrl.config import SamplerConfig\n"
        "from agentrl.rollout.stream.samplers import Sampler\n"
        "class Settings(SamplerConfig):\n    stride: int = 1\n"
        "class Strided(Sampler):\n    settings = Settings\n"
        "    def choose(self, number, count):\n        return number * self.config.stride\n"
    )
    config = validate(parse_words(["env=x", f"rollout.sampler={file}", "rollout.sampler.stride=2"]), RunConfig)
    stream = TaskStream(Sequence(), "train", 0, make_sampler(config.rollout.sampler, 0))
    assert ids(stream, 0, 3) == ["0", "2", "4"]
    with pytest.raises(InvalidInput, match="Strided chose task 6; there are 0 to 4"):
        stream.take(3, 1)


def test_another_seed_gives_another_order() -> None:
    orders = {tuple(ids(TaskStream(Sequence(), "train", seed=s), 0, 5)) for s in range(8)}
    assert len(orders) > 1


@pytest.mark.parametrize("env", [Empty()])
def test_a_split_without_tasks_is_an_error_and_not_an_endless_wait(env: Env) -> None:
    with pytest.raises(EnvError, match="no tasks"):
        TaskStream(env, "train", seed=0).take(0, 1)


@pytest.mark.slow
def test_an_unknown_split_is_named_with_its_nearest() -> None:
    with pytest.raises(EnvError, match=r"'evl'.*'eval'"):
        TaskStream(Sequence(), "evl", seed=0).take(0, 1)


@given(st.lists(st.one_of(st.integers(), st.text(max_size=5)), max_size=4))
@pytest.mark.slow
def test_seeds_are_63_bits_and_differ_with_their_path(parts: list[int | str]) -> None:
    assert 0 <= derive(*parts) < 2**63
    assert derive(*parts) != derive(*parts, 0)
