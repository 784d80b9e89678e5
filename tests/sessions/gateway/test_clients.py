"""Real clients from the package index, unchanged, each against a running gateway.

Every one talks to a engine that calls tools, and those that cope with any answer to the real local engine (a tiny
Llama with random weights: it babbles). They want other versions of the SDKs than we do, and live in environments of
their own: `.venv-clients`, made from `clients/requirements.txt`, and one for each of `clients/requirements/`. CI has
those that `clients/install.sh` makes by itself; `make clients-all` makes the others and runs these tests.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from agentrl.config import GatewayConfig, RolloutConfig
from agentrl.envs.builtin.calculator import Calculator
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.episodes.programs import serving
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.types import Message, Session, Status
from tests.sessions.gateway.conftest import Serve, Served
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer
from tests.sessions.gateway.programs import FOLDER, ROOT, causes, programs, saw_what_is_stored, script
from tests.sessions.gateway.test_trained_clients import CLIENTS

AS_RUNS = Limits(sampling="run")
"""As in training: what programs send of temperature, top-p and seeds, some the same in every session, is ignored."""
ADD = assistant("", None, [("add", '{"a": 2, "b": 3}')])
SHELL = assistant("", None, [("bash", '{"command": "echo hello"}')])
DONE = assistant("", None, [("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}')])
SUM = [ADD, assistant("5"), assistant("still 5")]

PROGRAMS = [
    ("agents_sdk.py", "chat", SUM),
    ("agents_sdk.py", "responses", SUM),
    ("litellm_client.py", "chat", SUM),
    ("litellm_client.py", "messages", SUM),
    ("langchain_client.py", "chat", SUM),
    ("langchain_client.py", "responses", SUM),
    ("langchain_client.py", "ids", SUM),
    ("mini_swe_agent.py", "chat", [SHELL, DONE]),
]
UNTRAINED = [(program, speak) for program, speak, _ in PROGRAMS if ("", program, speak) not in CLIENTS]
"""Those that no run of `test_trained_clients` plays with random tokens."""


def value(number: int) -> Message:
    return assistant("", None, [("Sum", json.dumps({"value": number}))])


def finish(answer: str) -> Message:
    return assistant("", None, [("final_answer", json.dumps({"answer": answer}))])


def fields(**said: str) -> str:
    """An answer as dspy's prompts ask for it."""
    return "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in [*said.items(), ("completed", "")])


REACT = [
    fields(next_thought="add", next_tool_name="add", next_tool_args='{"a": 2, "b": 3}'),
    fields(next_thought="done", next_tool_name="finish", next_tool_args="{}"),
    fields(reasoning="2 + 3", answer="5"),
]
CODE = ["add\n<code>\nprint(add(a=2, b=3))\n</code>", "<code>\nfinal_answer(5)\n</code>", assistant("still 5")]
CODE[2] = "<code>\nfinal_answer(6)\n</code>"

MCP = assistant("", None, [("mcp__sums__add", '{"a": 2, "b": 3}')])
EDIT = "a.txt\n```\n<<<<<<< SEARCH\none\n=======\ntwo\n>>>>>>> REPLACE\n```\n"

