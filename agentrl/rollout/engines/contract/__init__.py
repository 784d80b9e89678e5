"""The promises of every engine to its callers, as code that anybody's engine can be run against.

`check_engine` builds an engine, runs every check of `CHECKS` on it, and returns what it found wrong; an empty
list means that the contract is kept. A check that an engine's `capabilities` rule out is left out. Nothing here
knows how an engine works: its answers are compared with each other, with its own scoring, and, where one is given,
with an independent reference. `turns`, `drawing` and `lifecycle` hold the checks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from agentrl.rollout.engines.contract.lifecycle import (
    closing_is_final,
    closing_the_stream_frees_the_engine,
    pausing_works_in_every_mode,
    prefixes_are_reused,
    publications_are_whole,
)
from agentrl.rollout.engines.contract.sampling import (
    greedy_takes_the_most_probable,
    logprobs_are_those_of_scoring,
    narrowed_samples_stay_inside,
    other_requests_change_nothing,
    samples_follow_the_softmax,
    the_most_probable_tokens_come_where_they_are_requested,
)
from agentrl.rollout.engines.contract.subject import LOGPROB_TOLERANCE, PATIENCE, Check, EngineSubject
from agentrl.rollout.engines.contract.turns import (
    bad_requests_are_refused,
    chunks_add_up_to_the_turn,
    limits_are_kept,
    routed_experts_are_those_requested,
    stop_strings_end_a_turn,
    stop_tokens_end_a_turn,
)
from agentrl.types import Engine, Tokenizer


@dataclass(frozen=True, slots=True)
class ContractFinding:
    """Something wrong: which check, and what it saw."""

    check: str
    message: str


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        chunks_add_up_to_the_turn,
        limits_are_kept,
        stop_tokens_end_a_turn,
        stop_strings_end_a_turn,
        bad_requests_are_refused,
        routed_experts_are_those_requested,
        logprobs_are_those_of_scoring,
        greedy_takes_the_most_probable,
        the_most_probable_tokens_come_where_they_are_requested,
        samples_follow_the_softmax,
        narrowed_samples_stay_inside,
        other_requests_change_nothing,
        prefixes_are_reused,
        closing_the_stream_frees_the_engine,
        pausing_works_in_every_mode,
        publications_are_whole,
        closing_is_final,
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
