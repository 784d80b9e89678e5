"""Supports: what an engine records of a turn's distribution is what the trainer needs to compute the same one."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.attachments import support
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.engines.local.sampler import RowSampling, sample
from agentrl.sessions.store.export import from_jsonl, to_jsonl
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.sessions.tree.generation import generate_turn
from agentrl.train.driver.fidelity import agreement, random_sessions
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Chunk, FinishReason, Message, Sampling, Session, Task, Turn, collect

BOUND = 1e-5
NARROWINGS = (
    {"top_p": 0.9},
    {"top_k": 8},
    {"min_p": 0.05},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.01, "repetition_penalty": 1.3},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4, "logit_bias": ((5, 2.0), (9, -100.0))},
    {},
)


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


def kept_by_definition(logits: np.ndarray, own: Sampling) -> list[int]:
    """The kept ids, by the definitions, with sorted lists and float64."""
    scaled = logits.astype(np.float64) / own.temperature
    order = np.argsort(-scaled, kind="stable")
    allowed = order[: own.top_k] if own.top_k is not None else order
    prob = np.exp(scaled[allowed] - scaled.max())
    before = np.concatenate(([0.0], np.cumsum(prob / prob.sum())[:-1]))
    within = (before < own.top_p) | (own.top_p >= 1)
    within &= scaled[allowed] >= scaled.max() + (np.log(own.min_p) if own.min_p else -np.inf)
    within[0] = True
    return sorted(allowed[within].tolist())


def test_the_recorded_set_is_an_independent_samplers_and_holds_the_drawn_token() -> None:
    """Where a token lies on the border by less than rounding, either set is right."""
    dice, generator = random.Random(0), torch.Generator().manual_seed(0)
    differing = 0
    for number in range(600):
        vocabulary = dice.choice((7, 300, 6000))
        logits = torch.randn(1, vocabulary, generator=generator) * dice.choice((0.5, 2.0, 6.0))
        own = Sampling(
            temperature=dice.choice((0.6, 1.0, 1.5)),
            top_p=dice.choice((0.5, 0.9, 0.999, 1.0)),
            top_k=dice.choice((None, 3, 20, 5000)),
            min_p=dice.choice((0.0, 0.05)),
        )
        recorder = support.SupportRecorder(vocabulary, 1 << 20)
        (token,), (logp,), _ = sample(logits, [RowSampling(own, number, 0, (), (), recorder)])
        found = support.unpack(recorder.data())
        wanted = kept_by_definition(logits[0].numpy(), own)
        if found.codes[0] >= support.SETS:
            read = found.ids(found.codes[0])
            kept = (read if read[0] >= 0 else np.setdiff1d(np.arange(vocabulary), -1 - read)).tolist()
        else:
            kept = [token] if found.codes[0] == support.ONE else list(range(vocabulary))
        assert token in kept
        differing += len(set(kept) ^ set(wanted)) > 0
        assert len(set(kept) ^ set(wanted)) <= 2
        own_logps = torch.log_softmax(logits[0, kept] / own.temperature, -1)
        assert logp == pytest.approx(float(own_logps[kept.index(token)]), abs=1e-5)
    assert differing <= 6


def test_draws_from_a_recorded_set_follow_its_log_probabilities() -> None:
    """By chi-square, with every filter, a penalty and a bias; chance exceeds the bound once in a million."""
    own = Sampling(top_p=0.95, top_k=12, repetition_penalty=1.3, logit_bias=((2, 1.0),))
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(1)).expand(500, -1) * 1.5
    counts: Counter[int] = Counter()
    logps: dict[int, float] = {}
    for block in range(10):
        rows = [
            RowSampling(own, block * 500 + i, 0, (1, 5), (7,), support.SupportRecorder(40, 999)) for i in range(500)
        ]
        for token, logp in zip(*sample(logits, rows)[:2], strict=True):
            counts[token] += 1
            logps[token] = logp
    assert sum(np.exp(list(logps.values()))) == pytest.approx(1, abs=1e-5)
    expected = {token: 5_000 * math.exp(logp) for token, logp in logps.items()}
    assert sum((counts[token] - expected[token]) ** 2 / expected[token] for token in expected) < 60


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
