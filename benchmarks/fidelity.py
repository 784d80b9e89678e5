"""Do engine and trainer agree on what a token's probability is? Measured on sessions that the engine sampled.

The importance ratio of every policy-gradient method divides one by the other, so a disagreement biases the
gradient. It is measured on random conversations of several turns, at several temperatures, sampled by the engine with
its caches and batches, then packed into forests and computed by the trainer as in training.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from agentrl.attachments import support
from agentrl.sessions.tree import tree
from agentrl.train.algorithms.credit import Credit, NodeAdvantage, trainable_nodes
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack
from agentrl.train.trainers.base import Trainer
from agentrl.types import Engine, FinishReason, Group, Message, Sampling, Session, Task, collect

TEMPERATURES = (1.0, 0.6, 1.0, 1.4)
"""The temperatures of a session's turns, in rotation; half of them other than 1."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """|Δ log-probability| of engine and trainer over trained tokens."""

    mean: float
    max: float
    tokens: int
    sessions: int


async def random_sessions(
    engine: Engine,
    count: int,
    *,
    seed: int = 0,
    turns: int = 3,
    prompt: int = 24,
    new: int = 12,
    concurrency: int = 32,
    narrowings: Sequence[Mapping[str, Any]] = (),
) -> list[Session]:
    """Conversations of random prompts and sampled turns: `turns` turns of about `new` tokens, `concurrency` at a time.

    The first half of the conversations branch: their last turn is sampled twice, so that prefixes are shared.
    `narrowings` are settings of `Sampling` that turns are drawn with, in rotation; their supports are recorded.
    """
    gate = asyncio.Semaphore(concurrency)

    async def converse(index: int) -> Session:
        rng = random.Random(f"{seed}/{index}")
        session = Session(f"fidelity-{seed}-{index}", Task(id=str(index)))
        vocab, head, ids = engine.capabilities.vocab_size, None, list[int]()
        for turn in range(turns):
            user_ids = rng.choices(range(vocab), k=rng.randint(1, 2 * prompt))
            user = tree.add(session, head, Message(role="user", content="…"), user_ids)
            ids += user_ids
            for branch in range(2 if turn == turns - 1 and index < count // 2 else 1):
                temperature = TEMPERATURES[(index + turn) % len(TEMPERATURES)]
                sampling = Sampling(temperature, rng.randint(1, 2 * new), seed=rng.getrandbits(31))
                if narrowings:
                    own = narrowings[(index + turn + branch) % len(narrowings)]
                    sampling = replace(sampling, record=((support.NAME, len(ids)),), **own)
                async with gate:
                    completion = await collect(engine.generate(f"{session.id}/{turn}-{branch}", ids, sampling))
                completion = replace(completion, finish_reason=FinishReason.STOP)  # it may end in mid-sentence
                node = tree.add_turn(session, user.id, [], completion, sampling, Message(role="assistant", content="…"))
                head = node.id
            ids += completion.token_ids
        return session

    return list(await asyncio.gather(*[converse(index) for index in range(count)]))


def agreement(trainer: Trainer, sessions: Sequence[Session], token_budget: int = 4096) -> Agreement:
    """Compare the trainer's log-probabilities of the sessions' trained tokens with the engine's."""
    forests = forests_of(sessions, token_budget)
    deltas: list[torch.Tensor] = []
    for forest, logp_T in zip(forests, trainer.logprobs(forests), strict=True):
        trained_T = torch.as_tensor(forest.weight) > 0
        behaviour_T = torch.as_tensor(forest.behaviour_logp)
        deltas.append((logp_T.cpu() - behaviour_T)[trained_T].abs().double())
    delta = torch.cat(deltas)
    return Agreement(delta.mean().item(), delta.max().item(), delta.numel(), len(sessions))


def forests_of(sessions: Sequence[Session], token_budget: int = 4096) -> list[Forest]:
    """The sessions as a trainer gets them; each trained token has the weight 1."""
    groups = [Group(session.id, session.task, [session]) for session in sessions]
    nodes = [(session.id, node.id) for session in sessions for node in trainable_nodes(session)]
    return pack(groups, Credit(dict.fromkeys(nodes, (NodeAdvantage(1.0, 1.0),))), token_budget)