FRAMEWORKS = [
    ("ai_sdk", "chat", SUM, {}),
    ("ai_sdk", "responses", SUM, {}),
    ("openhands", "chat", SUM, {}),
    ("openhands", "responses", SUM, {}),
    ("strands", "chat", SUM, {}),
    ("haystack", "chat", SUM, {}),
    ("haystack", "responses", SUM, {}),
    ("mirascope", "chat", SUM, {}),
    ("mirascope", "responses", SUM, {}),
    ("claude_agent_sdk", "messages", [MCP, *SUM[1:]], {}),
    ("aider", "chat", [EDIT, "done"], {"branches/edited": 1}),  # it writes its questions anew
    ("instructor", "chat", [value(-5), value(5)], {}),
    ("instructor", "responses", [value(-5), value(5)], {"branches/edited": 1}),  # it drops the turn that was wrong
    ("pydantic_ai", "chat", SUM, {}),
    ("pydantic_ai", "responses", SUM, {}),
    ("pydantic_ai", "messages", SUM, {}),
    ("smolagents", "chat", [ADD, finish("5"), finish("still 5")], {"branches/edited": 2}),
    ("smolagents", "code", CODE, {"extended": 2}),
    ("dspy", "chat", REACT, {"branches/compacted": 1, "branches/agent": 1}),
    ("inspect_ai", "chat", SUM, {}),
    ("inspect_ai", "responses", SUM, {}),
    ("inspect_ai", "messages", SUM, {}),
    ("llama_index", "chat", SUM, {}),
    ("autogen", "chat", SUM, {}),
    ("autogen", "messages", SUM, {}),
    ("crewai", "chat", [ADD, assistant("5")], {}),
    (
        "crewai",
        "text",
        ['Thought: add\nAction: add\nAction Input: {"a": 2, "b": 3}', "Final Answer: 5"],
        {"extended": 1},
    ),
    ("google_adk", "chat", SUM, {}),
    ("google_adk", "google", SUM, {}),
    ("google_genai", "whole", SUM, {}),
    ("google_genai", "stream", SUM, {}),
]
"""Environment and program, protocol, what is said, and what is no clean continuation of it, by cause."""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    from agentrl.models import tiny as build

    text = "<|im_start|>user\nwhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n42<|im_end|>\n"
    shape = build.TinyShape(context=16_384)
    return build.build(tmp_path_factory.mktemp("models") / "tiny", [text] * 20, shape=shape)


async def run(served: Served, environment: str, program: str, speak: str, home: Path) -> tuple[int, str, Session]:
    command = script(environment, program, home)
    access = await served.open()
    async with programs(access, home) as own:
        code, out = await own.run(*command, SPEAK=speak)
    assert own.outside == [], out
    return code, out, served.session(access["id"])


@pytest.mark.slow
@pytest.mark.parametrize(("program", "speak", "words"), PROGRAMS)
async def test_a_program_with_tools_makes_one_clean_path(
    serve: Serve, tmp_path: Path, program: str, speak: str, words: list[Any]
) -> None:
    engine = ScriptedEngine(in_turn(*words), max_context=32_000)
    async with serve(engine, limits=AS_RUNS) as served:
        code, out, session = await run(served, "", program, speak, tmp_path)
        assert code == 0, out
        assert [n.parent for n in session.nodes] == [None, *range(len(session.nodes) - 1)], out
        assert sum(n.sampled for n in session.nodes) == len(engine.calls) == len(words)
        assert causes(session).keys() <= {"clean", "loose"}
        saw_what_is_stored(engine, session)


@pytest.mark.slow
def test_the_document_names_the_versions_that_are_tried() -> None:
    table = (ROOT / "docs" / "agents.md").read_text().partition("## Clients")[2]
    wanted = set[str]()
    for packages in (FOLDER / "packages").iterdir():
        pinned = json.loads(packages.read_text())["dependencies"]
        wanted |= set(pinned.values()) if packages.stem == "node" else {next(iter(pinned.values()))}
    for pins in (FOLDER / "requirements").iterdir():
        wanted.add(pins.read_text().splitlines()[0].partition("==")[2])
    for pin in ("langchain-openai", "litellm", "mini-swe-agent", "openai-agents"):
        wanted |= set(re.findall(rf"^{pin}==(\S+)", (FOLDER / "requirements.txt").read_text(), re.MULTILINE))
    told = {line.split("|")[2].strip() for line in table.splitlines() if line.startswith("| ")}
    assert told - {"version"} == wanted


