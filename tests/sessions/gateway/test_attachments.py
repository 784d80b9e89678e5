"""Attachments through the gateway: each turn brings what its path does not have yet, whoever asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.attachments import routed_experts
from agentrl.sessions.tree import tree
from tests.sessions.fakes import fake_experts
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn
from tests.sessions.gateway.test_chat import client


@pytest.mark.slow
async def test_turns_branches_and_choices_record_each_token_of_their_path_once(serve: Serve) -> None:
    engine = ScriptedEngine(
        in_turn(
            assistant("one"),
            assistant("two"),
            assistant("three"),
            assistant("four"),
            assistant("five"),
        ),
        experts=True,
    )
    async with serve(engine) as served:
        access = await served.open()
        chat = client(access).chat.completions
        history: Any = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
        first = (await chat.create(model="m", messages=history)).choices[0].message
        longer = [*history, first, {"role": "user", "content": "and then?"}]
        await chat.create(model="m", messages=longer)
        other = [*history, first, {"role": "user", "content": "what else?"}]
        await chat.create(model="m", messages=other, n=2)
        session = served.session(access["id"])
        sampled = [node for node in session.nodes if node.sampled]
        assert len(sampled) == 4
        record = [tree.find_unrecorded(session, node.parent, [routed_experts.NAME]) for node in sampled]
        start = [dict(each)[routed_experts.NAME] for each in record]
        assert start[0] == 0
        assert start[1] == start[2] == start[3] == len(tree.path_ids(session, sampled[0].id)) - 1
        for node, asked in zip(sampled, record, strict=True):
            assert node.attachments == fake_experts(tree.path_ids(session, node.id), asked)
        tree.check(session)


@pytest.mark.slow
async def test_an_engine_that_records_nothing_gets_no_request_to_record(serve: Serve) -> None:
    engine = ScriptedEngine()
    async with serve(engine) as served:
        access = await served.open()
        await client(access).chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert [call.sampling.record for call in engine.calls] == [()]
        assert [node.attachments for node in served.session(access["id"]).nodes] == [{}, {}]
