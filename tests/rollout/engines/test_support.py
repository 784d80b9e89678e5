"""Supports: what an engine records of a turn's distribution is what the trainer needs to compute the same one."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from agentrl.attachments import support
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.sessions.store.export import to_jsonl, to_parquet
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.generation import generate_turn
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Chunk, FinishReason, Message, Sampling, Session, Task, Turn, VersionSpan, collect
from benchmarks import support_engines
from benchmarks.fidelity import agreement, random_sessions
from benchmarks.supports import chi_square, differing
from tests.sessions.exported import from_jsonl

BOUND = 1e-5
NARROWINGS = (
    {"top_p": 0.9},
    {"top_k": 8},
    {"min_p": 0.05},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.01, "repetition_penalty": 1.3},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4, "logit_bias": ((5, 2.0), (9, -100.0))},
    {"top_k": 1, "logit_bias": ((5, 3.0),)},
    {"min_p": 0.02, "repetition_penalty": 0.7, "presence_penalty": -1.0, "logit_bias": ((2, -100.0),)},
    {},
)


@pytest.mark.slow
async def test_tokens_that_are_drawn_from_a_recorded_support_have_the_log_probability_that_the_trainer_computes(
    engine: LocalEngine, folder: Path
) -> None:
    sessions = await random_sessions(engine, 12, concurrency=6, turns=3, narrowings=NARROWINGS)
    drawn = [node for session in sessions for node in session.nodes if node.sampled]
    assert all(all(node.trainable) for node in drawn)
    found = agreement(TorchTrainer(folder), sessions)
    assert found.max <= BOUND
    for session in sessions:
        for node in session.nodes:
            if node.sampling is not None and not node.sampling.full_support:
                del node.attachments["support"]
    assert agreement(TorchTrainer(folder), sessions).max > 0.05, "without the supports it would be another distribution"


@pytest.mark.slow
def test_the_recorded_set_is_an_independent_samplers_and_holds_the_drawn_token() -> None:
    """Where a token lies on the border by less than rounding, either set is right; the benchmark takes 100,000 rows."""
    beside = differing(600, seed=0)
    assert None not in beside
    different = [ids for ids in beside if ids]
    assert len(different) <= 6
    assert max(different, default=0) <= 2


@pytest.mark.slow
def test_draws_from_a_recorded_set_follow_its_log_probabilities() -> None:
    """By chi-square, with every filter, a penalty and a bias; chance exceeds the bound once in a million."""
    square, freedom = chi_square(5_000)
    assert freedom <= 11
    assert square < 60


@pytest.mark.slow
async def test_a_turn_that_is_continued_after_an_abort_counts_and_records_as_one(
    engine: LocalEngine, folder: Path
) -> None:
    """The attempt after an abort counts the turn's own tokens of the first one."""

    class Aborting(LocalEngine):
        """Ends a turn after five tokens, as a publication does."""

        def __init__(self) -> None:
            pass

        def __getattribute__(self, name: str) -> Any:
            return object.__getattribute__(self, name) if name == "generate" else getattr(engine, name)

        async def generate(
            self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
        ) -> AsyncIterator[Chunk | Turn]:
            short = replace(sampling, max_new_tokens=min(5, sampling.max_new_tokens))
            turn = await collect(engine.generate(request_id, input_ids, short, deadline))
            ended = sampling.max_new_tokens <= 5
            yield turn if ended else replace(turn, finish_reason=FinishReason.ABORT)

    session, ids = Session("s", Task(id="t")), list(range(5, 25))
    user = tree.add(session, None, Message(role="user", content="."), ids)
    own = Sampling(
        top_p=0.9,
        max_new_tokens=12,
        seed=1,
        frequency_penalty=1.5,
        repetition_penalty=1.5,
        record=((support.NAME, len(ids)),),
    )
    turn = await generate_turn(Aborting(), "s/0", ids, own, time.monotonic() + 60)
    node = tree.add_turn(session, user.id, [], turn, own, Message(role="assistant", content="."))
    assert len(node.token_ids) == 12
    assert all(node.trainable)
    assert agreement(TorchTrainer(folder), [session]).max <= BOUND


@pytest.mark.slow
async def test_a_narrowed_session_is_the_same_out_of_the_store_and_exports(engine: LocalEngine, tmp_path: Path) -> None:
    [session] = await random_sessions(engine, 1, turns=3, narrowings=({"top_p": 0.9}, {"logit_bias": ((3, -100.0),)}))
    node = next(n for n in session.nodes if n.sampled)
    found = support.unpack(node.attachments[support.NAME])
    gap = replace(found, codes=(support.OVERSIZE, *found.codes[1:]))
    node.attachments[support.NAME] = gap.pack()
    node.trainable[node.versions[0].start] = False
    tree.check(session)
    with Store(tmp_path / "sessions.db") as store:
        store.save(session)
        assert store.load(session.id) == session
    to_jsonl([session], tmp_path / "sessions.jsonl")
    assert list(from_jsonl(tmp_path / "sessions.jsonl")) == [session]
    to_parquet([session], tmp_path / "sessions.parquet")
    rows = pyarrow.parquet.read_table(tmp_path / "sessions.parquet").to_pylist()
    assert [dict(row["attachments"]) for row in rows] == [n.attachments for n in session.nodes]


def test_sets_that_many_turns_have_are_stored_once_and_stay_as_long_as_one_turn_has_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    masks = [np.flatnonzero(rng.random(4000) < 0.5) for _ in range(4)]
    sessions = []
    for number in range(10):
        recorder = support.SupportRecorder(4000, 1 << 20)
        for kept in (*masks[: 1 + number % 4], np.arange(3 + number)):
            recorder.add(kept, int(kept[0]))
        own, session = Sampling(top_p=0.9), Session(f"s{number}", Task(id="t"))
        count = 2 + number % 4
        turn = Turn((1,) * count, (-1.0,) * count, (VersionSpan(0, 0, count),), FinishReason.STOP)
        turn = replace(turn, attachments={support.NAME: recorder.data()})
        user = tree.add(session, None, Message(role="user", content="."), [1])
        tree.add_turn(session, user.id, [], turn, own, Message(role="assistant", content="."))
        sessions.append(session)
    with Store(tmp_path / "sessions.db") as store:
        for session in sessions:
            store.save(session)
        assert stored_bytes(tmp_path) < 4 * 520 + 10 * 100
        for session in sessions[:9]:
            store.delete(session.id)
        assert store.load("s9") == sessions[9]
        assert stored_bytes(tmp_path) < 2 * 520 + 100


@pytest.mark.slow
def test_the_benchmark_of_engines_prints_how_far_they_are_from_the_trainer_and_what_recording_costs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--sessions", "1", "--rows", "2", "--tokens", "2", "--repeats", "1"]
    small = ["max_context=256", "--engine", "local", "--model", str(folder), "--only", "top_p=0.9", *sizes]
    support_engines.main(["mismatch", "cost", *small])
    printed = capsys.readouterr().out
    found = re.findall(r"^local, (.+): \|Δ\| at most (\S+), .* 100.0% of the sampled ones; from float64", printed, re.M)
    assert [name for name, _ in found] == ["full support", "top_p=0.9"]
    assert all(float(largest) <= BOUND for _, largest in found)
    assert re.search(r"^local, top_p=0.9: .* ms a token; \S+ times as much as without the supports", printed, re.M)


def stored_bytes(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "sessions.db")) as db:
        return int(db.execute("SELECT sum(length(data)) FROM blobs").fetchone()[0])
