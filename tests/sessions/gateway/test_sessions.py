"""Sessions behind the gateway: secrets, refusals, rewards and their time, closing, reopening."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from agentrl.errors import DeadlineExceeded, InvalidInput, StoreError
from agentrl.sessions.gateway.gateway import Gateway, persistent_secret
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.rewards import CloseBody
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import Session, Status, Task
from tests.sessions.gateway.conftest import Serve, Served
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer
from tests.sessions.gateway.test_chat import HI, client

ASK = {"model": "m", "messages": HI}


async def post(served: Served, access: dict[str, str], path: str, key: str | None = None, **body: Any) -> Any:
    headers = {"authorization": f"Bearer {key or access['api_key']}"}
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(f"{served.url}/sessions/{access['id']}/{path}", json=body, headers=headers)


async def get(served: Served, access: dict[str, str], key: str | None = None) -> Any:
    headers = {"x-api-key": key or access["api_key"]}
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.get(f"{served.url}/sessions/{access['id']}", headers=headers)


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def read_all(folder: Path) -> list[bytes]:
    """A store's file, and its log, which goes when the last connection is closed."""
    return [path.read_bytes() for path in (folder / "sessions.db", folder / "sessions.db-wal") if path.exists()]


def lay_out(path: Path, database: bytes, log: bytes) -> None:
    for old in path.parent.iterdir():
        old.unlink()
    path.write_bytes(database)
    Path(f"{path}-wal").write_bytes(log)


# --------------------------------------------------------------------------------------------- secrets


@pytest.mark.slow
async def test_no_key_but_its_own_opens_a_session(serve: Serve) -> None:
    async with serve() as served:
        mine, other = await served.open(), await served.open()
        for path, body in (("v1/chat/completions", ASK), ("reward", {"value": 1}), ("close", {}), ("v1/messages", {})):
            for key in (other["api_key"], "sk-nope", "x"):
                answer = await post(served, mine, path, key=key, **body)
                assert answer.status_code == 401, path
        assert (await get(served, mine, other["api_key"])).status_code == 401
        gone = {**mine, "id": "feedfeedfeedfeed"}
        assert (await post(served, gone, "v1/chat/completions", **ASK)).status_code == 401
        assert served.session(mine["id"]).nodes == []


@pytest.mark.slow
async def test_a_session_shows_its_tree_but_not_its_keys_hash(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open(task={"id": "t7", "question": "?"}, group="g", sample=2, seed=3)
        await client(access).chat.completions.create(**ASK)
        shown = (await get(served, access)).json()
        assert (shown["task"]["id"], shown["group"], shown["sample"], shown["seed"]) == ("t7", "g", 2, 3)
        assert [node["message"]["role"] for node in shown["nodes"]] == ["user", "assistant"]
        assert len(shown["nodes"][1]["logprobs"]) == len(shown["nodes"][1]["token_ids"])
        assert "gateway" not in shown["info"]
        assert access["api_key"] not in read(served.store.path).decode("latin1")


async def test_a_gateway_with_a_key_of_its_own_opens_sessions_for_its_holder_only(serve: Serve) -> None:
    async with serve(admin_key="sk-admin") as served, httpx.AsyncClient(timeout=60) as http:
        assert (await http.post(f"{served.url}/sessions")).status_code == 401
        headers = {"authorization": "Bearer sk-admin"}
        assert (await http.post(f"{served.url}/sessions", headers=headers)).status_code == 201


# -------------------------------------------------------------------------------------------- refusals


@pytest.mark.slow
async def test_an_oversized_body_is_refused_announced_or_not(serve: Serve) -> None:
    async with serve(limits=Limits(body_bytes=1000)) as served:
        access = await served.open()
        big = await post(served, access, "v1/chat/completions", **{**ASK, "user": "x" * 2000})
        assert big.status_code == 413

        async def pieces() -> Any:
            for _ in range(100):
                yield b"x" * 100

        headers = {"authorization": f"Bearer {access['api_key']}"}
        async with httpx.AsyncClient(timeout=60) as http:
            url = f"{access['base_url']}/chat/completions"
            assert (await http.post(url, content=pieces(), headers=headers)).status_code == 413


@pytest.mark.slow
async def test_a_body_that_never_comes_and_one_that_is_no_json_are_refused(serve: Serve) -> None:
    async with serve(limits=Limits(body_timeout=0.2)) as served:
        own = await served.gateway.open(Session("s", Task(id="t")))  # by no request, whose body might be late as well
        path = f"/sessions/{own.id}/v1/chat/completions"
        reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {own.api_key}\r\ncontent-length: 9\r\n\r\n"
        writer.write(head.encode())
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 60)
        writer.close()
    async with serve() as served:
        access = await served.open()
        path = f"/sessions/{access['id']}/v1/chat/completions"
        headers = {"authorization": f"Bearer {access['api_key']}"}
        async with httpx.AsyncClient(timeout=60) as http:
            for content in (b"{", b"[1]", b'"x"', b"\xff", b"[" * 100_000):
                answer = await http.post(f"{served.url}{path}", content=content, headers=headers)
                assert answer.status_code == 400, content[:9]
            half = rb'{"model": "a\ud83d b"}', r"\ud83d (byte 12), half of a character"
            coded = '{"model": "m", "messages": [{"role": "user", "content": "é"}]}'.encode("latin-1"), "not UTF-8"
            wide = '{"model": "é"}'.encode("utf-16"), "not UTF-8, as JSON is: byte 0 is ff"
            for content, why in (half, coded, wide, (b"\xef\xbb\xbf{}", "model: is required"), (b"", "it is empty")):
                answer = await http.post(f"{served.url}{path}", content=content, headers=headers)
                assert why in answer.json()["error"]["message"]