@pytest.mark.slow
@pytest.mark.parametrize(("name", "speak", "words", "branches"), FRAMEWORKS)
async def test_a_framework_makes_one_clean_path_or_branches_of_the_stated_causes(
    serve: Serve, tmp_path: Path, name: str, speak: str, words: list[Any], branches: dict[str, int]
) -> None:
    engine = ScriptedEngine(in_turn(*words), max_context=100_000)
    (program,) = [file.name for file in FOLDER.glob(f"{name}_client.*")]
    async with serve(engine, limits=AS_RUNS) as served:
        code, out, session = await run(served, name, program, speak, tmp_path)
        assert code == 0, out
        saw_what_is_stored(engine, session)
        assert sum(n.sampled for n in session.nodes) == len(engine.calls) == len(words), out
        counted = causes(session)
        assert {cause: number for cause, number in counted.items() if cause not in ("clean", "loose")} == branches
        assert counted.get("clean", 0) == len(words) - 1 - sum(branches.values())


@pytest.mark.slow
@pytest.mark.parametrize(("program", "speak"), UNTRAINED)
async def test_a_program_handles_a_model_of_random_tokens_and_its_turns_are_stored_as_sampled(
    serve: Serve, tmp_path: Path, tiny: Path, program: str, speak: str
) -> None:
    async with local(serve, tiny) as served:
        code, out, session = await run(served, "", program, speak, tmp_path)
        # Its tools are strict, so what a random model calls is a valid call, in every turn.
        assert code == 0 or "MaxTurnsExceeded" in out, out
        assert any(n.sampled for n in session.nodes)
        await was_drawn_by_the_engine(served, session)


def local(serve: Serve, tiny: Path) -> Any:
    from agentrl.config import EngineConfig
    from agentrl.rollout.engines.local.engine import LocalEngine
    from agentrl.sessions.renderers import get_renderer

    return serve(LocalEngine(tiny, EngineConfig(max_batch=8)), get_renderer(tiny), limits=AS_RUNS)


async def was_drawn_by_the_engine(served: Served, session: Session) -> None:
    """The engine, asked again, gives every trained token the log-probability that is stored.

    Those drawn under a grammar (of strict tools) have theirs within recorded sets, which `test_call_grammars` compares.
    """
    trained = sum(sum(n.trainable) for n in session.nodes if n.sampled and not n.sampling.full_support)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "program", "speak"),
    [
        ("ai_sdk", "ai_sdk_client.mjs", "responses"),
        ("", "langchain_client.py", "responses"),
        ("openhands", "openhands_client.py", "responses"),
        ("own", "tool_runner_client.py", "messages"),
    ],
)
async def test_a_runs_own_gateway_plays_a_program_and_all_of_its_turns_can_be_trained(
    tmp_path: Path, environment: str, program: str, speak: str
) -> None:
    """They send temperature 0, top-p and the same seed in every session: a run samples as it is set all the same."""
    command = shlex.join(map(str, script(environment, program, tmp_path)))
    quiet = "OPENHANDS_SUPPRESS_BANNER=1 LITELLM_LOCAL_MODEL_COST_MAP=True"
    file = tmp_path / "agent.sh"
    file.write_text(f"cd {tmp_path}; export HOME={tmp_path} SPEAK={speak} {quiet}; exec {command}\n")
    engine, env = ScriptedEngine(in_turn(*SUM), max_context=100_000), Calculator()
    session = Session("a", next(iter(env.tasks())))
    training = RolloutConfig(session_tokens=100_000)
    with Store(":memory:") as store:
        policy = Policy(renderer(), engine)
        async with serving(f"bash {file}", policy, store, training, GatewayConfig()) as served:
            await served.play(env, session, training)
    assert (session.status, session.error) == (Status.COMPLETED, None)
    turns = [node for node in session.nodes if node.sampled]
    assert len(turns) == len(engine.calls) == len(SUM)
    assert all(any(node.trainable) for node in turns)
    assert [node.parent for node in session.nodes] == [None, *range(len(session.nodes) - 1)]
    assert {call.sampling.temperature for call in engine.calls} == {training.temperature}
