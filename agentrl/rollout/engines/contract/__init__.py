"""The promises of every engine to its callers, as code that anybody's engine can be run against.

`check_engine` builds an engine, runs every check of `CHECKS` on it, and returns what it found wrong; an empty
list means that the contract is kept. A check that an engine's `capabilities` rule out is left out. Nothing here
knows how an engine works: its answers are compared with each other, with its own scoring, and, where one is given,
with an independent reference. `turns`, `sampling` and `lifecycle` hold the checks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agentrl.rollout.engines.contract import lifecycle, sampling, turns
from agentrl.rollout.engines.contract.subject import LOGPROB_TOLERANCE, PATIENCE, Check, EngineSubject
from agentrl.types import Engine, Tokenizer

__all__ = ["CHECKS", "LOGPROB_TOLERANCE", "Check", "ContractFinding", "EngineSubject", "check_engine"]


@dataclass(frozen=True, slots=True)
class ContractFinding:
    """Something wrong: which check, and what it saw."""

    check: str
    message: str


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        turns.chunks_add_up_to_the_turn,
        turns.limits_are_kept,
        turns.stop_tokens_end_a_turn,
        turns.stop_strings_end_a_turn,
        turns.bad_requests_are_refused,
        turns.routed_experts_are_those_requested,
        sampling.logprobs_are_those_of_scoring,
        sampling.greedy_takes_the_most_probable,
        sampling.the_most_probable_tokens_come_where_they_are_requested,
        sampling.samples_follow_the_softmax,
        sampling.narrowed_samples_stay_inside,
        sampling.other_requests_change_nothing,
        lifecycle.prefixes_are_reused,
        lifecycle.closing_the_stream_frees_the_engine,
        lifecycle.pausing_works_in_every_mode,
        lifecycle.publications_are_whole,
        lifecycle.closing_is_final,
    )
}
"""All checks, in the order in which they run; the last one ends the engine."""


async def check_engine(
    make_engine: Callable[[], Engine | Awaitable[Engine]], tokenizer: Tokenizer | None = None, **known: Any
) -> list[ContractFinding]:
    """Run the whole suite.

    Args:
        make_engine: builds a fresh engine; it is closed here.
        tokenizer: the model's.
        **known: further attributes of `EngineSubject`.

    Returns:
        What is wrong; nothing, where the engine keeps the contract.
    """
    made = make_engine()
    engine = await made if inspect.isawaitable(made) else made
    subject = EngineSubject(engine, tokenizer, **known)
    findings: list[ContractFinding] = []
    try:
        for name, check in CHECKS.items():
            try:
                await asyncio.wait_for(check(subject), 3 * PATIENCE)
            except Exception as error:
                findings.append(ContractFinding(name, f"{type(error).__name__}: {error}"))
    finally:
        await engine.close()
    return findings