@pytest.mark.slow
async def test_a_flood_is_refused_with_429_and_retry_after_and_the_rest_is_served(serve: Serve) -> None:
    limits = Limits(session_in_flight=4, in_flight=6)
    engine = ScriptedEngine(held=asyncio.Event())
    async with serve(engine, limits=limits) as served:
        one, other = await served.open(), await served.open()

        async def ask(access: dict[str, str], number: int) -> Any:
            return await post(served, access, "v1/chat/completions", **{**ASK, "seed": number})

        asked = [asyncio.create_task(ask(one, number)) for number in range(10)]
        await until(lambda: sum(task.done() for task in asked) == 6)  # four of its own wait for the engine
        asked += [asyncio.create_task(ask(other, number)) for number in range(10)]
        await until(lambda: sum(task.done() for task in asked) == 14)
        refused = [task.result() for task in asked if task.done()]
        assert Counter(a.json()["error"]["code"] for a in refused) == {"session_busy": 6, "queue_full": 8}
        assert all(a.status_code == 429 and int(a.headers["retry-after"]) >= 1 for a in refused)
        assert engine.held is not None
        engine.held.set()
        answers = await asyncio.gather(*asked)
        assert Counter(a.status_code for a in answers) == {200: 6, 429: 14}
        assert served.engine.most_running == 6
        while (later := await ask(one, 99)).status_code == 429:  # noqa: ASYNC110 - a turn is stored behind its reply
            await asyncio.sleep(0.05)
        assert later.status_code == 200


@pytest.mark.slow
async def test_a_client_that_leaves_aborts_its_generation_and_nothing_is_stored(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("a long reply " * 1000)), latency=0.02)) as served:
        access = await served.open()
        for stream in (False, True):
            asking = asyncio.create_task(post(served, access, "v1/chat/completions", **{**ASK, "stream": stream}))
            await until(lambda: served.engine.running == 1)
            await asyncio.sleep(0.05)
            asking.cancel()
            await until(lambda: served.engine.running == 0)
        assert served.engine.aborted == 2
        session = served.session(access["id"])
        assert session.nodes == []
        await until(lambda: session.counters == {"gateway/disconnects": 2})
        served.engine.latency = 0
        assert (await post(served, access, "v1/chat/completions", **ASK)).status_code == 200
        assert len(session.nodes) == 2


