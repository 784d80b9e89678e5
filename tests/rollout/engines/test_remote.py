"""What the engine does with a server that misbehaves: a small one that speaks SGLang's protocol and can be told to."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentrl.attachments import support
from agentrl.config import FleetConfig, RolloutConfig, WeightsConfig
from agentrl.errors import ConfigError, DeadlineExceeded, EngineError, InvalidInput
from agentrl.rollout.engines.servers.server_settings import ServerConfig
from agentrl.rollout.engines.servers.sglang import SGLangEngine
from agentrl.rollout.engines.servers.vllm import VLLMEngine
from agentrl.rollout.fleet.fleet import Fleet
from agentrl.rollout.weights import make_publisher
from agentrl.sessions.tree import trainability
from agentrl.sessions.tree.generation import generate_turn
from agentrl.sessions.tree.trainability import Untrainable
from agentrl.train.plan.model_checks import require_supports
from agentrl.types import Chunk, FinishReason, PauseMode, Sampling, Turn, collect

Reply = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def piece(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(ids: list[int], reason: dict[str, Any] | None = None, version: str = "0", **meta: Any) -> bytes:
    drawn = [[-1.5, token, None] for token in ids]
    meta = {"finish_reason": reason, "weight_version": version, "output_token_logprobs": drawn, **meta}
    return piece(b"data: " + orjson.dumps({"output_ids": ids, "meta_info": meta}) + b"\n\n")


END = piece(b"data: [DONE]\n\n") + b"0\r\n\r\n"
LENGTH = {"type": "length", "length": 2}


class Fake:
    """Answers every control call, remembers it, and generates as `reply` says."""

    def __init__(self, reply: Reply | None = None, **info: Any) -> None:
        self.reply = reply
        self.info = {"version": "0.5.23", "incremental_streaming_output": True, "max_req_input_len": 506} | info
        self.calls: list[tuple[str, Any]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split()[1].decode()
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                body = orjson.loads(await reader.readexactly(length) or b"{}")
                self.calls.append((path, body))
                if path == "/generate" and self.reply is not None:
                    await self.reply(body, writer)
                    continue
                answer = orjson.dumps(self.info | {"weight_version": "0", "success": True})
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(answer)}\r\n\r\n".encode() + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def fake(folder: Path, reply: Reply | None = None, **info: Any) -> AsyncIterator[tuple[SGLangEngine, Fake]]:
    """An engine on a fake server."""
    made = Fake(reply, **info)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    told = {"grammar_backend": "llguidance"}
    engine = SGLangEngine(folder, ServerConfig(url=url, device="cpu", stream_tokens=3, server=told))
    try:
        yield engine, made
    finally:
        await engine.close()
        server.close()


def says(*parts: bytes, disconnect: bool = False) -> Reply:
    async def reply(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"".join(parts))
        await writer.drain()
        if disconnect:
            writer.close()

    return reply


async def test_chunks_and_turn_are_those_that_the_server_sent(folder: Path) -> None:
    spans = [{"version": "0", "start": 0, "end": 1}, {"version": "1", "start": 1, "end": 3}]
    reply = says(event([5], cached_tokens=7), event([6, 7], LENGTH, "1", weight_versions=spans), END)
    async with fake(folder, reply) as (engine, server):
        sampling = Sampling(0.5, 3, seed=2**70 + 9, stop=("x",), logit_bias=((4, 2.0),))
        items = [item async for item in engine.generate("s/0", [1, 2], sampling)]
        assert items[:2] == [Chunk((5,), (-1.5,), 0), Chunk((6, 7), (-1.5, -1.5), 1)]
        turn = items[2]
        assert isinstance(turn, Turn)
        assert (turn.token_ids, turn.cached_tokens, turn.finish_reason) == ((5, 6, 7), 7, FinishReason.LENGTH)
        assert [(span.version, span.start, span.end) for span in turn.versions] == [(0, 0, 1), (1, 1, 3)]
        body = server.calls[-1][1]
        assert body["input_ids"] == [1, 2]
        assert body["extra_key"] == "0"
        assert body["sampling_params"]["sampling_seed"] == 9
        assert body["sampling_params"]["stream_interval"] == 3
        assert body["sampling_params"]["ignore_eos"] is True
        assert body["sampling_params"]["logit_bias"] == {"4": 2.0}


async def test_tokens_of_one_version_that_come_together_are_one_chunk(folder: Path) -> None:
    best = [[[-0.5, 9, None]], [[-0.25, 8, None], [-2.0, 7, None]]]
    sent = [event([5], output_top_logprobs=best[:1]), event([6], output_top_logprobs=best[1:])]
    reply = says(*sent, event([7], version="1", output_top_logprobs=[[]]), event([], LENGTH, "1"), END)
    async with fake(folder, reply) as (engine, _):
        items = [item async for item in engine.generate("s/0", [1], Sampling(max_new_tokens=3, top_logprobs=1))]
        assert [item.token_ids for item in items] == [(5, 6), (7,), (5, 6, 7)]
        assert items[0].top_logprobs == (((9, -0.5),), ((8, -0.25),))
        assert isinstance(items[2], Turn)
        assert [(span.version, span.start, span.end) for span in items[2].versions] == [(0, 0, 2), (1, 2, 3)]


async def test_events_that_do_not_tell_of_each_token_are_refused_though_their_sum_would_fit(folder: Path) -> None:
    """Two events with three log-probabilities of three tokens, of which the first has two tokens and one of them."""
    uneven = [event([5, 6], output_token_logprobs=[[-1.5, 5, None]])]
    uneven += [event([7], LENGTH, output_token_logprobs=[[-1.5, 6, None], [-1.5, 7, None]])]
    async with fake(folder, says(*uneven, END)) as (engine, _):
        with pytest.raises(EngineError, match="2 tokens with 1 log-probabilities"):
            await collect(engine.generate("s/0", [1], Sampling(max_new_tokens=3)))


async def test_cumulative_chunks_of_any_server_are_passed_on_once(folder: Path) -> None:
    reply = says(event([5]), event([5, 6]), event([5, 6, 7], LENGTH), END)
    async with fake(folder, reply, incremental_streaming_output=False) as (engine, _):
        items = [item async for item in engine.generate("s/0", [1], Sampling(max_new_tokens=3))]
        assert [item.token_ids for item in items] == [(5,), (6,), (7,), (5, 6, 7)]


async def test_a_stop_that_was_not_requested_is_continued(folder: Path) -> None:
    """The tokenizer's end token stops SGLang; a turn ends only where its sampling says."""
    asked: list[list[int]] = []

    async def reply(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        asked.append(body["input_ids"])
        matched = 2 if len(asked) == 1 else 9
        told = [{"version": "0", "start": 0, "end": 2}]
        stop = {"type": "stop", "matched": matched}
        writer.write(HEAD + event([8, matched], stop, weight_versions=told, cached_tokens=len(asked)) + END)

    async with fake(folder, reply) as (engine, server):
        turn = await collect(engine.generate("s/0", [1], Sampling(max_new_tokens=10, stop_token_ids=(9,))))
        assert asked == [[1], [1, 8, 2]]
        assert (turn.token_ids, turn.stopped_by, turn.cached_tokens) == ((8, 2, 8, 9), 9, 1)
        assert [(span.start, span.end) for span in turn.versions] == [(0, 4)]
        limits = [body["sampling_params"]["max_new_tokens"] for path, body in server.calls if path == "/generate"]
        assert limits == [10, 8]


async def test_a_servers_grammar_begins_anew_where_a_turn_is_continued_and_what_it_draws_is_not_trained(
    folder: Path,
) -> None:
    """The turn's earlier tokens are a prompt to it: the set that it draws from is of the text's beginning again."""
    asked: list[dict[str, Any]] = []

    async def reply(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        asked.append(body)
        masks = {"output_token_sampling_mask": [[5, 6]] * 2, "output_token_sampling_logprobs": [-0.5] * 2}
        ended = {"type": "abort"} if len(asked) == 1 else LENGTH
        writer.write(HEAD + event([5, 6], ended, **(masks if body.get("return_sampling_mask") else {})) + END)

    async with fake(folder, reply, sampling_mask_max_tokens=1 << 20) as (engine, _):
        sampling = Sampling(max_new_tokens=4, regex="[ab]{2}", top_p=0.9, record=((support.NAME, 2),))
        turn = await generate_turn(engine, "s/0", [1, 2], sampling, time.monotonic() + 60)
    assert [body["input_ids"] for body in asked] == [[1, 2], [1, 2, 5, 6]]
    assert [bool(body.get("return_sampling_mask")) for body in asked] == [True, False]
    lost = Untrainable.GRAMMAR
    assert trainability.reasons(sampling, turn.attachments, 4) == [None, None, lost, lost]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (says(event([5]), disconnect=True), "generate"),
        (says(event([5]), END), "without a reason"),
        (says(piece(b"data: {rubbish\n\n"), END), "not JSON"),
        (says(event([5], LENGTH, output_token_logprobs=[]), END), "1 tokens with 0"),
        (says(event([5], LENGTH, output_token_logprobs=[[None, 5, None]]), END), "not finite"),
        (says(event([], {"type": "abort", "status_code": 500, "message": "out of memory"}), END), "out of memory"),
        (says(piece(b'data: {"error": {"message": "the scheduler died", "code": 500}}\n\n'), END), "scheduler died"),
    ],
)
async def test_a_server_that_breaks_off_or_sends_invalid_output_is_an_engine_error(
    reply: Reply, message: str, folder: Path
) -> None:
    async with fake(folder, reply) as (engine, _):
        with pytest.raises(EngineError, match=message):
            await collect(engine.generate("s/0", [1], Sampling(max_new_tokens=2)))
        assert (await engine.health()).running == 0


