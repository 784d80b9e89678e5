"""Replies as state: continued, referred to, fetched, polled and ended by their ids, each session's for itself."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import httpx
import openai
import pytest

from agentrl.sessions.gateway.replies import kept
from agentrl.sessions.gateway.replies.kept import KeptReply, Replies, ReplyStatus, RequestParameters, StoredConversation
from agentrl.sessions.tree import tree
from tests.sessions.gateway.conftest import Serve, Served
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn
from tests.sessions.gateway.programs import saw_what_is_stored

pytestmark = pytest.mark.slow
SYSTEM = {"role": "system", "content": "be kind"}
ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
CALL = assistant("let me", "hm", [("add", '{"a":  1}')])


def client(access: dict[str, str]) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=access["base_url"], api_key=access["api_key"], max_retries=0)


def one_path(served: Served, access: dict[str, str]) -> list[str]:
    """What the session's messages say, which are one path, token for token what the engine saw."""
    session = served.session(access["id"])
    assert [node.parent for node in session.nodes] == [None, *range(len(session.nodes) - 1)]
    saw_what_is_stored(served.engine, session)
    return [node.message.text for node in session.nodes]


async def test_a_system_message_inside_the_input_is_part_of_what_an_id_continues(serve: Serve) -> None:
    """It was lost from the second turn on, and what was said was rendered anew on a root of its own."""
    async with serve(ScriptedEngine(in_turn(*map(assistant, "abc")))) as served:
        access = await served.open()
        create = client(access).responses.create
        first = await create(model="m", input=[SYSTEM, {"role": "user", "content": "hi"}])
        second = await create(model="m", input="more", previous_response_id=first.id)
        await create(model="m", input=[{"role": "user", "content": "on"}], previous_response_id=second.id)
        assert one_path(served, access) == ["be kind", "hi", "a", "more", "b", "on", "c"]


async def test_instructions_are_the_requests_own_and_are_not_continued(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(*map(assistant, "abc")))) as served:
        access = await served.open()
        create = client(access).responses.create
        first = await create(model="m", instructions="one", input=[SYSTEM, {"role": "user", "content": "hi"}])
        await create(model="m", instructions="one", input="more", previous_response_id=first.id)
        await create(model="m", input="else", previous_response_id=first.id)
        texts = [node.message.text for node in served.session(access["id"]).nodes]
        assert texts == ["one", "be kind", "hi", "a", "more", "b", *("be kind", "hi", "a", "else", "c")]


async def test_a_reply_that_was_cut_is_continued_on_a_branch(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("a long story"), assistant("b")))) as served:
        access = await served.open()
        create = client(access).responses.create
        first = await create(model="m", input=[SYSTEM, {"role": "user", "content": "hi"}], max_output_tokens=4)
        assert first.status == "incomplete"
        await create(model="m", input="more", previous_response_id=first.id)
        session = served.session(access["id"])
        assert session.counters["gateway/branches/cut"] == 1
        assert [node.parent for node in session.nodes] == [None, 0, 1, 1, 3, 4]