@pytest.mark.slow
async def test_a_slow_reader_is_hung_up_on_and_nothing_is_stored(serve: Serve) -> None:
    words = assistant("words " * 120_000)  # in 30,000 events: more than the kernel's buffers hold
    async with serve(
        ScriptedEngine(in_turn(words), chunk=4), limits=Limits(send_timeout=0.3, turn_tokens=10**6)
    ) as served:
        access = await served.open()
        host, port = served.url.removeprefix("http://").split(":")
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, (host, int(port)))
        served.engine.max_context = 10**7
        body = json.dumps({**ASK, "stream": True}).encode()
        head = (
            f"POST /sessions/{access['id']}/v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {access['api_key']}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        await loop.sock_sendall(raw, head.encode() + body)
        session = served.session(access["id"])
        await until(lambda: "gateway/slow_readers" in session.counters, 300)
        raw.close()
        assert session.counters == {"gateway/slow_readers": 1}
        assert session.nodes == []


@pytest.mark.slow
async def test_stragglers_find_a_closed_session_closed_and_what_ran_is_ended(serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("slow " * 3000)), latency=0.02)) as served:
        access = await served.open()
        asking = asyncio.create_task(post(served, access, "v1/chat/completions", **ASK))
        await until(lambda: served.engine.running == 1)
        assert (await post(served, access, "close")).json()["status"] == "completed"
        assert (await asking).status_code == 410
        assert served.engine.aborted == 1
        with pytest.raises(openai.APIStatusError) as caught:
            await client(access, max_retries=3).chat.completions.create(**ASK)
        assert caught.value.status_code == 410
        assert served.session(access["id"]).nodes == []


# --------------------------------------------------------------------------------------------- rewards


@pytest.mark.slow
async def test_rewards_final_by_name_and_for_one_turn(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        reply = await client(access).chat.completions.create(**ASK)
        assert (await post(served, access, "reward", value=0.25, turn=reply.id)).status_code == 200
        assert (await post(served, access, "reward", value=0.5, turn=1)).status_code == 400
        await post(served, access, "reward", value=1.0, name="sold")
        await post(served, access, "reward", value=0.5, name="polite")
        session = served.session(access["id"])
        assert (session.nodes[1].reward, session.rewards, session.reward) == (0.25, {"sold": 1.0, "polite": 0.5}, 1.5)
        assert (await post(served, access, "close")).json()["sealed"] is False
        late = (await post(served, access, "reward", value=2.0)).json()
        assert (late["sealed"], late["reward"]) == (True, 2.0)
        stored = served.store.load(access["id"])
        assert (stored.reward, stored.nodes[1].reward, stored.status) == (2.0, 0.25, Status.COMPLETED)


@pytest.mark.slow
async def test_a_reward_given_twice_is_a_retry_and_one_that_contradicts_is_refused(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        for body in ({"value": 1.0, "name": "a"}, {"value": 1.0}):
            assert (await post(served, access, "reward", **body)).status_code == 200
            assert (await post(served, access, "reward", **body)).status_code == 200
            contradiction = await post(served, access, "reward", **{**body, "value": 0.0})
            assert (contradiction.status_code, contradiction.json()["error"]["code"]) == (400, "already_rewarded")
        assert served.session(access["id"]).reward == 1.0


@pytest.mark.slow
async def test_a_reward_that_never_comes_seals_the_session_unrewarded_which_is_not_zero(serve: Serve) -> None:
    async with serve(limits=Limits(reward_deadline=0.2)) as served:
        access = await served.open()
        waiting = asyncio.create_task(served.gateway.sealed(access["id"], timeout=60))
        await post(served, access, "close")
        session = await waiting
        assert (session.status, session.reward, session.score) == (Status.COMPLETED, None, None)
        for path, body in (("reward", {"value": 1.0}), ("close", {}), ("v1/chat/completions", ASK)):
            assert (await post(served, access, path, **body)).status_code == 410
        assert (await get(served, access)).json()["reward"] is None
        assert access["id"] not in served.gateway.entries


@pytest.mark.slow
async def test_rewards_are_computed_at_the_close_where_the_client_gives_none(serve: Serve) -> None:
    async def score(session: Session) -> None:
        if session.task["n"] == 2:
            session.status, session.error = Status.INFRA_ERROR, "the reward service is down"
        else:
            session.rewards, session.reward = {"turns": 1.0 * session.turns}, 0.5 * session.turns

    async with serve(score=score) as served:
        ended = []
        for n, body in ((1, {}), (2, {}), (3, {"reward": 7.0})):
            access = await served.open(task={"n": n})
            await client(access).chat.completions.create(**ASK)
            await post(served, access, "close", **body)
            ended.append(await served.gateway.sealed(access["id"], timeout=30))
        assert [(session.status, session.reward) for session in ended] == [
            (Status.COMPLETED, 0.5),
            (Status.INFRA_ERROR, None),
            (Status.COMPLETED, 7.0),
        ]
        assert (ended[0].rewards, ended[1].error) == ({"turns": 1.0}, "the reward service is down")
        assert served.store.load(ended[0].id).reward == 0.5


@pytest.mark.slow
async def test_rewards_that_come_with_the_close_seal_at_once(serve: Serve) -> None:
    async with serve() as served:
        for body in ({"reward": 1.0}, {"rewards": {"a": 0.5, "b": 0.25}}):
            access = await served.open()
            answer = (await post(served, access, "close", **body)).json()
            assert answer["sealed"] is True
            assert served.store.load(access["id"]).reward == (1.0 if "reward" in body else 0.75)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("reward", {"value": "much"}),
        ("reward", {"value": 1, "turn": "chatcmpl-nope"}),
        ("reward", {"value": 1, "turn": 0, "name": "x"}),
        ("reward", {"points": 1}),
        ("close", {"status": "open"}),
        ("close", {"status": "finished"}),
    ],
)
@pytest.mark.slow
async def test_wrong_rewards_and_ends_are_refused(serve: Serve, path: str, body: dict[str, Any]) -> None:
    async with serve() as served:
        access = await served.open()
        assert (await post(served, access, path, **body)).status_code in (400, 404)
        assert served.session(access["id"]).status is Status.OPEN


