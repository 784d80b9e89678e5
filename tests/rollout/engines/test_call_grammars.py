"""Tool calls under a grammar: whatever a model draws, its calls fit the tools' schemas, and all of it is trained."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import pytest

from agentrl.attachments import support
from agentrl.config import GatewayConfig, RolloutConfig
from agentrl.errors import InvalidInput, RenderError
from agentrl.models import tiny
from agentrl.models.tokenizers import load_tokenizer
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.workers.gateways import own_gateway
from agentrl.sessions.renderers import get_renderer
from agentrl.sessions.renderers.base import parse
from agentrl.sessions.renderers.call_grammar import call_grammar
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Sampling, Session, Status, Task
from benchmarks.fidelity import agreement, random_sessions
from tests.conftest import need
from tests.rollout.engines.conftest import TEXTS
from tests.rollout.engines.test_support import BOUND
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.conftest import serve as serve  # a fixture
from tests.sessions.gateway.test_chat import client

PLACE = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
NOTE = {
    "type": "object",
    "properties": {"text": {"type": "string", "pattern": "^[a-f]{1,4}$"}},
    "required": ["text"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in (("go", PLACE), ("go_note", NOTE))
]


@pytest.fixture(autouse=True)
def library() -> None:
    need(importlib.util.find_spec("llguidance") is not None, "llguidance, of the extra grammars")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = tiny.TinyShape(vocab=288, context=2048)  # tools take 700 tokens, a byte each
    return tiny.build(tmp_path_factory.mktemp("models") / "tiny", TEXTS, shape=shape)


def check_call(name: str, arguments: str) -> None:
    """By Python's JSON: the tool is on offer, and its arguments fit."""
    found = json.loads(arguments)
    if name == "go":
        assert found in ({"x": 1}, {"x": 2})
    else:
        assert name == "go_note"
        assert set(found) == {"text"}
        assert 1 <= len(found["text"]) <= 4
        assert set(found["text"]) <= set("abcdef")


@pytest.mark.slow
async def test_each_call_fits_its_tools_schema_and_each_token_has_the_log_probability_that_the_trainer_computes(
    engine: LocalEngine, folder: Path
) -> None:
    renderer = get_renderer(folder)
    tag, end = (load_tokenizer(folder).special(mark) for mark in ("<tool_call>", "<|im_end|>"))
    generator = TurnGenerator(renderer, engine, strict_calls=True)
    calls, sessions = 0, []
    for number in range(8):
        session = Session(f"s{number}", Task(id="t"))
        conversation = Conversation(session, generator, tools=TOOLS)
        conversation.add("?")
        own = Sampling(max_new_tokens=90, logit_bias=((tag, 6.0), (end, 4.0)), top_p=0.95 if number % 2 else 1.0)
        node = await conversation.generate(own, time.monotonic() + 60, seed=number)
        assert all(node.trainable[node.versions[0].start :])
        for call in node.message.tool_calls or ():
            if node.stopped_by == end:
                assert call.error is None
                check_call(call.function.name, call.function.arguments)
                calls += 1
        sessions.append(session)
    assert calls > 5
    assert agreement(TorchTrainer(folder), sessions).max <= BOUND
    stored = sessions[0].nodes[-1]
    assert support.unpack(stored.attachments[support.NAME]).rule.startswith("agentrl-1+llguidance-")


async def check_servers_calls(server: Any, folder: Path) -> None:
    """The same of a server, whose library is the same and whose turns are trained by what it or our matcher says."""
    renderer = get_renderer(folder)
    tag, end = (load_tokenizer(folder).special(mark) for mark in ("<tool_call>", "<|im_end|>"))
    narrowed = {"logit_bias": ((tag, 6.0), (end, 4.0)), "stop_token_ids": (end,), "lark": call_grammar(renderer, TOOLS)}
    sessions = await random_sessions(server, 8, turns=1, new=70, narrowings=(narrowed,))
    calls = 0
    for node in (node for session in sessions for node in session.nodes if node.sampled):
        assert all(node.trainable)
        if node.token_ids[-1] == end:
            for call in parse(renderer, node.token_ids, TOOLS).message.tool_calls or ():
                assert call.error is None
                check_call(call.function.name, call.function.arguments)
                calls += 1
    assert calls > 1
    assert agreement(TorchTrainer(folder), sessions).max <= BOUND


