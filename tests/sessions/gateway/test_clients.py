"""Real clients from the package index, unchanged, each against a running gateway.

Every one talks to the real local engine (a tiny Llama with random weights: it babbles, and the clients must
cope), and to a talker that calls tools. Clients that want other versions of the SDKs than we do live in an
environment of their own, `.venv-clients`, made from `clients/requirements.txt`.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from agentrl.sessions import tree
from agentrl.types import Session
from tests.conftest import need
from tests.sessions.gateway.conftest import Serve, Served
from tests.sessions.gateway.fakes import Talker, in_turn, say

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
FOLDER = Path(__file__).parent / "clients"
ADD = say("", None, [("add", '{"a": 2, "b": 3}')])
SHELL = say("", None, [("bash", '{"command": "echo hello"}')])
DONE = say("", None, [("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}')])

PROGRAMS = [
    ("agents_sdk.py", "chat", [ADD, say("5"), say("still 5")]),
    ("agents_sdk.py", "responses", [ADD, say("5"), say("still 5")]),
    ("litellm_client.py", "chat", [ADD, say("5"), say("still 5")]),
    ("litellm_client.py", "messages", [ADD, say("5"), say("still 5")]),
    ("langchain_client.py", "chat", [ADD, say("5"), say("still 5")]),
    ("mini_swe_agent.py", "chat", [SHELL, DONE]),
]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    from agentrl.models import tiny as build

    text = "<|im_start|>user\nwhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n42<|im_end|>\n"
    shape = build.TinyShape(context=16_384)
    return build.build(tmp_path_factory.mktemp("models") / "tiny", [text] * 20, shape=shape)


async def run(served: Served, program: str, speak: str, home: Path) -> tuple[int, str, Session]:
    access = await served.open()
    env = {
        **{name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")},
        "HOME": str(home),
        "OPENAI_BASE_URL": access["base_url"],
        "OPENAI_API_KEY": access["api_key"],
        "ANTHROPIC_BASE_URL": access["anthropic_base_url"],
        "ANTHROPIC_API_KEY": access["api_key"],
        "SPEAK": speak,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_SILENT_STARTUP": "1",
    }
    process = await asyncio.create_subprocess_exec(
        PYTHON, str(FOLDER / program), env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(120):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode or 0, out.decode(), served.session(access["id"])


@pytest.mark.slow
@pytest.mark.parametrize(("program", "speak", "words"), PROGRAMS)
async def test_a_program_with_tools_makes_one_clean_path(
    serve: Serve, tmp_path: Path, program: str, speak: str, words: list[Any]
) -> None:
    need(PYTHON.exists(), "clients' environment .venv-clients (make clients)")
    talker = Talker(in_turn(*words), max_context=32_000)
    async with serve(talker) as served:
        code, out, session = await run(served, program, speak, tmp_path)
        assert code == 0, out
        assert [n.parent for n in session.nodes] == [None, *range(len(session.nodes) - 1)], out
        assert sum(n.sampled for n in session.nodes) == len(talker.calls) == len(words)
        counted = {name for name in session.counters if not name.startswith("gateway/ignored/")}
        assert counted <= {"gateway/clean", "gateway/loose"}
        saw_what_is_stored(talker, session)


def saw_what_is_stored(talker: Talker, session: Session) -> None:
    drawn = [[*call.input_ids, *call.turn.token_ids] for call in talker.calls if call.turn]
    assert sorted(drawn) == sorted(tree.path_ids(session, n.id) for n in session.nodes if n.sampled)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "speak", "words"), PROGRAMS)
async def test_a_program_copes_with_a_babbling_model_and_its_turns_are_stored_as_drawn(
    serve: Serve, tmp_path: Path, tiny: Path, program: str, speak: str, words: list[Any]
) -> None:
    need(PYTHON.exists(), "clients' environment .venv-clients (make clients)")
    async with local(serve, tiny) as served:
        code, out, session = await run(served, program, speak, tmp_path)
        assert code == 0, out
        assert any(n.sampled for n in session.nodes)
        await was_drawn_by_the_engine(served, session)


def local(serve: Serve, tiny: Path) -> Any:
    from agentrl.config import EngineConfig
    from agentrl.rollout.engines.local import LocalEngine
    from agentrl.sessions.renderers import get_renderer

    return serve(LocalEngine(tiny, EngineConfig(max_batch=8)), get_renderer(tiny))


async def was_drawn_by_the_engine(served: Served, session: Session) -> None:
    """The engine, asked again, gives every trained token the log-probability that is stored."""
    trained = 0
    for node in session.nodes:
        if node.sampled and node.sampling.full_support:
            scores = await served.engine.score(tree.path_ids(session, node.id), node.sampling.temperature)
            pairs = zip(scores[-len(node.token_ids) :], node.logprobs, node.trainable, strict=True)
            for scored, stored, trains in pairs:
                assert not trains or stored == pytest.approx(scored, abs=1e-3)
                trained += trains
    assert trained > 0
    assert not any(any(n.trainable) for n in session.nodes if not n.sampled)


ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2000}


@pytest.mark.slow
async def test_openais_own_clients_on_the_real_engine(serve: Serve, tiny: Path) -> None:
    async with local(serve, tiny) as served:
        access = await served.open()
        given: Any = {"base_url": access["base_url"], "api_key": access["api_key"]}

        def blocking() -> str | None:
            with openai.OpenAI(**given) as client:
                return client.chat.completions.create(**ASK).choices[0].message.content

        first = await asyncio.to_thread(blocking)
        async with openai.AsyncOpenAI(**given) as client:
            history = [*ASK["messages"], {"role": "assistant", "content": first}, {"role": "user", "content": "?"}]
            async with client.chat.completions.stream(**{**ASK, "messages": history}) as stream:
                final = await stream.get_final_completion()
            assert final.choices[0].finish_reason in ("stop", "length")
            await client.responses.create(model="m", input="hi", max_output_tokens=2000)
            async with client.responses.stream(model="m", input="you", max_output_tokens=2000) as stream:
                assert (await stream.get_final_response()).status in ("completed", "incomplete")
        await was_drawn_by_the_engine(served, served.session(access["id"]))


@pytest.mark.slow
async def test_anthropics_own_client_on_the_real_engine(serve: Serve, tiny: Path) -> None:
    async with local(serve, tiny) as served:
        access = await served.open()
        given: Any = {"base_url": access["anthropic_base_url"], "api_key": access["api_key"]}
        async with anthropic.AsyncAnthropic(**given) as client:
            whole = await client.messages.create(**ASK)
            async with client.messages.stream(**{**ASK, "system": "be"}) as stream:
                final = await stream.get_final_message()
        assert {whole.stop_reason, final.stop_reason} <= {"end_turn", "max_tokens"}
        await was_drawn_by_the_engine(served, served.session(access["id"]))