@pytest.mark.slow
async def test_a_session_that_nobody_closes_expires_as_aborted(serve: Serve) -> None:
    async with serve(limits=Limits(session_timeout=0.3, turn_timeout=0.2)) as served:
        access = await served.open()
        session = await served.gateway.sealed(access["id"], timeout=60)
        assert (session.status, session.reward) == (Status.ABORTED, None)


@pytest.mark.slow
async def test_waiting_for_a_seal_has_a_deadline(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        with pytest.raises(DeadlineExceeded):
            await served.gateway.sealed(access["id"], timeout=0.05)


async def test_a_runs_own_sessions_are_opened_and_finished_in_process(serve: Serve) -> None:
    async with serve() as served:
        session = Session("train-0-1", Task(id="t"), group="train-0")
        access = await served.gateway.open(session)
        with pytest.raises(InvalidInput, match="open already"):
            await served.gateway.open(Session("train-0-1", Task(id="t")))
        with pytest.raises(InvalidInput, match="URL"):
            await served.gateway.open(Session("a/b", Task(id="t")))
        await client(
            {"base_url": f"{served.url}/sessions/train-0-1/v1", "api_key": access.api_key}
        ).chat.completions.create(**ASK)
        ended = await served.gateway.finish("train-0-1", CloseBody(status=Status.TRUNCATED))
        assert ended is session
        assert served.store.load("train-0-1").status is Status.TRUNCATED


# ------------------------------------------------------------------------------------------- reopening


@pytest.mark.slow
async def test_after_a_restart_sessions_keys_retries_and_deadlines_go_on(tmp_path: Path, serve: Serve) -> None:
    async with serve(ScriptedEngine(in_turn(assistant("one")))) as served:
        access, closed = await served.open(seed=4), await served.open()
        first = await client(access).chat.completions.create(**ASK)
        await post(served, closed, "close")
    async with serve(ScriptedEngine(in_turn(assistant("two")))) as served:
        access["base_url"] = f"{served.url}/sessions/{access['id']}/v1"
        chat = client(access).chat.completions
        again = await chat.create(**ASK)
        assert (again.id, again.choices[0].message.content) == (first.id, "one")
        more = [*HI, {"role": "assistant", "content": "one"}, *HI]
        await chat.create(model="m", messages=more)
        session = served.session(access["id"])
        assert [n.parent for n in session.nodes] == [None, 0, 1, 2]
        await until(lambda: served.store.load(access["id"]).nodes == session.nodes)  # behind the reply
        assert (await post(served, closed, "v1/chat/completions", **ASK)).status_code == 410
        assert (await post(served, closed, "reward", value=1.0)).json()["sealed"] is True


FRAME = 24 + 4096
"""Bytes of a page in SQLite's log: a header, and the page; a cut anywhere within one loses it whole."""


def cuts(start: int, end: int) -> list[int]:
    """Around the ends of all that the log is made of, and every 331st byte between them."""
    ends = range(start, end + 1, FRAME)
    near = {place + by for place in ends for part in (0, 8, 16, 24) for by in (part - 1, part, part + 1)}
    return sorted(cut for cut in {*near, *range(start, end, 331), end - 1, end} if start <= cut <= end)


@pytest.mark.slow
async def test_a_gateway_reopens_a_log_that_was_cut_at_any_byte_of_the_last_turn(tmp_path: Path) -> None:
    """kill -9 while a turn is written: the session goes on from the turn before it."""
    from agentrl.sessions.gateway.exchange import Parts
    from tests.sessions.gateway.fakes import renderer
    from tests.sessions.gateway.inside import exchange, turn_request

    parts = Parts(TurnGenerator(renderer(), ScriptedEngine(in_turn(assistant("one"), assistant("two")))), Limits())  # type: ignore[arg-type]
    store = Store(tmp_path / "s.db")
    gateway = Gateway(parts, store, secret=b"kept")
    access = await gateway.open(Session("s", Task(id="t")))
    entry = gateway.entry("s", access.api_key)
    await exchange(gateway, entry, turn_request(HI))
    log = f"{store.path}-wal"
    before = len(read(log))
    echo = [*HI, {"role": "assistant", "content": "one"}, *HI]
    await exchange(gateway, entry, turn_request(echo))
    written, database = read(log), read(store.path)
    copy = tmp_path / "copy" / "s.db"
    copy.parent.mkdir()
    assert len(written) > before + FRAME, "the turn is not in the log"
    for cut in cuts(before, len(written)):
        lay_out(copy, database, written[:cut])
        with Store(copy) as again:
            reopened = Gateway(parts, again, secret=b"kept")
            session = reopened.entry("s", access.api_key).state.session
            assert len(session.nodes) == (4 if cut == len(written) else 2), cut
            if cut in (before, before + 1, len(written) - 1):
                await exchange(reopened, reopened.entry("s", access.api_key), turn_request(echo))
                assert len(again.load("s").nodes) == 4
            await reopened.aclose()
    await gateway.aclose()
    store.close()


@pytest.mark.slow
async def test_a_store_that_fails_ends_the_session_as_our_own_fault(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        raw = sqlite3.connect(served.store.path)
        raw.execute("CREATE TRIGGER full BEFORE INSERT ON nodes BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        raw.close()
        await client(access).chat.completions.create(**ASK)
        for _ in range(6000):
            await asyncio.sleep(0.01)
            answer = await post(served, access, "v1/chat/completions", **ASK)
            if answer.status_code == 503:
                break
        assert "disk full" in answer.json()["error"]["message"]
        raw = sqlite3.connect(served.store.path)
        raw.execute("DROP TRIGGER full")
        raw.close()
        assert (await post(served, access, "close")).json()["status"] == "infra_error"


async def test_nothing_of_a_sessions_key_lies_in_the_store_and_each_opening_has_another(
    serve: Serve, tmp_path: Path
) -> None:
    """Keys (later their hashes) lay in sessions.db, which people share."""
    async with serve() as served:
        one = await served.gateway.open(Session("s", Task(id="t")))
        other = await served.gateway.open(Session("t", Task(id="t")))
        assert served.gateway.entry("s", one.api_key)
        assert one.api_key != other.api_key
        with pytest.raises(ApiError):
            served.gateway.entry("s", other.api_key)
        served.gateway.entries.clear()
        again = await served.gateway.open(Session("s", Task(id="t")))
        assert again.api_key != one.api_key, "who worked on the first attempt could speak in the second"
    for data in read_all(tmp_path):
        for key in (one.api_key, other.api_key):
            for told in (key, key.removeprefix("sk-"), hashlib.sha256(key.encode()).hexdigest()):
                assert told.encode() not in data
    assert (tmp_path / "sessions.db.secret").stat().st_mode & 0o777 == 0o600


def test_a_secret_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    """Of an empty file, as a crash may leave one, anybody could compute the keys."""
    store = tmp_path / "sessions.db"
    assert persistent_secret(store) == persistent_secret(store)
    (tmp_path / "sessions.db.secret").write_bytes(b"")
    with pytest.raises(StoreError, match=r"sessions\.db\.secret has 0 bytes, not 32"):
        persistent_secret(store)


async def test_a_gateway_without_the_secret_of_another_refuses_the_keys_that_it_gave_out(serve: Serve) -> None:
    async with serve() as served:
        access = await served.gateway.open(Session("s", Task(id="t")))
        with pytest.raises(ApiError, match="key is not its own"):
            Gateway(served.gateway.parts, served.store).entry("s", access.api_key)


@pytest.mark.slow
async def test_a_gateway_whose_engines_are_gone_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentrl.errors import EngineError
    from agentrl.sessions.gateway.http import server
    from agentrl.types import Health

    answered = asyncio.Event()

    class Mortal(ScriptedEngine):
        died = False

        async def health(self) -> Health:
            if self.died and asyncio.current_task() is serving:  # which ends once the client knows
                await answered.wait()
            return Health(ok=not self.died, gone=self.died, detail="no engine is left\n  CUDA error" * self.died)

    monkeypatch.setattr(server, "CHECK_EVERY", 0.01)
    engine, said = Mortal(), asyncio.Queue[str]()
    with Store(tmp_path / "s.db") as store:
        serving = asyncio.create_task(server.serve(engine, renderer(), store, port=0, announce=said.put_nowait))
        url = (await said.get()).split()[4]
        async with httpx.AsyncClient(timeout=60) as http:
            assert (await http.get(f"{url}/health")).json()["ok"] is True
            engine.died = True
            health = await http.get(f"{url}/health")
        answered.set()
        assert (health.status_code, health.json()["gone"]) == (503, True)
        assert "CUDA error" in health.json()["detail"]
        with pytest.raises(EngineError, match="no engine is left"):
            await serving


@pytest.mark.slow
async def test_counters_are_in_the_store_after_each_request_whatever_became_of_it(serve: Serve) -> None:
    """A gateway that was killed had the turns, but had counted nothing."""
    from agentrl.errors import EngineError

    async with serve() as served:
        access = await served.open()
        chat = client(access).chat.completions
        await chat.create(**ASK, extra_body={"service_tier": "auto"})
        served.engine.fail = EngineError("no")
        with pytest.raises(openai.InternalServerError):
            await chat.create(**ASK)
        async with asyncio.timeout(120):
            counted = {"gateway/ignored/service_tier": 1, "gateway/failures": 1}
            while served.store.load(access["id"]).counters != counted:  # noqa: ASYNC110 (written after the reply)
                await asyncio.sleep(0.01)
        state, stored = served.session(access["id"]), served.store.load(access["id"])
        assert (state.counters, stored.nodes) == (counted, state.nodes)


async def raw(served: Served, *pieces: bytes) -> bytes:
    """What the server answers to these bytes."""
    reader, writer = await asyncio.open_connection(*served.url.removeprefix("http://").split(":"))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: "])
@pytest.mark.slow
async def test_a_head_that_never_comes_whole_is_cut(serve: Serve, sent: bytes) -> None:
    async with serve(limits=Limits(body_timeout=0.5)) as served:
        assert (await raw(served, sent)).startswith(b"HTTP/1.1 408")


@pytest.mark.slow
async def test_a_second_head_on_a_kept_connection_has_its_time_from_its_first_byte(serve: Serve) -> None:
    async with serve(limits=Limits(body_timeout=0.5)) as served:
        whole = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
        said = await raw(served, whole, whole[:20])
        assert said.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in said


@pytest.mark.slow
@pytest.mark.parametrize("fields", [[b"x-a: " + b"a" * 5000], [b"x-%d: %s" % (i, b"a" * 100) for i in range(50)]])
async def test_a_head_is_bounded_in_size_whole_or_not(serve: Serve, fields: list[bytes]) -> None:
    async with serve(limits=Limits(head_bytes=4000)) as served:
        head = b"\r\n".join([b"GET /health HTTP/1.1", b"host: x", *fields])
        for sent in (head + b"\r\n\r\n", head):
            said = await raw(served, sent)
            assert said.startswith(b"HTTP/1.1 431")
            assert b"head_too_large" in said
        async with httpx.AsyncClient(timeout=60) as http:
            assert (await http.get(f"{served.url}/health", headers={"x-a": "a" * 3000})).status_code == 200
