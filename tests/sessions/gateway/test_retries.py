"""The same request again: a retry gets the stored reply, everything else is another sample."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import httpx
import openai
import orjson
import pytest

from agentrl.sessions.gateway.exchange import Exchange
from agentrl.sessions.gateway.limits import Limits
from agentrl.train.algorithms import ALGORITHMS
from agentrl.types import Group, Session, Status
from tests.sessions.gateway.conftest import Serve, Served
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn
from tests.sessions.gateway.inside import exchange, turn_request
from tests.sessions.gateway.test_chat import HI, client

RETRY = {"x-stainless-retry-count": "1"}
LETTERS = [assistant(letter) for letter in "abcdefg"]


def texts(replies: Any) -> list[str | None]:
    return [reply.choices[0].message.content for reply in replies]


@pytest.mark.slow
async def test_samples_requested_one_by_one_are_independent(serve: Serve) -> None:
    """dspy.LM(n=3) asks three times; it used to get three copies of one sample."""
    async with serve(ScriptedEngine(in_turn(*LETTERS))) as served:
        access = await served.open()
        chat = client(access).chat.completions
        replies = [await chat.create(model="m", messages=HI) for _ in range(3)]
        assert texts(replies) == ["a", "b", "c"]
        async with httpx.AsyncClient(
            timeout=60
        ) as plain:  # without any header of an SDK, each time on a connection of its own
            for letter in "de":
                answer = await plain.post(
                    f"{access['base_url']}/chat/completions",
                    json={"model": "m", "messages": HI},
                    headers={"authorization": f"Bearer {access['api_key']}", "connection": "close"},
                )
                assert answer.json()["choices"][0]["message"]["content"] == letter
        session = served.session(access["id"])
        assert [n.parent for n in session.nodes] == [None, 0, 0, 0, 0, 0]
        assert len({n.sampling.seed for n in session.nodes if n.sampled}) == 5
        assert session.counters == {"gateway/branches/resampled": 4}


@pytest.mark.slow
async def test_a_request_that_says_it_is_a_retry_gets_the_newest_stored_reply(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(*LETTERS)), retry_detection="marked") as served:
        access = await served.open()
        chat = client(access).chat.completions
        first, second = [await chat.create(model="m", messages=HI) for _ in range(2)]
        third = await chat.create(model="m", messages=HI, extra_headers=RETRY)
        assert texts([first, second, third]) == ["a", "b", "b"]
        assert third.id == second.id
        assert served.session(access["id"]).counters == {"gateway/branches/resampled": 1, "gateway/retries": 1}


@pytest.mark.slow
async def test_requests_of_one_key_are_one_request_and_those_of_two_are_two_samples(serve: Serve) -> None:
    """Programs that try again with the key of their first try had each reply stored as another sample."""
    released = asyncio.Event()
    released.set()
    async with serve(ScriptedEngine(in_turn(*LETTERS), held=released)) as served:
        access = await served.open()
        chat = client(access).chat.completions

        async def asked(key: str, said: Any = HI) -> str | None:
            reply = await chat.create(model="m", messages=said, extra_headers={"Idempotency-Key": key})
            return texts([reply])[0]

        assert [await asked(key) for key in ("one", "two", "one", "two", "one")] == ["a", "b", "a", "b", "a"]
        other: Any = [{"role": "user", "content": "ho"}]
        assert await asked("one", other) == "c", "another request is no retry, whatever its key"
        released.clear()
        first, beside = asyncio.create_task(asked("three")), asyncio.create_task(asked("four"))
        await until_running(served, 2)
        again = asyncio.create_task(asked("three"))
        with pytest.raises(openai.APIStatusError, match="the request repeated"):
            await first
        released.set()
        assert len({await beside, await again}) == 2
        assert sum(node.sampled for node in served.session(access["id"]).nodes) == 5


@pytest.mark.slow
async def test_the_same_seed_is_the_same_draw(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(*LETTERS))) as served:
        access = await served.open()
        chat = client(access).chat.completions
        assert texts([await chat.create(model="m", messages=HI, seed=4) for _ in range(2)]) == ["a", "a"]
        assert len(served.engine.calls) == 1


@pytest.mark.slow
async def test_where_it_is_so_set_every_identical_request_is_a_retry(serve: Serve) -> None:
    released = asyncio.Event()
    async with serve(ScriptedEngine(in_turn(*LETTERS), held=released), retry_detection="all") as served:
        access = await served.open()
        chat = client(access).chat.completions
        asked = [asyncio.create_task(chat.create(model="m", messages=HI)) for _ in range(2)]
        await until_running(served, 2)
        released.set()
        replies = await asyncio.gather(*asked)
        assert sorted(filter(None, texts(replies))) == ["a", "b"]  # side by side they are drawn apart
        (again,) = texts([await chat.create(model="m", messages=HI)])
        assert again in ("a", "b")
        assert served.session(access["id"]).counters == {"gateway/branches/resampled": 1, "gateway/retries": 1}
        assert len(served.engine.calls) == 2


@pytest.mark.slow
async def test_a_retry_after_a_failure_beside_other_samples_is_a_sample_of_its_own(serve: Serve) -> None:
    from agentrl.errors import EngineError

    async with serve(ScriptedEngine(in_turn(*LETTERS))) as served:
        access = await served.open()
        chat = client(access).chat.completions
        served.engine.fail = EngineError("for a moment")
        with pytest.raises(Exception, match="for a moment"):
            await chat.create(model="m", messages=HI)
        served.engine.fail = None
        other = await chat.create(model="m", messages=HI)
        retried = await chat.create(model="m", messages=HI, extra_headers=RETRY)
        assert texts([other, retried]) == ["a", "b"]


def _reset_unread(access: dict[str, str], body: dict[str, Any]) -> None:
    """Ask, wait until the whole reply is there, and reset the connection without having read it."""
    host, port = access["base_url"].removeprefix("http://").partition("/")[0].split(":")
    data = orjson.dumps(body)
    head = (
        f"POST /sessions/{access['id']}/v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
        f"authorization: Bearer {access['api_key']}\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as plain:
        plain.sendall(head.encode() + data)
        said = b""
        while b"chatcmpl" not in said:
            said = plain.recv(65_536, socket.MSG_PEEK)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def until_lost(served: Served, id_: str) -> None:
    async with asyncio.timeout(120):
        while not served.gateway.entries[id_].state.retries.lost:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_after_a_connection_that_broke_with_the_reply_unread_a_repeat_gets_that_reply_once(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(*LETTERS))) as served:
        access = await served.open()
        await client(access).chat.completions.create(model="m", messages=HI)
        await asyncio.to_thread(_reset_unread, access, {"model": "m", "messages": HI})
        await until_lost(served, access["id"])
        replies = [await client(access).chat.completions.create(model="m", messages=HI) for _ in range(2)]
        assert texts(replies) == ["b", "c"]
        assert served.session(access["id"]).counters["gateway/retries"] == 1


@pytest.mark.slow
async def test_a_request_in_progress_that_a_retry_repeats_ends(serve: Serve) -> None:
    """A proxy keeps its connection when its client gives up: the header alone tells."""
    async with serve(ScriptedEngine(in_turn(*LETTERS))) as served:
        access = await served.open()
        served.engine.held = asyncio.Event()
        chat = client(access).chat.completions
        first = asyncio.create_task(chat.create(model="m", messages=HI))
        await until_running(served, 1)
        second = asyncio.create_task(chat.create(model="m", messages=HI, extra_headers=RETRY))
        with pytest.raises(Exception, match="repeated"):
            await first
        served.engine.held.set()
        await second
        assert len({call.sampling.seed for call in served.engine.calls}) == 1
        assert sum(n.sampled for n in served.session(access["id"]).nodes) == 1


async def until_in_progress(served: Served, count: int) -> None:
    async with asyncio.timeout(120):
        while served.gateway.in_flight > count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until_running(served: Served, count: int) -> None:
    async with asyncio.timeout(120):
        while served.engine.running < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_equal_requests_side_by_side_are_as_many_samples(serve: Serve) -> None:
    """Self-consistency: a reply being sent was taken for lost, which ended it with 410, and two got one seed."""
    async with serve(ScriptedEngine(latency=0.001, chunk=1)) as served:
        access, places = await served.open(), asyncio.Semaphore(16)
        url, key = f"{access['base_url']}/chat/completions", {"authorization": f"Bearer {access['api_key']}"}
        async with httpx.AsyncClient(headers=key, timeout=60) as http:

            async def sample(number: int) -> tuple[int, str]:
                async with places:
                    body = {"model": "m", "messages": HI, "stream": number % 2 == 1}
                    reply = await http.post(url, json=body)
                    return reply.status_code, reply.text.partition('"id":"')[2][:40]

            replies = await asyncio.gather(*(sample(number) for number in range(64)))
        assert {status for status, _ in replies} == {200}
        assert len({name for _, name in replies}) == 64
        turns = [node for node in served.session(access["id"]).nodes if node.sampled]
        assert len({turn.sampling.seed for turn in turns if turn.sampling}) == len(turns) == 64


async def test_a_sample_that_was_stored_while_another_was_tokenised_is_not_drawn_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is new in large requests is tokenised in a thread: an equal request may be answered meanwhile."""
    async with serve(ScriptedEngine(in_turn(*LETTERS))) as served:
        access = await served.open()
        entry = served.gateway.entries[access["id"]]
        tokenised, answered = asyncio.Event(), asyncio.Event()
        rendered = Exchange._render_messages

        async def slowly(self: Exchange, *args: Any) -> Any:
            messages = await rendered(self, *args)
            tokenised.set()
            await answered.wait()
            return messages

        with monkeypatch.context() as slow:
            slow.setattr(Exchange, "_render_messages", slowly)
            second = asyncio.create_task(exchange(served.gateway, entry, turn_request(HI)))
            await tokenised.wait()
        await exchange(served.gateway, entry, turn_request(HI))
        answered.set()
        await second
        turns = [node for node in served.session(access["id"]).nodes if node.sampled]
        assert len({turn.sampling.seed for turn in turns if turn.sampling}) == len(turns) == 2


