"""A tiny model with random weights, and engines on it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from agentrl.config import EngineConfig
from agentrl.errors import AgentRLError
from agentrl.models import tiny
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.types import PauseMode
from tests.conftest import need

TEXTS = [
    f"<|im_start|>user\nwhat is {n} + {n * n}?<|im_end|>\n<|im_start|>assistant\n{n + n * n}<|im_end|>\n"
    for n in range(60)
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("models") / "tiny", TEXTS, shape=tiny.TinyShape(vocab=288, context=512))


@pytest.fixture
def no_compiler(own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing was compiled yet, and that has no compiler."""
    monkeypatch.setenv("PATH", "")


@pytest.fixture(scope="session")
def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(scope="session")
def smollm() -> Path:
    """A real model of 135 million weights, in thirty layers."""
    from agentrl import models

    try:
        return models.resolve("smollm2-135m")
    except AgentRLError as error:
        need(False, str(error))
        raise


def two_layers_of(model: Path, folder: Path) -> Path:
    """Its first two layers: real weights, the whole vocabulary, and a fraction of the work."""
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(model, num_hidden_layers=2).save_pretrained(folder)
    for file in model.iterdir():
        if not (folder / file.name).exists():
            shutil.copy(file, folder)
    return folder


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[LocalEngine]:
    made = LocalEngine(folder, EngineConfig(max_batch=8, device="cpu"))
    yield made
    await made.close()


@contextlib.asynccontextmanager
async def amid_turns(engine: LocalEngine, count: int = 1) -> AsyncIterator[None]:
    """The block runs while so many turns have tokens and none goes on, which are begun after this is entered.

    A turn of hundreds of tokens takes 0.1 s: on a busy machine it was over before a test saw that it ran.
    """
    loop, reached, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    step = engine.runner.step

    def held(*given: Any) -> Any:
        if sum(bool(request.logprobs) for request in engine._scheduler.generating) >= count:
            loop.call_soon_threadsafe(reached.set)
            go_on.wait()
        return step(*given)

    engine.runner.step = held  # type: ignore[assignment, method-assign]
    try:
        await reached.wait()
        yield
    finally:
        engine.runner.step = step  # type: ignore[method-assign]
        go_on.set()


async def pause_amid_turns(engine: LocalEngine, mode: PauseMode, count: int = 1) -> None:
    """Pause an engine while so many turns, which are begun after this is called, have tokens and are not over."""
    async with amid_turns(engine, count):
        pausing = asyncio.create_task(engine.pause(mode))
        await asyncio.sleep(0)  # now it waits for the end of a step
    await pausing


def reference(model: Any) -> Callable[[Sequence[int], float], list[float]]:
    """Log-probabilities by a plain transformers forward pass: no cache, no batch, its own attention."""

    @torch.no_grad()
    def score(ids: Sequence[int], temperature: float) -> list[float]:
        logp = torch.log_softmax(model(torch.tensor([list(ids)])).logits[0].float() / temperature, -1)
        return [0.0, *(logp[at - 1, ids[at]].item() for at in range(1, len(ids)))]

    return score