async def test_a_request_that_the_server_calls_wrong_is_the_callers_mistake(folder: Path) -> None:
    reply = says(piece(b'data: {"error": {"message": "presence_penalty", "code": 400}}\n\n'), END)
    async with fake(folder, reply) as (engine, _):
        with pytest.raises(InvalidInput, match="presence_penalty"):
            await collect(engine.generate("s/0", [1], Sampling(presence_penalty=9.0)))


async def test_a_grammar_that_the_server_can_not_compile_is_the_callers_mistake_and_an_abort_before_it_is_none(
    folder: Path,
) -> None:
    """The token that fills its place was an invalid output, and so a failure of the server."""

    def ended(message: str) -> bytes:
        reason = {"type": "abort", "message": message, "status_code": 400, "err_type": "BadRequestError"}
        return event([5], reason, output_token_logprobs=[])

    own = Sampling(max_new_tokens=2, json_schema='{"type": "foo"}')
    async with fake(folder, says(ended("Failed to compile json grammar: Invalid type: foo"), END)) as (engine, _):
        with pytest.raises(InvalidInput, match="Invalid type: foo"):
            await collect(engine.generate("s/0", [1], own))
    async with fake(folder, says(ended("Aborted by AbortReq."), END)) as (engine, _):
        turn = await collect(engine.generate("s/0", [1], own))
        assert (turn.finish_reason, turn.token_ids) == (FinishReason.ABORT, ())