async def test_after_a_restart_an_id_continues_its_path_all_the_same(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        first = await client(access).responses.create(model="m", input=[SYSTEM, {"role": "user", "content": "hi"}])
    async with serve() as served:
        access["base_url"] = f"{served.url}/sessions/{access['id']}/v1"
        assert await client(access).responses.retrieve(first.id) == first
        await client(access).responses.create(model="m", input="more", previous_response_id=first.id)
        assert [node.parent for node in served.session(access["id"]).nodes] == [None, 0, 1, 2, 3]


async def test_after_a_restart_conversations_go_on_and_what_was_deleted_stays_so(serve: Serve) -> None:
    """They were forgotten, and a reply that was not to be stored could be continued."""
    async with serve() as served:
        access = await served.open()
        conversations, create = client(access).conversations, client(access).responses.create
        kept = await conversations.create(metadata={"a": "b"})
        await create(model="m", input="hi", conversation=kept.id)
        await conversations.items.create(kept.id, items=[{"type": "message", "role": "user", "content": "and"}])
        gone = await conversations.create()
        await conversations.delete(gone.id)
        unseen = await create(model="m", input="unseen", store=False)
    async with serve() as served:
        access["base_url"] = f"{served.url}/sessions/{access['id']}/v1"
        conversations, create = client(access).conversations, client(access).responses.create
        assert await conversations.retrieve(kept.id) == kept
        reply = await create(model="m", input="more", conversation=kept.id)
        node = served.gateway.entries[access["id"]].state.find_turn(reply.id)
        path = tree.path(served.session(access["id"]), node.id)
        assert [one.message.text for one in path[:-1]] == ["hi", "hello", "and", "more"]
        with pytest.raises(openai.NotFoundError):
            await conversations.retrieve(gone.id)
        with pytest.raises(openai.NotFoundError):
            await create(model="m", input="more", previous_response_id=unseen.id)


async def test_a_reply_in_the_background_that_a_restart_ended_has_failed(serve: Serve) -> None:
    held = asyncio.Event()
    async with serve(ScriptedEngine(held=held)) as served:
        access = await served.open()
        begun = await client(access).responses.create(model="m", input="hi", background=True)
        assert begun.status == "in_progress"
    async with serve() as served:
        access["base_url"] = f"{served.url}/sessions/{access['id']}/v1"
        found = await client(access).responses.retrieve(begun.id)
        assert (found.status, found.error.code) == ("failed", "request_ended")


def test_what_is_kept_survives_being_packed() -> None:
    replies, asked = Replies(), RequestParameters((b"tools", b"[]"), {"tools": []}, "be kind")
    for name, status in (("a", ReplyStatus.COMPLETED), ("b", ReplyStatus.INCOMPLETE)):
        replies.keep(KeptReply(name, asked, {"id": f"resp_{name}"}, status, 3))
    replies.hide("c")
    conversation = StoredConversation("conv_a", 5, {"a": "b"}, "a", [{"type": "message"}])
    conversation.advance("b", b"[]")
    replies.add_conversation(conversation)
    packed = replies.unstored()
    assert packed is not None
    assert replies.unstored() is None
    again = Replies.unpacked(packed)
    assert again.unstored() == packed
    assert again.get("resp_a").asked is again.get("resp_b").asked
    assert again.hidden("c")
    assert again.conversation("conv_a").continued(b"[]", True) == ("a", [{"type": "message"}])


async def test_items_are_referred_to_by_their_ids_and_make_one_path(serve: Serve) -> None:
    """The AI SDK sends its history so by default."""
    async with serve(ScriptedEngine(in_turn(CALL, assistant("1"), assistant("still 1")))) as served:
        access = await served.open()
        create = client(access).responses.create
        history: list[Any] = [SYSTEM, {"role": "user", "content": "1?"}]
        for _ in range(3):
            reply = await create(model="m", input=history, tools=[ADD])
            history += [{"type": "item_reference", "id": item.id} for item in reply.output]
            calls = [item for item in reply.output if item.type == "function_call"]
            history += [{"type": "function_call_output", "call_id": item.call_id, "output": "1"} for item in calls]
            history += [] if calls else [{"role": "user", "content": "and now?"}]
        assert one_path(served, access) == ["be kind", "1?", "let me", "1", "1", "and now?", "still 1"]
        listed = await client(access).responses.input_items.list(reply.id, order="asc")
        again = [{"type": "item_reference", "id": item.id} for item in listed.data]
        await create(model="m", input=again, tools=[ADD], extra_headers={"x-stainless-retry-count": "1"})
        assert len(one_path(served, access)) == 7


@pytest.mark.parametrize(
    "item_id", ["msg_0", "fc_ffffffffffffffffffffffff0", "msg_i0p1", "msg_i0p00", "msg_i99p0", "x" * 5000, 3, None]
)
async def test_an_item_that_is_not_there_is_not_found(serve: Serve, item_id: Any) -> None:
    async with serve() as served:
        access = await served.open()
        await client(access).responses.create(model="m", input="hi")
        reference: Any = {"type": "item_reference", "id": item_id}
        with pytest.raises(openai.NotFoundError, match=r"input\[1\].id"):
            await client(access).responses.create(model="m", input=[{"role": "user", "content": "a"}, reference])


async def test_a_reply_is_fetched_as_it_was_sent_with_what_it_answers_until_it_is_deleted(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(CALL))) as served:
        access = await served.open()
        responses = client(access).responses
        sent = await responses.create(
            model="m", instructions="one", input=[SYSTEM, {"role": "user", "content": "hi"}], tools=[ADD], metadata={}
        )
        assert (await responses.retrieve(sent.id)).model_dump() == sent.model_dump()
        items = [item async for item in responses.input_items.list(sent.id, order="asc", limit=1)]
        assert [(item.role, item.content[0].text) for item in items] == [("system", "be kind"), ("user", "hi")]
        newest = await responses.input_items.list(sent.id)
        assert [item.id for item in newest.data] == [item.id for item in items[::-1]]
        await responses.delete(sent.id)
        for gone in (responses.retrieve(sent.id), responses.create(model="m", previous_response_id=sent.id, input="a")):
            with pytest.raises(openai.NotFoundError):
                await gone