@pytest.mark.slow
async def test_a_clients_strict_tools_and_forced_calls_are_drawn_under_the_grammar(
    engine: LocalEngine, folder: Path, serve: Serve
) -> None:
    strict = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "?"}], "max_tokens": 60}
    async with serve(engine, get_renderer(folder)) as served:
        access = await served.open()
        api = client(access)
        for seed, choice in enumerate(("required", {"type": "function", "function": {"name": "go_note"}})):
            reply = await api.chat.completions.create(
                **asked, tools=strict, tool_choice=choice, seed=seed, parallel_tool_calls=False
            )
            message = reply.choices[0].message
            assert len(message.tool_calls or ()) == 1
            for call in message.tool_calls:
                check_call(call.function.name, call.function.arguments)
            if seed:
                assert {call.function.name for call in message.tool_calls} == {"go_note"}
        await api.chat.completions.create(**asked, tools=TOOLS)
        drawn = [node for node in served.session(access["id"]).nodes if node.sampled]
        assert [node.sampling.lark is None for node in drawn] == [False, False, True]
        assert all(all(node.trainable[node.versions[0].start :]) for node in drawn)
        assert "gateway/ignored/tools.strict" not in served.session(access["id"]).counters
    async with serve() as served:
        access = await served.open()
        await client(access).chat.completions.create(**asked, tools=strict)
        assert served.session(access["id"]).counters["gateway/ignored/tools.strict"] == 1


@pytest.mark.slow
async def test_a_runs_strict_calls_reach_the_requests_of_its_programs(engine: LocalEngine, folder: Path) -> None:
    """They stopped at the gateway: a program's calls were drawn as if the setting were off, and nothing said so."""
    renderer, session = get_renderer(folder), Session("s", Task(id="t"))
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "?"}], "max_tokens": 60}
    format_ = {"type": "json_schema", "json_schema": {"name": "n", "schema": PLACE}}
    with Store(":memory:") as store:
        limits, where = RolloutConfig(strict_calls=True), GatewayConfig()
        async with (
            own_gateway(Policy(renderer, engine), store, limits, where) as gateway,
            gateway.opened(session, Sampling(), None) as opened,
        ):
            access = {"base_url": opened.address.base_url, "api_key": opened.address.api_key}
            completions = client(access).chat.completions
            reply = await completions.create(**asked, tools=TOOLS, tool_choice="required", seed=1)
            for call in reply.choices[0].message.tool_calls or ():
                check_call(call.function.name, call.function.arguments)
            await completions.create(**asked, tools=TOOLS, response_format=format_)
            await completions.create(**asked)
            await completions.create(**asked, tools=TOOLS, extra_body={"structured_outputs": {"regex": "a+"}})
            await opened.finish(Status.COMPLETED, None)
    drawn = [node for node in session.nodes if node.sampled]
    assert [node.sampling.lark is not None for node in drawn] == [True, True, False, False]
    assert session.counters["gateway/ignored/strict_calls"] == 1, "the request with a grammar of its own"


@pytest.mark.slow
def test_tags_that_are_text_begin_a_call_wherever_they_are_written(smollm: Path) -> None:
    from agentrl.rollout.engines.grammars import Grammars

    tokenizer, renderer = load_tokenizer(smollm), get_renderer(smollm)
    grammars, end = Grammars(tokenizer, tokenizer.vocab_size), tokenizer.special("<|im_end|>")
    call = '<tool_call>\n{"name": "go", "arguments": {"x": 1}}\n</tool_call>'

    def fits(text: str, form: str | None = None) -> bool:
        lark = call_grammar(renderer, TOOLS, form=form)
        matcher = grammars.matcher(Sampling(lark=lark, stop_token_ids=(end,)), ())
        return all(map(matcher.accept, (*tokenizer.encode(text), end)))

    assert fits("")
    assert fits("a < b, so\n" + call)
    assert fits(f"{call}\n{call}")
    assert parse(renderer, tokenizer.encode(f"{call}\n{call}"), TOOLS).message.tool_calls
    assert not fits(call.replace("go", "stay"))
    assert not fits(call.replace("1}", "3}"))
    assert not fits("see <tool_call> here")
    assert not fits(call + " and more")
    answer = json.dumps(PLACE)
    assert fits('{"x": 2}', answer)
    assert fits(call, answer)
    assert not fits("well", answer)


async def test_formats_without_such_a_grammar_and_servers_say_so(engine: LocalEngine, folder: Path) -> None:
    from agentrl.sessions.renderers.families.null import NullRenderer

    with pytest.raises(RenderError, match="no grammar of tool calls"):
        call_grammar(NullRenderer(), TOOLS)
    with pytest.raises(InvalidInput, match=r"sampling\.lark is no grammar"):
        async for _ in engine.generate("s/0", (5, 6), Sampling(lark="start: <[7")):
            pass
