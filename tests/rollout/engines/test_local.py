"""What the local engine promises beyond the contract."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config import EngineConfig
from agentrl.errors import EngineError, InvalidInput, MissingExtra, UnknownName
from agentrl.rollout.engines import ENGINES, make_engine
from agentrl.rollout.engines.local import engine as local
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.types import Chunk, Engine, FinishReason, PauseMode, Sampling, collect
from tests.rollout.engines.conftest import amid_turns, pause_amid_turns


async def test_samples_of_one_prompt_compute_it_once(engine: LocalEngine) -> None:
    prompt = list(range(1, 101))
    turns = await asyncio.gather(
        *[collect(engine.generate(f"s{i}/0", prompt, Sampling(max_new_tokens=3, seed=i))) for i in range(8)]
    )
    assert sorted(turn.cached_tokens for turn in turns) == [0] + [99] * 7


@pytest.mark.slow
async def test_more_requests_than_rows_all_get_their_own_answer(engine: LocalEngine) -> None:
    prompts = [[i + 1] * (5 + i % 30) for i in range(60)]
    sampling = Sampling(max_new_tokens=6, seed=9)
    together = await asyncio.gather(*[collect(engine.generate(f"a{i}/0", p, sampling)) for i, p in enumerate(prompts)])
    for index in (0, 17, 59):
        alone = await collect(engine.generate(f"b{index}/0", prompts[index], sampling))
        assert (alone.token_ids, alone.logprobs) == (together[index].token_ids, together[index].logprobs)


@pytest.mark.slow
async def test_long_requests_get_longer_rows_and_are_not_starved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for four rows of 256 tokens but only one of 512: rows must grow, and requests must wait for that."""
    monkeypatch.setattr(local, "_ARENA_BYTES", 5 * 256 * 3 * 2 * 2 * 32 * 4)
    engine = LocalEngine(folder, EngineConfig(max_batch=8, device="cpu"))
    short = [engine.generate(f"s{i}/0", [i + 1] * 20, Sampling(max_new_tokens=20, seed=i)) for i in range(12)]
    long = [engine.generate(f"l{i}/0", [i + 1] * 400, Sampling(max_new_tokens=20, seed=i)) for i in range(2)]
    mixed = [*short[:6], long[0], *short[6:], long[1]]
    turns = await asyncio.wait_for(asyncio.gather(*map(collect, mixed)), 300)
    assert all(len(turn.token_ids) == 20 for turn in turns)
    again = await collect(engine.generate("a/0", [1] * 400, Sampling(max_new_tokens=20, seed=0)))
    assert (again.token_ids, again.logprobs) == (turns[6].token_ids, turns[6].logprobs)
    await engine.close()


@pytest.mark.slow
async def test_an_aborted_turn_goes_on_as_if_nothing_had_happened(engine: LocalEngine) -> None:
    prompt, sampling = list(range(2, 30)), Sampling(max_new_tokens=60, seed=5)
    whole = await collect(engine.generate("w/0", prompt, sampling))
    half = await collect(engine.generate("h/0", prompt, Sampling(max_new_tokens=31, seed=5)))
    rest = await collect(engine.generate("h/0", [*prompt, *half.token_ids], Sampling(max_new_tokens=29, seed=5)))
    assert half.token_ids + rest.token_ids == whole.token_ids
    assert half.logprobs + rest.logprobs == whole.logprobs


@pytest.mark.slow
async def test_a_turn_frozen_over_a_publication_continues_exactly_under_the_new_weights(
    engine: LocalEngine, model: Any
) -> None:
    """In-place updates leave other engines with mixed caches; this one computes the path anew."""
    prompt, sampling = list(range(3, 40)), Sampling(max_new_tokens=300, seed=2)
    task = asyncio.create_task(collect(engine.generate("s/0", prompt, sampling)))
    await pause_amid_turns(engine, PauseMode.IN_PLACE)
    weights = {name: tensor * 1.1 for name, tensor in model.state_dict().items()}
    await engine.publish(weights.items(), 7)
    assert not task.done()
    await engine.resume()
    turn = await task
    assert [span.version for span in turn.versions] == [0, 7]
    path = [*prompt, *turn.token_ids]
    scored = (await engine.score(path))[len(prompt) :]
    cut = turn.versions[1].start
    assert list(turn.logprobs[cut:]) == scored[cut:]
    assert list(turn.logprobs[:cut]) != scored[:cut]


@pytest.mark.slow
async def test_scoring_goes_on_while_generation_is_frozen(engine: LocalEngine) -> None:
    task = asyncio.create_task(collect(engine.generate("s/0", [1, 2, 3], Sampling(max_new_tokens=400, seed=2))))
    await pause_amid_turns(engine, PauseMode.IN_PLACE)
    assert len(await asyncio.wait_for(engine.score(list(range(50))), 300)) == 50
    assert not task.done()
    await engine.resume()
    assert len((await task).token_ids) == 400