def silent(started: asyncio.Event) -> Reply:
    async def reply(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + event([5]))
        started.set()
        await asyncio.sleep(3600)

    return reply


@pytest.mark.slow
async def test_a_server_that_hangs_costs_no_more_than_the_deadline_and_is_sent_an_abort(folder: Path) -> None:
    async with fake(folder, silent(asyncio.Event())) as (engine, server):
        await engine.start()
        with pytest.raises(DeadlineExceeded):
            await collect(engine.generate("s/0", [1], Sampling(), time.monotonic() + 1.0))
        await _until(engine, 0)
        generated = next(body for path, body in server.calls if path == "/generate")
        assert ("/abort_request", {"rid": generated["rid"], "abort_all": False}) in server.calls


async def test_requests_that_do_not_come_back_from_an_abort_are_cut_here(folder: Path) -> None:
    """One that reaches the server after it has looked for what to abort would wait there for the resume."""
    started = asyncio.Event()
    async with fake(folder, silent(started)) as (engine, _):
        engine.abort_seconds = 0.2
        task = asyncio.create_task(collect(engine.generate("s/0", [1], Sampling())))
        await started.wait()
        await engine.pause(PauseMode.ABORT)
        turn = await task
        assert turn.finish_reason is FinishReason.ABORT
        assert turn.token_ids in ((), (5,))


