"""In a run the run's sampling decides: a client's is ignored, counted and named, and what its request means is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

import agentrl
from agentrl.config import EvalConfig, GatewayConfig, RolloutConfig
from agentrl.envs.builtin.calculator import Calculator
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.episodes.programs import serving
from agentrl.rollout.stream.health import sampling_notes
from agentrl.rollout.workers.held import sampled_tokens
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.store.store import Store
from agentrl.types import Sampling, Session
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer
from tests.sessions.gateway.test_chat import HI, client
from tests.sessions.gateway.test_fields import SPOKEN, ignored, post
from tests.sessions.gateway.test_other_protocols import claude
from tests.sessions.gateway.test_retries import LETTERS, RETRY, texts

RUNS = Limits(sampling="run", temperature=0.7)
WANTED = {
    **{"temperature": 0, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "seed": 7, "logit_bias": {"5": 3}},
    **{"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", SPOKEN)
async def test_a_clients_sampling_is_ignored_counted_and_named_in_every_protocol(
    serve: Serve, path: str, stream: bool
) -> None:
    async with serve(limits=RUNS) as served:
        access = await served.open()
        plain = {**SPOKEN[path], "stream": stream}
        reply = await post(f"{access['base_url']}/{path}", access["api_key"], {**plain, **WANTED})
        assert reply.status_code == 200, reply.text
        assert ignored(reply) == set(WANTED)
        await post(f"{access['base_url']}/{path}", access["api_key"], plain)
        session, (wanting, silent) = served.session(access["id"]), [call.sampling for call in served.engine.calls]
    assert (wanting.temperature, wanting.top_p) == (silent.temperature, silent.top_p) == (0.7, 1.0)
    assert wanting.seed != 7
    for name in ("top_k", "min_p", "logit_bias", "presence_penalty", "frequency_penalty"):
        assert getattr(wanting, name) == getattr(Sampling(), name)
    counted = {name: n for name, n in session.counters.items() if name.startswith("gateway/ignored/")}
    assert counted == {f"gateway/ignored/{name}": 1 for name in WANTED}


@pytest.mark.slow
async def test_the_sdks_clients_get_turns_that_are_trained_whatever_sampling_they_ask_for(serve: Serve) -> None:
    async with serve(limits=Limits(sampling="run")) as served:
        access = await served.open()
        await client(access).chat.completions.create(model="m", messages=HI, temperature=0, top_p=0.5, seed=7)
        await client(access).responses.create(model="m", input="hi", temperature=0, top_p=0.5)
        await client(access).completions.create(model="m", prompt="hi", temperature=0, presence_penalty=1)
        await claude(access).messages.create(
            model="m", messages=HI, max_tokens=9, extra_body={"top_k": 1, "top_p": 0.5}
        )
        turns = [node for node in served.session(access["id"]).nodes if node.sampled]
    assert len(turns) == 4
    assert all(any(turn.trainable) for turn in turns)


@pytest.mark.slow
async def test_what_a_request_means_is_kept(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("one STOP two"), *LETTERS)), limits=RUNS) as served:
        access = await served.open()
        chat = client(access).chat.completions
        reply = await chat.create(model="m", messages=HI, stop="STOP", max_tokens=50, n=2, seed=7)
        assert texts([reply]) == ["one "]
        assert len(reply.choices) == 2
        assert {call.sampling.max_new_tokens for call in served.engine.calls} == {50}
        assert len({call.sampling.seed for call in served.engine.calls}) == 2


@pytest.mark.slow
async def test_a_value_that_the_run_has_as_well_is_not_told(serve: Serve) -> None:
    async with serve(limits=RUNS) as served:
        access = await served.open()
        same = {"temperature": 0.7, "top_p": 1, "presence_penalty": 0, "logit_bias": {}, "seed": None}
        reply = await post(
            f"{access['base_url']}/chat/completions", access["api_key"], {**SPOKEN["chat/completions"], **same}
        )
        assert (reply.status_code, "x-agentrl-ignored" in reply.headers) == (200, False)
        assert served.session(access["id"]).counters == {}


async def test_fields_of_other_servers_are_still_refused_where_fields_are_strict(serve: Serve) -> None:
    async with serve(limits=Limits(sampling="run", strict_fields=True)) as served:
        access = await served.open()
        chat = client(access).chat.completions
        await chat.create(model="m", messages=HI, seed=7)
        with pytest.raises(openai.BadRequestError, match="unknown parameter 'min_p'"):
            await chat.create(model="m", messages=HI, extra_body={"min_p": 0.1})


@pytest.mark.slow
async def test_an_ignored_seed_makes_no_request_the_retry_of_another(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(*LETTERS)), limits=RUNS, retry_detection="marked") as served:
        chat = client(await served.open()).chat.completions
        assert texts([await chat.create(model="m", messages=HI, seed=7) for _ in range(3)]) == ["a", "b", "c"]
        assert texts([await chat.create(model="m", messages=HI, seed=7, extra_headers=RETRY)]) == ["c"]
    assert len({call.sampling.seed for call in served.engine.calls}) == len(served.engine.calls) == 3


@pytest.mark.slow
@pytest.mark.parametrize("decides", ["run", "mixed", "client"])
async def test_sessions_that_send_the_same_seed_differ_unless_the_seed_is_taken_as_it_is(
    serve: Serve, decides: Any
) -> None:
    async with serve(limits=Limits(sampling=decides)) as served:
        for sample in range(3):
            access = await served.open(group="g", sample=sample, seed=3)
            await client(access).chat.completions.create(model="m", messages=HI, seed=7)
    seeds = {call.sampling.seed for call in served.engine.calls}
    assert seeds == {7} if decides == "client" else len(seeds) == 3


async def test_a_mixed_seed_is_the_same_draw_when_it_is_sent_again(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(*LETTERS)), limits=Limits(sampling="mixed")) as served:
        chat = client(await served.open()).chat.completions
        replies = [await chat.create(model="m", messages=HI, seed=seed, n=2) for seed in (7, 7, 8)]
        assert [[c.message.content for c in reply.choices] for reply in replies] == [["a", "b"], ["a", "b"], ["c", "d"]]


@pytest.mark.filterwarnings("ignore:turns sampled with:UserWarning")
async def test_a_turn_under_a_schema_is_kept_to_it_counted_and_told(serve: Serve) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    async with serve(ScriptedEngine(json_schema=True), limits=RUNS) as served:
        access = await served.open()
        await client(access).chat.completions.create(model="m", messages=HI, response_format=form)
        session = served.session(access["id"])
    assert served.engine.calls[0].sampling.json_schema is not None
    assert not any(session.nodes[-1].trainable)
    assert session.counters == {"untrainable/grammar": sampled_tokens(session.nodes[-1])}
    assert ["schema" in note for note in sampling_notes([session], trained=True)] == [True]
    assert sampling_notes([session], trained=False) == []


AGENT = """
import random