async def test_what_is_not_stored_and_what_is_another_sessions_is_not_found(serve: Serve) -> None:
    async with serve() as served:
        access, other = await served.open(), await served.open()
        responses = client(access).responses
        stored = await responses.create(model="m", input="hi")
        unstored = await responses.create(model="m", input="hi", store=False)
        talk = await client(access).conversations.create()
        for who, reply in ((access, unstored), (other, stored)):
            theirs = client(who).responses
            for asked in (
                theirs.retrieve(reply.id),
                theirs.cancel(reply.id),
                theirs.create(model="m", input="more", previous_response_id=reply.id),
                theirs.create(model="m", input=[{"type": "item_reference", "id": reply.output[0].id}]),
            ):
                with pytest.raises(openai.NotFoundError):
                    await asked
        with pytest.raises(openai.NotFoundError, match="conv_"):
            await client(other).responses.create(model="m", input="hi", conversation=talk.id)
        assert not served.session(other["id"]).nodes


async def test_a_reply_in_the_background_is_polled_and_continued(serve: Serve) -> None:
    engine = ScriptedEngine(in_turn(*map(assistant, "ab")), held=asyncio.Event())
    async with serve(engine) as served:
        access = await served.open()
        responses = client(access).responses
        first = await responses.create(model="m", input="hi", background=True)
        assert (first.status, first.output) == ("in_progress", [])
        assert (await responses.retrieve(first.id)).status == "in_progress"
        with pytest.raises(openai.BadRequestError, match="in progress"):
            await responses.create(model="m", input="more", previous_response_id=first.id)
        assert engine.held is not None
        engine.held.set()
        await asyncio.gather(*served.gateway.jobs)
        whole = await responses.retrieve(first.id)
        assert (whole.status, whole.output_text, whole.background) == ("completed", "a", True)
        await responses.create(model="m", input="more", previous_response_id=first.id)
        assert one_path(served, access) == ["hi", "a", "more", "b"]


async def test_a_reply_in_the_background_is_cancelled_and_nothing_is_stored(serve: Serve) -> None:
    engine = ScriptedEngine(held=asyncio.Event())
    async with serve(engine) as served:
        access = await served.open()
        responses = client(access).responses
        first = await responses.create(model="m", input="hi", background=True)
        assert (await responses.cancel(first.id)).status == "cancelled"
        await asyncio.gather(*served.gateway.jobs)
        assert (await responses.retrieve(first.id)).status == "cancelled"
        assert (await responses.cancel(first.id)).status == "cancelled"
        assert not served.session(access["id"]).nodes
        assert served.gateway.in_flight == 0


async def test_what_fails_in_the_background_is_told_at_once_or_when_it_is_fetched(serve: Serve) -> None:
    engine = ScriptedEngine(held=asyncio.Event(), max_context=40)
    async with serve(engine) as served:
        access = await served.open()
        responses = client(access).responses
        with pytest.raises(openai.BadRequestError, match="no room for a turn"):
            await responses.create(model="m", input="hi " * 200, background=True)
        first = await responses.create(model="m", input="hi", background=True)
        async with httpx.AsyncClient(headers={"x-api-key": access["api_key"]}, timeout=60) as http:
            await http.post(f"{access['anthropic_base_url']}/close", json={})
        await asyncio.gather(*served.gateway.jobs)
        failed = served.gateway.entries[access["id"]].state.replies.get(first.id)
        assert (failed.status, failed.frame["error"]["code"]) == (ReplyStatus.FAILED, "request_ended")


