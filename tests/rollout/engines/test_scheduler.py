"""The scheduler under arrivals of every kind: whatever happens beside a sequence, its numbers are its own."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from agentrl.models import tiny
from agentrl.rollout.engines.local.request import Finished, Request
from agentrl.rollout.engines.local.runner import ModelRunner
from agentrl.rollout.engines.local.scheduler import Scheduler
from agentrl.types import Sampling, Turn
from tests.rollout.engines.conftest import TEXTS
from tests.rollout.engines.walk import Reference, Walk

Parts = tuple[ModelRunner, Reference]


@pytest.fixture(scope="module", params=["auto", "torch"])
def parts(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Parts]:
    """A runner to schedule on, and two policies to compare with, of which the runner has the first; by each kernel."""
    shape = tiny.TinyShape(vocab=288, layers=2, width=32, mlp=32, context=1024)
    base = tmp_path_factory.mktemp("models")
    folders = [tiny.build(base / str(seed), TEXTS, seed=seed, shape=shape) for seed in (0, 1)]
    own = torch.get_num_threads()
    torch.set_num_threads(1)
    yield (
        ModelRunner(folders[0], "cpu", "float32", 24, 1 << 26, kernel=request.param),
        Reference([ModelRunner(folder, "cpu", "float32", 1, 1 << 24, kernel=request.param) for folder in folders]),
    )
    torch.set_num_threads(own)


def scheduler_on(runner: ModelRunner, prefill_tokens: int) -> Scheduler:
    return Scheduler(runner, store_tokens=10_000, prefill_tokens=prefill_tokens, score_tokens=4096, decode=None)


def drain(scheduler: Scheduler) -> list[Finished]:
    ended: list[Finished] = []
    while scheduler.waiting or scheduler.running:
        ended += scheduler.step()
        assert scheduler.progress
    return ended


def walk(parts: Parts, seeds: range, events: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += Walk(*parts, random.Random(seed)).run(events)
        except Exception as error:
            error.add_note(f"in the walk of seed {seed}")
            raise
    return seen


@pytest.mark.slow
def test_a_request_that_is_moved_while_it_is_prefilled_keeps_all_its_tokens(parts: Parts) -> None:
    """Seventeen rows go idle below one that decodes and one that is still being prefilled: both move down."""
    runner, reference = parts
    scheduler = scheduler_on(runner, prefill_tokens=32)
    dice = random.Random(0)
    for index in range(17):
        scheduler.submit(Request(f"short{index}/0", [index + 1], Sampling(), index, limit=2))
    decoding = Request("decoding/0", [99], Sampling(), 1, limit=40)
    prefilled = Request("prefilled/0", [dice.randrange(200) for _ in range(200)], Sampling(), 2, limit=20)
    scheduler.submit(decoding)
    scheduler.submit(prefilled)
    scheduler.step()
    assert prefilled.row == 18
    ended = drain(scheduler)
    assert len(ended) == 19
    for done in ended:
        assert isinstance(done.result, Turn)
        expected = reference.logprobs(done.request.ids, 0, 1.0)[done.request.prompt - 1 :]
        assert list(done.result.logprobs) == expected


@pytest.mark.parametrize("length", [2, 16, 17, 33, 65, 129])
def test_a_path_whose_last_segment_has_one_token_is_scored_once(parts: Parts, length: int) -> None:
    """That token is nobody's condition, so all log-probabilities are there one segment before the end."""
    runner, reference = parts
    scheduler = scheduler_on(runner, prefill_tokens=512)
    scheduler.submit(Request("score", list(range(length)), None, 0, 0))
    (done,) = drain(scheduler)
    assert done.result == [0.0, *reference.logprobs(list(range(length)), 0, 1.0)]


def test_a_turn_that_is_aborted_before_its_first_token_is_empty(parts: Parts) -> None:
    scheduler = scheduler_on(parts[0], prefill_tokens=16)
    scheduler.submit(Request("early/0", list(range(64)), Sampling(), 0, limit=4))
    scheduler.step()
    (done,) = scheduler.abort_running()
    assert isinstance(done.result, Turn)
    assert (done.result.token_ids, done.result.versions) == ((), ())


@pytest.mark.slow
def test_a_turn_is_its_own_whatever_happens_beside_it_in_hundreds_of_turns(parts: Parts) -> None:
    seen = walk(parts, range(32), 150)
    events = ("scoring", "cancel", "shared", "moved while prefilled", "longer rows", "fewer rows", "two versions")
    assert seen["turn"] > 800
    assert all(seen[event] > 4 for event in events), seen
