"""The proof of zero drift: a thousand conversations of clients that do everything clients do.

They call tools, retry, drop the reasoning, edit, compact and shorten their histories, talk to sub-agents, ask
side by side, stream, and hang up. The engine answers with words, calls, and plain token soup (broken UTF-8,
markup out of place, turns without an end), and now and then new weights cut a turn. Whatever happens, the
tokens that the engine saw and drew are the stored paths, exactly, and nothing else is ever trained on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest

from agentrl.sessions.tree import tree
from agentrl.types import Chunk, FinishReason, Sampling, Session, Turn, VersionSpan
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import Call, ScriptedEngine, assistant, renderer

TOOLS: Any = [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in ("look", "buy")]
WORDS = ["yes", "no", "the price is 7", "ü🙂", "<|im_end|>", "\n", "  ", "</tool_call>", "é"]


@dataclass
class Dice(ScriptedEngine):
    """Draws words, calls or token soup by the request's seed, and sometimes is cut by new weights."""

    rolls: random.Random = field(default_factory=lambda: random.Random(1))
    version_now: int = 0

    async def generate(
        self, request_id: str, input_ids: Sequence[int], sampling: Sampling, deadline: float | None = None
    ) -> AsyncIterator[Chunk | Turn]:
        call = Call(request_id, list(input_ids), sampling)
        self.calls.append(call)
        dice = random.Random(sampling.seed)
        ids = self._words(dice)[: sampling.max_new_tokens]
        logprobs = [-dice.random() * 9 for _ in ids]
        ended = ids[-1] in sampling.stop_token_ids
        reason = FinishReason.STOP if ended or dice.random() < 0.9 else FinishReason.LENGTH
        if len(ids) == sampling.max_new_tokens and not ended:
            reason = FinishReason.LENGTH
        if len(ids) > 2 and dice.random() < 0.1:  # new weights arrive in the middle
            cut = dice.randrange(1, len(ids))
            ids, logprobs, reason = ids[:cut], logprobs[:cut], FinishReason.ABORT
        version, done = self.version_now, False
        self.running += 1
        try:
            for at in range(0, len(ids), 4):
                await asyncio.sleep(0)
                yield Chunk(tuple(ids[at : at + 4]), tuple(logprobs[at : at + 4]), version)
            done = True
        finally:
            self.running -= 1
            self.aborted += not done
        if reason is FinishReason.ABORT:
            self.version_now += 1
        stopped_by = ids[-1] if ended and reason is FinishReason.STOP else None
        call.turn = Turn(tuple(ids), tuple(logprobs), (VersionSpan(version, 0, len(ids)),), reason, stopped_by)
        yield call.turn

    def _words(self, dice: random.Random) -> list[int]:
        if dice.random() < 0.25:
            soup = [dice.randrange(renderer().tokenizer.vocab_size) for _ in range(dice.randrange(1, 12))]
            end = renderer().stop_token_ids[0]
            return [*(i for i in soup if i != end), end]
        calls = [(dice.choice(["look", "buy"]), f'{{"n": {dice.randrange(9)}}}') for _ in range(dice.choice([0, 1, 2]))]
        reasoning = dice.choice([None, "hm"])
        return renderer().turn(assistant(" ".join(dice.choices(WORDS, k=dice.randrange(4))), reasoning, calls))