ASKED = {"chat/completions": {"messages": HI}, "responses": {"input": "hi"}, "completions": {"prompt": "hi"}}


@pytest.mark.parametrize("protocol", ASKED)
@pytest.mark.slow
async def test_a_retry_of_a_request_that_was_refused_is_a_sample_and_ends_nobodys(serve: Serve, protocol: str) -> None:
    """70 at once: those above the limit came again with the SDK's header, and ended others or got their replies."""
    body = {"model": "m", **ASKED[protocol]}
    limits = Limits(session_in_flight=2)
    async with serve(ScriptedEngine(in_turn(*LETTERS)), limits=limits) as served:
        access = await served.open()
        url, key = f"{access['base_url']}/{protocol}", {"authorization": f"Bearer {access['api_key']}"}
        served.engine.held = asyncio.Event()
        async with httpx.AsyncClient(headers=key, timeout=60) as http:
            first, second = (asyncio.create_task(http.post(url, json=body)) for _ in range(2))
            await until_running(served, 2)
            assert [(await http.post(url, json=body)).status_code for _ in range(2)] == [429, 429]
            second.cancel()
            await until_in_progress(served, 1)
            third = asyncio.create_task(http.post(url, json=body, headers=RETRY))
            await until_running(served, 2)
            served.engine.held.set()
            replies = [await first, await third]
            await until_in_progress(served, 0)
            replies.append(await http.post(url, json=body, headers=RETRY))
        assert [reply.status_code for reply in replies] == [200, 200, 200]
        turns = [node for node in served.session(access["id"]).nodes if node.sampled]
        assert len({turn.sampling.seed for turn in turns if turn.sampling}) == len(turns) == 3


@pytest.mark.slow
async def test_samples_that_nothing_was_built_on_get_no_credit_unless_they_were_rewarded_themselves(
    serve: Serve,
) -> None:
    async with serve(ScriptedEngine(in_turn(*LETTERS))) as served:
        made: list[Session] = []
        for reward in (0.0, 1.0):
            access = await served.open(group="g")
            chat = client(access).chat.completions
            replies = [(await chat.create(model="m", messages=HI)).choices[0].message for _ in range(3)]
            await chat.create(model="m", messages=[*HI, replies[1], *HI])
            session = served.session(access["id"])
            session.reward, session.status = reward, Status.COMPLETED
            made.append(session)
        chosen, last = made[0].nodes[2].id, made[0].nodes[5].id
        assert made[0].unused() == {1, 3}
        for name in ("grpo", "rloo"):
            credit = ALGORITHMS.find(name)().credit([Group("g", made[0].task, made)])
            assert {node for _, node in credit.shares} == {chosen, last}
        made[0].nodes[1].reward = 0.5
        assert made[0].unused() == {3}
        assert [[node.id for node in path] for path in made[0].paths()] == [[0, 1], [0, chosen, 4, last]]