async def test_closing_ends_what_is_open(folder: Path) -> None:
    started = asyncio.Event()
    async with fake(folder, silent(started)) as (engine, _):
        task = asyncio.create_task(collect(engine.generate("s/0", [1], Sampling())))
        await started.wait()
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await task


async def test_ids_never_begin_alike(folder: Path) -> None:
    """SGLang aborts every request whose id begins with the one that is given."""
    async with fake(folder, says(event([5], LENGTH), END)) as (engine, server):
        for _ in range(12):
            await collect(engine.generate("s/1", [1], Sampling(max_new_tokens=1)))
        rids = [body["rid"] for path, body in server.calls if path == "/generate"]
        assert len(set(rids)) == 12
        assert len({len(rid) for rid in rids}) == 1


@pytest.mark.parametrize(
    ("info", "error", "message"),
    [
        ({"version": "0.4.1"}, ConfigError, "supported range"),
        ({"max_req_input_len": 100}, EngineError, "paths of 100 tokens"),
        (
            {"grammar_backend": "xgrammar"},
            ConfigError,
            "grammar_backend='llguidance': the server at .* runs with --grammar-backend xgrammar",
        ),
        ({"preferred_sampling_params": '{"top_k": 20}'}, ConfigError, "--preferred-sampling-params .*top_k.* rollout"),
    ],
)
async def test_a_server_that_does_not_fit_is_refused(
    info: dict[str, Any], error: type[Exception], message: str, folder: Path
) -> None:
    async with fake(folder, None, **info) as (engine, _):
        with pytest.raises(error, match=message):
            await engine.start()


@pytest.mark.parametrize("logits", [[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
@pytest.mark.parametrize("mode", ["processed_logprobs", "raw_logprobs"])
async def test_a_vllm_server_whose_log_probabilities_leave_out_the_temperature_is_refused(
    mode: str, logits: list[float], folder: Path
) -> None:
    """Those of temperature 1 are what one gives that is started without options; of equal tokens both are the same."""
    engine = VLLMEngine(folder, ServerConfig(name="vllm", device="cpu", url="http://127.0.0.1:9"))

    async def answer(body: dict[str, Any]) -> dict[str, Any]:
        scale = body["sampling_params"]["temperature"] if mode == "processed_logprobs" else 1.0
        total = math.log(sum(math.exp(logit / scale) for logit in logits))
        listed = [{"token_id": index, "logprob": logit / scale - total} for index, logit in enumerate(logits)]
        return {"choices": [{"logprobs": {"content": [{**listed[2], "top_logprobs": listed[:2]}]}}]}

    engine.client.generate_whole = answer  # type: ignore[method-assign]
    if mode == "raw_logprobs" and logits[0]:
        with pytest.raises(ConfigError, match="start it with --logprobs-mode processed_logprobs"):
            await engine._refuse_raw()
    else:
        await engine._refuse_raw()
    await engine.close()


@pytest.mark.parametrize("listed", [None, 8])
async def test_a_run_is_refused_before_it_trains_where_its_server_does_not_tell_what_tokens_were_drawn_from(
    listed: int | None, folder: Path
) -> None:
    async with fake(folder, None, sampling_mask_max_tokens=listed) as (engine, _):
        fleet = Fleet([lambda: engine], make_publisher(WeightsConfig(), folder, engine.config), FleetConfig())
        await fleet.start()
        for narrowing, needed in (({"top_p": 0.9}, engine.capabilities.vocab_size), ({"top_k": 9}, 9)):
            refusal = rf"rollout.top_\w=\S+: no token .* has to be started with --sampling-mask-max-tokens {needed},"
            for one in (engine, fleet):
                with pytest.raises(ConfigError, match=refusal):
                    require_supports(RolloutConfig.model_validate(narrowing), one)
        if listed is None:
            with pytest.raises(ConfigError, match="--sampling-mask-max-tokens 8"):
                require_supports(RolloutConfig(top_k=8), fleet)
        else:
            require_supports(RolloutConfig(top_k=8), fleet)
        require_supports(RolloutConfig(), fleet)
        await fleet.close()


async def _until(engine: SGLangEngine, running: int) -> None:
    end = time.monotonic() + 60
    while (await engine.health()).running != running:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