class Agent:
    """A client with habits."""

    def __init__(self, number: int, http: httpx.AsyncClient, access: dict[str, str]) -> None:
        self.dice, self.http, self.access = random.Random(number), http, access
        self.history: list[dict[str, Any]] = self.beginning("You sell.")
        self.heard: set[str] = set()
        self.given_up: list[list[dict[str, Any]]] = []
        self.headers = {"authorization": f"Bearer {access['api_key']}"}

    def beginning(self, prompt: str) -> list[dict[str, Any]]:
        return [{"role": "system", "content": prompt}, {"role": "user", "content": self.dice.choice(WORDS)}]

    async def live(self) -> None:
        for _ in range(self.dice.randrange(2, 7)):
            await getattr(self, self.dice.choice(HABITS))()

    async def talk(self) -> None:
        """The plain thing: ask, keep the reply as it came, answer its calls."""
        message = await self.ask(self.history)
        if message is None:
            return
        self.history.append(message)
        for call in message.get("tool_calls") or ():
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": self.dice.choice(WORDS)})
        if not message.get("tool_calls"):
            self.history.append({"role": "user", "content": self.dice.choice(WORDS)})

    async def forget_reasoning(self) -> None:
        await self.talk()
        for message in self.history:
            message.pop("reasoning_content", None)

    async def respell(self) -> None:
        """Arguments formatted anew, content as parts."""
        await self.talk()
        for message in self.history:
            for call in message.get("tool_calls") or ():
                arguments = orjson.loads(call["function"]["arguments"])
                call["function"]["arguments"] = orjson.dumps(arguments, option=orjson.OPT_INDENT_2).decode()
            if message["role"] == "user" and isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]

    async def repeat(self) -> None:
        """The same request twice, as after a lost reply: the second finds the first's turn.

        Where the agent hung up on that request before, the retry may find that earlier draw instead: the gateway can
        learn of the broken connection between the two.
        """
        first = await self.ask(self.history, stream=False)
        again = await self.ask(self.history, headers={"x-stainless-retry-count": "1"}, stream=False)
        assert again == first or self.history in self.given_up

    async def edit(self) -> None:
        if len(self.history) > 3:
            place = self.dice.randrange(1, len(self.history))
            self.history[place] = {"role": "user", "content": "edited " + self.dice.choice(WORDS)}
            del self.history[place + 1 :]
        await self.talk()

    async def compact(self) -> None:
        self.history[1:] = [{"role": "user", "content": f"so far: {len(self.history)} messages"}]
        await self.talk()

    async def shorten(self) -> None:
        del self.history[1 : self.dice.randrange(1, len(self.history))]
        await self.talk()

    async def extend(self) -> None:
        """A tool's result, or whatever, written into the turn that it answers; the last one's, or an earlier one's."""
        await self.talk()
        said = [m for m in self.history if m["role"] == "assistant" and m.get("content")]
        if said:
            self.dice.choice([*said, said[-1]])["content"] += self.dice.choice(WORDS) + "\nObservation: 7"
        await self.talk()

    async def inject(self) -> None:
        self.history += [{"role": "assistant", "content": "I said that."}, {"role": "user", "content": "really?"}]
        await self.talk()

    async def sub_agent(self) -> None:
        """Another system prompt, beside the main line."""
        kept, self.history = self.history, self.beginning(self.dice.choice(["You are a critic.", "You search."]))
        await self.talk()
        await self.talk()
        self.history = kept

    async def side_by_side(self) -> None:
        questions = [[*self.history, {"role": "user", "content": w}] for w in self.dice.sample(WORDS, 2)]
        await asyncio.gather(*(self.ask(q) for q in (*questions, self.history)))

    async def hang_up(self) -> None:
        self.given_up.append(list(self.history))
        asking = asyncio.create_task(self.ask(self.history))
        await asyncio.sleep(self.dice.random() * 0.02)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def ask(
        self, messages: list[dict[str, Any]], headers: dict[str, str] | None = None, stream: bool | None = None
    ) -> dict[str, Any] | None:
        streams = self.dice.random() < 0.4 if stream is None else stream
        body: dict[str, Any] = {"model": "m", "messages": messages, "tools": TOOLS, "stream": streams}
        if headers is None and stream is not False and self.dice.random() < 0.1:
            body["max_completion_tokens"] = 3
        url = f"{self.access['base_url']}/chat/completions"
        answer = await self.http.post(url, json=body, headers={**self.headers, **(headers or {})})
        assert answer.status_code == 200, answer.text
        self.heard.add(answer.text.partition("chatcmpl-")[2].partition('"')[0])
        if not streams:
            message: dict[str, Any] = answer.json()["choices"][0]["message"]
            return message
        return put_together(answer.text)


HABITS = (
    *("talk", "talk", "talk", "forget_reasoning", "respell", "repeat", "edit", "compact", "shorten", "inject"),
    *("sub_agent", "side_by_side", "hang_up", "extend", "extend"),
)