async def test_a_stream_in_the_background_is_an_ordinary_stream(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        stream = await client(access).responses.create(model="m", input="hi", background=True, stream=True)
        assert [event.type async for event in stream][-1] == "response.completed"


async def test_a_conversation_is_one_path_whose_items_are_listed(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(*map(assistant, "abc")))) as served:
        access = await served.open()
        own = client(access)
        talk = await own.conversations.create(items=[SYSTEM], metadata={"a": "b"})
        ask: Any = {"model": "m", "conversation": talk.id}
        reply = await own.responses.create(input="hi", **ask)
        assert reply.conversation.id == talk.id
        again = await own.responses.create(input="hi", **ask, extra_headers={"x-stainless-retry-count": "1"})
        assert again.id == reply.id
        await own.conversations.items.create(talk.id, items=[{"role": "user", "content": "by the way"}])
        await own.responses.create(input="hi", **{**ask, "conversation": {"id": talk.id}})
        assert one_path(served, access) == ["be kind", "hi", "a", "by the way", "hi", "b"]
        listed = [item.content[0].text async for item in own.conversations.items.list(talk.id, order="asc")]
        assert listed == ["be kind", "hi", "a", "by the way", "hi", "b"]
        assert (await own.conversations.retrieve(talk.id)).metadata == {"a": "b"}
        assert (await own.conversations.update(talk.id, metadata={})).metadata == {}
        await own.conversations.delete(talk.id)
        with pytest.raises(openai.NotFoundError):
            await own.responses.create(input="hi", **ask)


async def test_a_model_is_described_by_any_name_since_any_is_served(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        assert (await client(access).models.retrieve("openai/gpt-5")).id == "openai/gpt-5"
        with pytest.raises(openai.NotFoundError):
            await client(access).models.retrieve("m" * 300)
        claude = anthropic.AsyncAnthropic(base_url=access["anthropic_base_url"], api_key=access["api_key"])
        assert (await claude.models.retrieve("claude-x")).display_name == "claude-x"


# ------------------------------------------------------------------------------------------- what is kept


def reply(number: int, text: bytes = b"", cancel: Any = None) -> KeptReply:
    return KeptReply(f"{number}", RequestParameters((text,), {}), {}, ReplyStatus.COMPLETED, number, cancel)


def test_the_latest_replies_are_kept_and_those_in_progress() -> None:
    replies = Replies()
    replies.keep(reply(0, cancel=print))
    for number in range(1, 3 * kept.MOST_REPLIES):
        replies.keep(reply(number))
        replies.hide(f"hidden {number}")
    found = [number for number in range(3 * kept.MOST_REPLIES) if replies.find(f"{number}")]
    assert found == [0, *range(3 * kept.MOST_REPLIES - kept.MOST_REPLIES // 2 + 1, 3 * kept.MOST_REPLIES)]


def test_equal_parameters_are_kept_once_and_all_together_within_a_number_of_bytes() -> None:
    replies, large = Replies(), kept.MOST_BYTES // 3
    for number in range(9):
        replies.keep(reply(number, b"a" * large))
    assert replies.get("resp_0").asked is replies.get("8").asked
    for number in range(9, 15):
        replies.keep(reply(number, b"%d" % number * (large // 2)))
    assert [number for number in range(15) if replies.find(f"{number}")] == [12, 13, 14]
    replies.keep(reply(15, b"b" * (kept.MOST_BYTES + 1)))
    assert not any(replies.find(f"{number}") for number in range(16))


def test_of_conversations_the_latest_are_kept_and_a_retry_finds_what_the_request_found() -> None:
    replies = Replies()
    made = [StoredConversation(f"conv_{number}", 0, {}) for number in range(kept.MOST_CONVERSATIONS + 1)]
    for one in made:
        replies.add_conversation(one)
    with pytest.raises(Exception, match="conv_0"):
        replies.conversation("conv_0")
    talk = replies.conversation("conv_1")
    talk.added = [1]
    assert talk.continued(b"hi", False) == (None, [1])
    talk.advance("a", b"hi")
    assert talk.continued(b"hi", False) == ("a", [])
    assert talk.continued(b"hi", True) == (None, [1])
    talk.advance("a", b"hi")
    assert talk.continued(b"hi", True) == (None, [1])
    assert talk.continued(b"on", True) == ("a", [])
