"""A bad request fails; the engines that it fails on are there for the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import FleetConfig
from agentrl.errors import EngineError
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.fleet import failing_requests
from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.fleet.member import MemberState
from agentrl.sessions.tree.generation import generate
from agentrl.types import Sampling, Turn, collect
from tests.rollout.fleet.conftest import LOCAL, QUICK, local_fleet

BAD = 99


class Touchy(LocalEngine):
    """Refuses prompts that begin with BAD, or dies of them."""

    def __init__(self, folder: Path, deadly: bool) -> None:
        super().__init__(folder, LOCAL)
        self.deadly = deadly
        self.broken = False

    async def generate(self, request_id: str, input_ids: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        if input_ids[0] == BAD:
            if self.deadly:
                await self.close()
            raise EngineError("CUDA error: an illegal memory access was encountered")
        if self.broken:
            raise EngineError("nothing works any more")
        async for item in super().generate(request_id, input_ids, *args, **kwargs):
            yield item


async def turn(fleet: Fleet, name: str, first: int, tokens: int = 40) -> Turn:
    sampling = Sampling(max_new_tokens=tokens, seed=1)
    return await collect(generate(fleet, f"{name}/0", [first, 6, 7], sampling, time.monotonic() + 120.0))


def touchy(folder: Path, deadly: bool, engines: int = 1, **config: Any) -> tuple[Fleet, list[Touchy]]:
    made: list[Touchy] = []

    def make() -> Touchy:
        made.append(Touchy(folder, deadly))
        return made[-1]

    return local_fleet(folder, engines, QUICK.model_copy(update=config), make=make), made


@pytest.mark.slow
async def test_a_request_that_an_engine_refuses_fails_itself_however_often_it_is_repeated(folder: Path) -> None:
    """Three failures of one request took the engine from all others, and the restarts were soon used up."""
    fleet, made = touchy(folder, deadly=False)
    try:
        for n in range(4):
            with pytest.raises(EngineError, match=r"failed 3 times.*illegal memory"):
                await turn(fleet, f"bad{n}", BAD)
        assert len((await turn(fleet, "good", 5)).token_ids) == 40
        assert (fleet.lost, len(made)) == (0, 1)
    finally:
        await fleet.close()


@pytest.mark.slow
async def test_a_request_that_kills_engines_is_refused_after_some_and_the_others_get_through(folder: Path) -> None:
    fleet, _ = touchy(folder, deadly=True, max_attempts=2)
    try:
        good = [asyncio.create_task(turn(fleet, f"good{n}", 10 + n, 200)) for n in range(4)]
        with pytest.raises(EngineError, match="failed 2 times"):
            await turn(fleet, "bad", BAD)
        for n in range(3):
            with pytest.raises(EngineError, match="2 engines died with this prompt"):
                await turn(fleet, f"again{n}", BAD)
        assert all(len(one.token_ids) == 200 for one in await asyncio.gather(*good))
        assert fleet.lost == 2
    finally:
        await fleet.close()


@pytest.mark.slow
async def test_a_request_that_failed_on_an_engine_goes_to_another(folder: Path) -> None:
    """Its session was the engine's, so it came back until its attempts were used up."""
    fleet, made = touchy(folder, deadly=False, engines=2, max_attempts=2)
    try:
        await fleet.start()
        made[0].broken = True
        for n in range(4):
            assert len((await turn(fleet, f"good{n}", 5)).token_ids) == 40
    finally:
        await fleet.close()


async def test_a_refused_prompt_may_be_tried_again_after_a_while(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, _ = touchy(folder, deadly=True, max_attempts=1)
    try:
        with pytest.raises(EngineError, match="failed 1 times"):
            await turn(fleet, "bad", BAD)
        with pytest.raises(EngineError, match="1 engines died"):
            await turn(fleet, "bad", BAD)
        monkeypatch.setattr(failing_requests, "FORGIVEN_AFTER", 0.0)
        with pytest.raises(EngineError, match="failed 1 times"):
            await turn(fleet, "bad", BAD)
    finally:
        await fleet.close()


@pytest.mark.slow
async def test_an_engine_that_fails_one_request_over_and_over_and_draws_nothing_for_us_is_started_anew(
    folder: Path,
) -> None:
    fleet, made = touchy(folder, deadly=False, max_attempts=10)
    try:
        await fleet.start()
        made[0].broken = True
        assert len((await turn(fleet, "s", 5)).token_ids) == 40
        assert (fleet.lost, len(made)) == (1, 2)
    finally:
        await fleet.close()


@pytest.mark.slow
async def test_an_engine_that_works_gets_its_restarts_back(folder: Path) -> None:
    fleet, _ = touchy(folder, deadly=True, regain_restart_after=0.01, max_attempts=1)
    try:
        await fleet.start()
        (member,) = fleet.engines.values()
        with pytest.raises(EngineError):
            await turn(fleet, "bad", BAD)
        async with asyncio.timeout(60):
            while member.state is not MemberState.READY:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert member.restarts == 1
            await asyncio.sleep(3 * QUICK.probe_every)
            assert member.restarts == 1, "idling is no proof"
            await turn(fleet, "good", 5)
            while member.restarts:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await fleet.close()


@pytest.mark.slow
def test_attempts_and_restarts_are_settings() -> None:
    assert (FleetConfig().max_attempts, FleetConfig().max_restarts) == (3, 5)