def put_together(text: str) -> dict[str, Any]:
    """A stream's message."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for line in text.split("\n\n"):
        if not line or line == "data: [DONE]":
            continue
        delta = orjson.loads(line.removeprefix("data: "))["choices"][0]["delta"]
        for name in ("content", "reasoning_content"):
            if delta.get(name):
                message[name] = message.get(name, "") + delta[name]
        for call in delta.get("tool_calls") or ():
            message.setdefault("tool_calls", []).append({k: v for k, v in call.items() if k != "index"})
    return message


Sampled = dict[tuple[str, tuple[int, ...]], list[list[float]]]


def joined_legs(calls: list[Call]) -> Sampled:
    """Whole turns by session and path, over all legs: the log-probabilities that were drawn, each time it was."""
    turns: Sampled = {}
    open_legs: dict[str, tuple[list[int], list[float]]] = {}
    for call in calls:
        before, logprobs = open_legs.pop(call.request_id, (call.input_ids, []))
        assert call.input_ids == before, "a turn went on from other tokens than its own"
        if call.turn is None:
            continue  # the client hung up
        seen, drawn = [*call.input_ids, *call.turn.token_ids], [*logprobs, *call.turn.logprobs]
        if call.turn.finish_reason is FinishReason.ABORT:
            open_legs[call.request_id] = (seen, drawn)
        else:
            turns.setdefault((call.request_id.partition("/")[0], tuple(seen)), []).append(drawn)
    return turns


def holds_only_what_was_drawn(session: Session, turns: Sampled) -> int:
    """Check a session against the engine's own record; returns how many tokens are trained on."""
    tree.check(session)
    trained = 0
    for node in session.nodes:
        count = sum(node.trainable)
        if not node.sampled:
            assert count == 0, "a span that was tokenised, not drawn, is trained on"
            if node.copied_tokens is not None:
                turn = session.original(node)
                left, ends = turn.token_ids[node.copied_tokens :], renderer().stop_token_ids
                assert node.token_ids[: node.copied_tokens] == turn.token_ids[: node.copied_tokens]
                assert all(token in ends for token in left), "more than the end of a turn was left behind"
            continue
        assert count == len(node.token_ids) - node.versions[0].start
        assert node.logprobs[-count:] in turns[session.id, tuple(tree.path_ids(session, node.id))]
        trained += count
    return trained


async def converse(serve: Serve, number: int) -> None:
    engine = Dice()
    async with serve(engine) as served:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(timeout=60, limits=limits) as http:
            gate = asyncio.Semaphore(24)

            async def one(place: int) -> Agent:
                async with gate:
                    access = (await http.post(f"{served.url}/sessions", json={"seed": place})).json()
                    agent = Agent(place, http, access)
                    await agent.live()
                    return agent

            agents = await asyncio.gather(*(one(place) for place in range(number)))
        turns = joined_legs(engine.calls)
        counters: dict[str, int] = {}
        trained = 0
        for agent in agents:
            id_ = agent.access["id"]
            session = served.session(id_)
            assert agent.heard <= {node.reply_id for node in session.nodes}, "a turn that was heard is not stored"
            await served.gateway.save(served.gateway.entries[id_].state)
            await served.gateway.write(lambda: None)  # behind what is being written
            assert served.store.load(id_).nodes == session.nodes
            trained += holds_only_what_was_drawn(session, turns)
            for name, count in session.counters.items():
                counters[name] = counters.get(name, 0) + count
        assert trained > 10 * number
        causes = {name.rpartition("/")[2] for name in counters if "branches" in name}
        assert causes >= {"agent", "edited", "dropped", "compacted", "injected", "parallel", "cut"}
        assert "extended_forbidden" in causes
        # whether somebody who hangs up is noticed in time is the clock's to say; test_sessions.py holds that count
        for name in ("clean", "extended", "loose", "retries", "dropped_tokens", "malformed"):
            assert counters[f"gateway/{name}"] > 0, name


@pytest.mark.slow
async def test_hundreds_of_conversations_of_every_habit_are_stored_as_the_engine_saw_them(serve: Serve) -> None:
    await converse(serve, 200)