async def test_long_scorings_are_computed_in_pieces_and_agree(engine: LocalEngine, model: Any) -> None:
    from tests.rollout.engines.conftest import reference

    ids = torch.randint(0, 280, (512,), generator=torch.Generator().manual_seed(0)).tolist()
    many = await asyncio.gather(*[engine.score(ids[: 100 + 100 * i], 0.7) for i in range(5)])
    expected = reference(model)(ids, 0.7)
    for found in many:
        assert found == pytest.approx(expected[: len(found)], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": 0}, {"min_p": 2.0}, {"stop": ("",)}]
)
async def test_a_wrong_sampling_parameter_is_named(engine: LocalEngine, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        await collect(engine.generate("s/0", [1], Sampling(**wrong)))


async def test_penalties_keep_a_token_from_coming_again(engine: LocalEngine) -> None:
    sampling = Sampling(temperature=0.0, max_new_tokens=30, presence_penalty=1000.0)
    turn = await collect(engine.generate("s/0", [5, 6, 7], sampling))
    assert len(set(turn.token_ids)) == 30


async def test_weights_that_are_not_finite_end_requests_and_poison_nothing(engine: LocalEngine, model: Any) -> None:
    good = dict(model.state_dict())
    prompt, sampling = list(range(40)), Sampling(max_new_tokens=5, seed=1)
    before = await collect(engine.generate("a/0", prompt, sampling))
    await engine.publish({name: tensor * float("nan") for name, tensor in good.items()}.items(), 1)
    with pytest.raises(EngineError, match="not finite"):
        await collect(engine.generate("b/0", prompt, sampling))
    await engine.publish(good.items(), 2)
    assert (await collect(engine.generate("c/0", prompt, sampling))).logprobs == before.logprobs


async def test_weights_of_another_shape_are_refused_by_name(engine: LocalEngine, model: Any) -> None:
    weights = dict(model.state_dict())
    name = "model.layers.0.mlp.up_proj.weight"
    weights[name] = weights[name][:-1]
    with pytest.raises(EngineError, match=name):
        await engine.publish(weights.items(), 1)


async def test_a_crash_of_the_worker_reaches_everybody_who_waits(folder: Path) -> None:
    engine = LocalEngine(folder, EngineConfig(max_batch=2, device="cpu"))

    def explode(*_: Any) -> Any:
        raise RuntimeError("the roof fell in")

    engine.runner.step = explode  # type: ignore[method-assign]
    asked = [collect(engine.generate(f"s{i}/0", [1, 2], Sampling())) for i in range(5)]
    for outcome in await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 300):
        assert isinstance(outcome, EngineError)
        assert "roof" in str(outcome)
    assert not (await engine.health()).ok
    with pytest.raises(EngineError, match="roof"):
        await engine.score([1, 2])
    await engine.close()


async def test_the_engines_thread_keeps_its_number_of_threads_whatever_others_set(folder: Path) -> None:
    """Torch gave it the number that was set last: each operation of a small model waited for a second thread."""
    own, counted = torch.get_num_threads(), list[int]()
    torch.set_num_threads(2)
    try:
        engine = LocalEngine(folder, EngineConfig(max_batch=2, device="cpu"))
        await engine._worker.call(lambda: counted.append(torch.get_num_threads()))
        await engine.close()
    finally:
        torch.set_num_threads(own)
    assert counted == [1]


@pytest.mark.slow
async def test_a_stream_comes_in_pieces(engine: LocalEngine) -> None:
    stream = engine.generate("s/0", [1, 2, 3], Sampling(max_new_tokens=450, seed=1))
    pieces = [item async for item in stream if isinstance(item, Chunk)]
    assert len(pieces) > 1


async def test_a_deadline_ends_a_request_that_waits_for_a_resume(engine: LocalEngine) -> None:
    await engine.pause(PauseMode.DRAIN)
    with pytest.raises(TimeoutError):
        await collect(engine.generate("s/0", [1], Sampling(), time.monotonic() + 0.05))
    await engine.resume()
    assert (await collect(engine.generate("s/0", [1], Sampling(max_new_tokens=1)))).finish_reason is FinishReason.LENGTH


@pytest.mark.slow
async def test_a_pause_and_a_call_that_are_cancelled_leave_the_engine_at_work(engine: LocalEngine) -> None:
    under_way = asyncio.create_task(collect(engine.generate("s/0", [1], Sampling(max_new_tokens=200))))
    async with amid_turns(engine):
        waiting = [asyncio.create_task(engine.pause(PauseMode.DRAIN)), asyncio.create_task(engine.checksum())]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
    assert len((await under_way).token_ids) == 200
    await engine.resume()
    assert (await collect(engine.generate("s/1", [1], Sampling(max_new_tokens=1)))).finish_reason is FinishReason.LENGTH


async def test_an_engine_is_made_by_name_or_by_import_path(folder: Path) -> None:
    for name in ("local", "agentrl.rollout.engines.local.engine:LocalEngine"):
        engine = make_engine(EngineConfig(name=name, max_batch=1, device="cpu"), folder)
        assert isinstance(engine, Engine)
        await engine.close()


def test_an_unknown_engine_names_its_nearest_neighbour(folder: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'local'"):
        make_engine(EngineConfig(name="lokal"), folder)
    with pytest.raises(UnknownName, match="there is no module"):
        make_engine(EngineConfig(name="no.such:thing"), folder)


def test_a_registered_engine_is_found() -> None:
    def missing(*_: Any) -> Engine:
        raise MissingExtra("it is not here")

    ENGINES.register("mine", missing)
    with pytest.raises(MissingExtra):
        make_engine(EngineConfig(name="mine"), "nowhere")


def test_a_folder_without_a_model_is_an_engine_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="can't load"):
        LocalEngine(tmp_path, EngineConfig(device="cpu"))


@pytest.mark.slow
def test_the_registry_does_not_import_torch() -> None:
    code = "import sys, agentrl.rollout.engines; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