async def agent(task, client):
    chat = client.chat.completions
    messages = [{"role": "user", "content": "count"}]
    for _ in range(2):
        await chat.create(
            model="m", messages=messages, seed=7, temperature=0, top_p=0.95, presence_penalty=1, frequency_penalty=1
        )
    root = str(client.base_url).removesuffix("v1/")
    await client.post(f"{root}reward", body={"value": random.random()}, cast_to=object)
"""


@pytest.fixture
def agent(tmp_path: Path) -> str:
    file = tmp_path / "agent.py"
    file.write_text(AGENT)
    return f"{file}:agent"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:turns sampled with:UserWarning")
@pytest.mark.parametrize("decides", ["run", "client"])
async def test_a_program_has_the_sampling_of_training_in_training_and_of_evaluations_in_those(
    agent: str, decides: Any
) -> None:
    """One gateway serves both; evaluations had the temperature of training."""
    training = RolloutConfig(temperature=0.8, turn_tokens=30)
    held_out = EvalConfig(temperature=0.3, top_p=0.6, turn_tokens=20).limits(training)
    engine, task = ScriptedEngine(), next(iter(Calculator().tasks()))
    with Store(":memory:") as store:
        async with serving(
            agent, Policy(renderer(), engine), store, training, GatewayConfig(sampling=decides)
        ) as program:
            for name, limits in (("a", training), ("b", held_out)):
                await program.play(Calculator(), Session(name, task), limits)
    sampled = [(c.sampling.temperature, c.sampling.top_p, c.sampling.max_new_tokens) for c in engine.calls]
    if decides == "run":
        assert sampled == [(0.8, 1.0, 30)] * 2 + [(0.3, 0.6, 20)] * 2
    else:
        assert set(sampled) == {(0, 0.95, 30), (0, 0.95, 20)}


@pytest.mark.slow
def test_a_run_trains_on_a_program_that_sends_a_seed_and_greedy_sampling(
    agent: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """All sessions of a group had the same tokens, and none of them was trained on; the exit code was 0."""
    small = {
        "warm_start.steps": 0,
        "rollout.groups_per_step": 2,
        "rollout.group_size": 3,
        "rollout.turn_tokens": 8,
        "eval.tasks": 1,
    }
    run = tmp_path / "run"
    result = agentrl.train("calculator", agent=agent, model="tiny", steps=2, run_dir=str(run), **small)
    fields = ("seed", "temperature", "top_p", "presence_penalty", "frequency_penalty")
    for row in result.metrics:
        assert [row[f"count/gateway/ignored/{field}"] for field in fields] == [12.0] * 5
        assert "count/untrainable/sampling" not in row
        assert row["tokens/trained"] > 0
    with Store(run / "sessions.db", read_only=True) as store:
        turns = [[n for n in s.nodes if n.sampled] for s in store.sessions(phase="train")]
    assert all(any(node.trainable) for nodes in turns for node in nodes)
    tokens = [tuple(node.token_ids) for nodes in turns for node in nodes]
    assert len(set(tokens)) > 0.9 * len(tokens)
    said = capfd.readouterr().out
    assert [said.count(f"sends {field!r}, which is ignored") for field in fields] == [1] * 5
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["count/gateway/ignored/seed"] == 12.0
