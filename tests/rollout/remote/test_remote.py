"""Policies behind an API: real clients against a server on this machine that speaks both protocols."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import agentrl
from agentrl.errors import ConfigError, EngineError, InfraError, TokenBudgetExceeded
from agentrl.rollout.remote import anthropic_messages, chat
from agentrl.rollout.remote.reply import refusal
from agentrl.sessions.store.store import Store
from agentrl.train.display.console import Display
from agentrl.types import FinishReason, FunctionCall, Message, ToolCall

TEXT = st.text(max_size=8)
CALLS = st.lists(
    st.builds(
        ToolCall,
        id=st.text("abc", min_size=1, max_size=3),
        function=st.builds(FunctionCall, name=st.just("add"), arguments=st.sampled_from(['{"a": 1}', "{", "[]"])),
    ),
    max_size=2,
)

pytestmark = pytest.mark.slow


class Doubling(agentrl.Env):
    """Double a number with a tool."""

    splits = ("eval",)
    max_turns = 3

    def tasks(self, split: str = "eval") -> Any:
        return [{"id": f"t{n}", "n": n} for n in range(4)]

    def reset(self, task: Any, *, seed: int | None = None) -> Any:
        self.n = task["n"]
        return [{"role": "system", "content": "Use the tool."}, {"role": "user", "content": f"Double {self.n}."}]

    @agentrl.tool
    def double(self, n: int) -> int:
        """Double a number."""
        return 2 * n

    @agentrl.reward
    def right(self, session: Any) -> float:
        return float(session.answer == str(2 * self.n))


class Model(BaseHTTPRequestHandler):
    """Calls the tool with the question's number, then repeats the tool's answer; task 3 is never answered in full."""

    requests: list[dict[str, Any]]
    status = 200

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append(body)
        said = json.dumps(body["messages"])
        number = said.split("Double ")[1].split(".")[0]
        answered = [m for m in body["messages"] if m["role"] == "tool" or "tool_result" in json.dumps(m)]
        result = str(2 * int(number)) if answered else ""
        answer = self.anthropic(number, result) if self.path.endswith("/messages") else self.openai(number, result)
        if self.status != 200:
            answer = {"error": {"message": "no"}}
        data = json.dumps(answer).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(data)

    def openai(self, number: str, result: str) -> dict[str, Any]:
        call = {"id": "c1", "type": "function", "function": {"name": "double", "arguments": json.dumps({"n": number})}}
        message = {"role": "assistant", "content": result} if result else {"role": "assistant", "tool_calls": [call]}
        used = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}}
        return {"choices": [{"message": message, "finish_reason": self.ending(number)}], "usage": used}

    def anthropic(self, number: str, result: str) -> dict[str, Any]:
        call = {"type": "tool_use", "id": "c1", "name": "double", "input": {"n": int(number)}}
        ending = "max_tokens" if self.ending(number) == "length" else "end_turn"
        used = {"input_tokens": 36, "cache_read_input_tokens": 64, "output_tokens": 5}
        return {"content": [{"type": "text", "text": result} if result else call], "stop_reason": ending, "usage": used}

    def ending(self, number: str) -> str:
        return "length" if number == "3" else "stop"

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    requests: list[dict[str, Any]] = []
    handler = type("Handler", (Model,), {"requests": requests, "status": status})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
    finally:
        server.shutdown()
        server.server_close()


def evaluated(folder: Path, url: str, **settings: Any) -> tuple[Any, str]:
    file = StringIO()
    settings = {"api.model": "m", "api.retries": 0, "rollout.retries": 0, **settings}
    return agentrl.evaluate(
        Doubling, display=Display(Console(file=file, width=200)), run_dir=str(folder), policy=url, **settings
    ), file.getvalue()


@pytest.mark.parametrize(("protocol", "path"), [("openai", "/v1"), ("anthropic", "")])
def test_a_model_behind_either_protocol_plays_with_tools_and_its_tokens_are_counted(
    protocol: str, path: str, tmp_path: Path
) -> None:
    with served() as (url, requests):
        settings = {"api.protocol": protocol, "eval.temperature": 0.5, "eval.prompt_price": 1.0}
        result, said = evaluated(tmp_path / "run", url + path, **settings)
    assert (result.tasks, result.mean) == (4, 0.75)
    assert result.errors == {"agent": 0, "infra": 0, "truncated": 1, "tool_calls": 0}
    assert (result.usage.prompt, result.usage.completion, result.usage.cached) == (700, 35, 448)
    assert result.cost == pytest.approx(700 / 1e6)
    assert f"evaluating m at {url}" in said
    assert all(request["temperature"] == 0.5 and len(request["tools"]) == 1 for request in requests)
    with Store(tmp_path / "run" / "sessions.db", read_only=True) as store:
        roles = [node.message.role for node in store.load("eval-0.0-0").nodes]
    assert roles[:3] == ["system", "user", "assistant"]


@pytest.mark.usefixtures("without_pauses")
def test_a_wrong_key_stops_the_evaluation_and_a_failing_server_is_no_zero(tmp_path: Path) -> None:
    with served(401) as (url, _), pytest.raises(ConfigError, match=r"refuses the key \(HTTP 401\)"):
        evaluated(tmp_path / "key", f"{url}/v1")
    with served(500) as (url, _), pytest.raises(InfraError, match=r"attempt 3 of 3: all 4 .*HTTP 500"):
        evaluated(tmp_path / "down", f"{url}/v1")


def test_what_an_api_can_not_do_is_refused_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"needs a key: set the environment variable OPENAI_API_KEY"):
        evaluated(tmp_path / "run", "https://example.invalid/v1")
    with pytest.raises(ConfigError, match=r"needs api.model=NAME"):
        evaluated(tmp_path / "run", "http://localhost:1/v1", **{"api.model": ""})
    with pytest.raises(ConfigError, match=r"engine is for a model on an engine of ours"):
        evaluated(tmp_path / "run", "http://localhost:1/v1", engine="sglang")
    with pytest.raises(ConfigError, match=r"api.model is for policy=URL"):
        evaluated(tmp_path / "run", "model")
    monkeypatch.setattr(Doubling, "stop_strings", ("</a>",))
    with pytest.raises(ConfigError, match=r"continues a turn's own text"):
        evaluated(tmp_path / "run", "http://localhost:1/v1")
    assert not (tmp_path / "run").exists()


def test_a_refused_request_is_the_users_the_agents_or_the_infrastructures_fault() -> None:
    assert isinstance(refusal(404, "http://a", "no such model"), ConfigError)
    assert isinstance(refusal(400, "http://a", "maximum context length is 8192 tokens"), TokenBudgetExceeded)
    assert isinstance(refusal(400, "http://a", "messages: bad"), EngineError)
    assert isinstance(refusal(503, "http://a", "busy"), EngineError)


@given(content=TEXT, reasoning=TEXT, calls=CALLS)
def test_a_message_survives_the_chat_protocol_but_for_reasoning(
    content: str, reasoning: str, calls: list[ToolCall]
) -> None:
    message = Message(role="assistant", content=content, reasoning_content=reasoning or None, tool_calls=calls or None)
    sent = chat.to_chat_message(message)
    assert "reasoning_content" not in sent
    reply = chat.Chat.read({"choices": [{"message": sent, "finish_reason": "stop"}]})
    assert (reply.message.text, reply.message.tool_calls) == (content, calls or None)
    assert reply.finish is FinishReason.STOP


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool", "system"]), TEXT, CALLS), max_size=6))
def test_anthropics_messages_alternate_and_have_no_empty_block(messages: list[tuple[Any, str, list[ToolCall]]]) -> None:
    sent = anthropic_messages.to_anthropic_messages(
        [
            Message(role=role, content=text, tool_calls=(calls or None) if role == "assistant" else None)
            for role, text, calls in messages
        ]
    )
    roles = [turn["role"] for turn in sent]
    assert all(one != other for one, other in itertools.pairwise(roles))
    for turn in sent:
        assert turn["content"]
        assert all(block["type"] != "text" or block["text"].strip() for block in turn["content"])


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{"message": None}]}, [], "hello", None])
def test_an_answer_that_is_none_is_an_error_of_the_engine(answer: Any) -> None:
    with pytest.raises((KeyError, IndexError, TypeError, AttributeError)):
        chat.Chat.read(answer)
    with pytest.raises((KeyError, TypeError, AttributeError)):
        anthropic_messages.AnthropicMessages.read(answer)
