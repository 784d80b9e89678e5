"""Fields that change nothing: accepted, named in a header, counted; what would change the text is not among them."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from agentrl.rollout.stream.health import sampling_notes
from agentrl.sessions.gateway.http.addresses import plain_path
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.limits import Limits
from agentrl.sessions.gateway.wire import chat, completions, messages, responses
from agentrl.sessions.gateway.wire.fields import CHANGE_TEXT
from agentrl.sessions.renderers.base import UNWRITTEN_NAMES
from agentrl.sessions.tree.conversation import Conversation
from agentrl.sessions.tree.turn_generator import TurnGenerator
from agentrl.types import Message, Session, Task
from tests.sessions.gateway.conftest import Serve
from tests.sessions.gateway.fakes import ScriptedEngine, assistant, in_turn, renderer
from tests.sessions.gateway.test_chat import client
from tests.sessions.gateway.test_other_protocols import ATOOL, HI, claude

MARK = {"type": "ephemeral", "ttl": "1h", "scope": "global"}
FUNCTION = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
NAMESPACE = {"type": "namespace", "name": "crm", "description": "customers", "tools": [FUNCTION]}
CODEX: dict[str, Any] = {
    "model": "m",
    "instructions": "be kind",
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    "tools": [FUNCTION, {"type": "web_search", "external_web_access": False}, NAMESPACE],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "abc",
    "client_metadata": {"x-installation-id": "abc"},
    "text": {"verbosity": "low"},
}
CODEX_IGNORED = {
    *("client_metadata", "include", "prompt_cache_key", "reasoning.effort", "reasoning.summary"),
    *("text.verbosity",),
    *("tools.namespace", "tools.web_search"),
}
CLAUDE: dict[str, Any] = {
    "model": "m",
    "max_tokens": 500,
    "system": [{"type": "text", "text": "be kind", "cache_control": MARK}],
    "tools": [{**ATOOL, "cache_control": MARK, "eager_input_streaming": True}],
    "thinking": {"type": "enabled", "budget_tokens": 31_999, "display": "updates"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "xhigh"},
    "metadata": {"user_id": "x"},
    "diagnostics": {"previous_message_id": None},
    "speed": "fast",
    "cache_control": MARK,
}
CLAUDE_IGNORED = {
    *("cache_control", "diagnostics", "metadata", "output_config.effort", "speed"),
    *("thinking.budget_tokens", "thinking.display"),
}


async def post(url: str, key: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(url, json=body, headers={"authorization": f"Bearer {key}", **headers})


def ignored(reply: httpx.Response) -> set[str]:
    return set(reply.headers["x-agentrl-ignored"].split(", "))


@pytest.mark.slow
async def test_a_coding_agents_response_request_is_served_and_ignored_fields_are_reported(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        reply = await post(f"{access['base_url']}/responses", access["api_key"], CODEX)
        assert reply.status_code == 200, reply.text
        assert "response.completed" in reply.text
        assert ignored(reply) == CODEX_IGNORED
        assert served.session(access["id"]).counters == {f"gateway/ignored/{name}": 1 for name in CODEX_IGNORED}
        prompt = renderer().tokenizer.decode(served.engine.calls[0].input_ids)
        assert "add" in prompt
        assert "crm" not in prompt
        assert "web_search" not in prompt


@pytest.mark.slow
async def test_a_request_with_thousands_of_fields_is_refused_before_each_is_looked_up(serve: Serve) -> None:
    """A body may hold millions; comparing each with the known names kept the gateway from everybody for minutes."""
    async with serve() as served:
        access = await served.open()
        body = {"model": "m", "messages": HI, **{f"field_{number}": 1 for number in range(5000)}}
        reply = await post(f"{access['base_url']}/chat/completions", access["api_key"], body)
        assert reply.status_code == 400
        assert "fields; at most 200" in reply.json()["error"]["message"]


@pytest.mark.slow
async def test_the_sdk_reads_a_reply_to_tools_of_which_some_were_left_out(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        given: Any = {name: value for name, value in CODEX.items() if name not in ("client_metadata", "stream")}
        reply = await client(access).responses.create(**given)
        assert [tool.name for tool in reply.tools] == ["add"]


@pytest.mark.slow
async def test_cache_marks_that_move_from_turn_to_turn_keep_one_path(serve: Serve) -> None:
    async with serve(
        ScriptedEngine(in_turn(assistant("", None, [("add", '{"cache_control": 1}')]), assistant("done")))
    ) as served:
        access = await served.open()
        url, key = f"{access['anthropic_base_url']}/v1/messages?beta=true", access["api_key"]
        beta = {"anthropic-version": "2023-06-01", "anthropic-beta": "context-management-2025-06-27"}
        hi: Any = {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": MARK}]}
        first = await post(url, key, {**CLAUDE, "messages": [hi]}, **beta)
        assert first.status_code == 200, first.text
        assert ignored(first) == CLAUDE_IGNORED
        (use,) = first.json()["content"]
        assert use["input"] == {"cache_control": 1}
        said: Any = {"type": "text", "text": "5", "cache_control": MARK}
        result: Any = {"type": "tool_result", "tool_use_id": use["id"], "content": [said], "cache_control": MARK}
        history: Any = [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [{**use, "cache_control": MARK}]},
            {"role": "user", "content": [result]},
            {"role": "system", "content": "hurry"},
        ]
        second = await post(url, key, {**CLAUDE, "messages": history}, **beta)
        assert second.status_code == 200, second.text
        session = served.session(access["id"])
        assert [(n.message.role, n.parent) for n in session.nodes] == [
            *(("system", None), ("user", 0), ("assistant", 1), ("tool", 2), ("system", 3), ("assistant", 4)),
        ]
        counted = {f"gateway/ignored/{name}": 2 for name in CLAUDE_IGNORED}
        assert session.counters == {"gateway/clean": 1, **counted}


FORM: Any = {"type": "json_schema", "name": "sum", "schema": {"type": "object"}}
FORMS: Any = {
    "chat/completions": {
        "messages": HI,
        "tools": [{"type": "function", "function": {"name": "add"}}],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "response_format": {"type": "json_schema", "json_schema": FORM},
    },
    "responses": {
        "input": "hi",
        "tools": [FUNCTION],
        "tool_choice": {"type": "function", "name": "add"},
        "text": {"format": FORM},
    },
    "messages": {
        "messages": HI,
        "max_tokens": 500,
        "tools": [ATOOL],
        "tool_choice": {"type": "tool", "name": "add"},
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "name"),
    [("chat/completions", "response_format"), ("responses", "text.format"), ("messages", "output_config.format")],
)
async def test_a_form_for_text_says_nothing_of_a_call_that_is_demanded(serve: Serve, path: str, name: str) -> None:
    """instructor gives both: its calls were drawn under a grammar for texts, and never trained on."""
    async with serve(ScriptedEngine(in_turn(assistant("", None, [("add", "{}")])))) as served:
        access = await served.open()
        reply = await post(f"{access['base_url']}/{path}", access["api_key"], {"model": "m", **FORMS[path]})
        assert reply.status_code == 200, reply.text
        assert ignored(reply) == {name}
        (call,) = served.engine.calls
        assert call.sampling.full_support
        (turn,) = [node for node in served.session(access["id"]).nodes if node.sampled]
        assert turn.message.tool_calls is not None


LATER: Any = {"name": "fetch", "description": "fetches", "input_schema": {"type": "object"}, "defer_loading": True}


@pytest.mark.slow
async def test_a_deferred_tool_is_described_where_a_result_refers_to_it_and_the_path_continues(serve: Serve) -> None:
    """Claude Code finds tools so; each search began the conversation anew, with every tool in its prompt."""
    words = (
        assistant("", None, [("search", "{}")]),
        assistant("", None, [("fetch", '{"url": "x"}')]),
        assistant("done"),
    )
    search = {"name": "search", "input_schema": {"type": "object"}}
    async with serve(ScriptedEngine(in_turn(*words))) as served:
        access = await served.open()
        history: list[Any] = [{"role": "user", "content": "hi"}]
        for declared in ([search], [search, LATER], [LATER, search]):
            body = {"model": "m", "max_tokens": 500, "tools": declared, "messages": history}
            reply = await post(f"{access['anthropic_base_url']}/v1/messages", access["api_key"], body)
            assert reply.status_code == 200, reply.text
            (block,) = reply.json()["content"]
            found: Any = {"type": "tool_result", "content": [{"type": "tool_reference", "tool_name": "fetch"}]}
            history += [
                {"role": "assistant", "content": [block]},
                {"role": "user", "content": [{**found, "tool_use_id": block.get("id")}]},
            ]
        session = served.session(access["id"])
        assert session.counters == {"gateway/clean": 2}
        texts = [renderer().tokenizer.decode(node.token_ids) for node in session.nodes]
        assert ["fetches" in text for text in texts] == [False, False, True, False, True, False]


@pytest.mark.slow
async def test_a_reference_to_a_tool_that_is_not_declared_is_refused_by_name(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        found: Any = {"type": "tool_result", "content": [{"type": "tool_reference", "tool_name": "fetch"}]}
        use: Any = {"type": "tool_use", "id": "a", "name": "add", "input": {}}
        history = [*HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [found]}]
        found["tool_use_id"] = "a"
        body = {"model": "m", "max_tokens": 500, "tools": [ATOOL], "messages": history}
        reply = await post(f"{access['anthropic_base_url']}/v1/messages", access["api_key"], body)
        assert reply.status_code == 400
        assert "messages[2].content[0].content[0].tool_name='fetch'" in reply.json()["error"]["message"]


@pytest.mark.slow
async def test_counting_takes_what_a_turn_takes(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        fields = {name: value for name, value in CLAUDE.items() if name != "max_tokens"}
        url = f"{access['anthropic_base_url']}/v1/messages/count_tokens"
        reply = await post(url, access["api_key"], {**fields, "messages": HI})
        assert reply.status_code == 200, reply.text
        turn = await post(f"{access['anthropic_base_url']}/v1/messages", access["api_key"], {**CLAUDE, "messages": HI})
        assert turn.json()["usage"]["input_tokens"] == reply.json()["input_tokens"]


SPOKEN = {
    "chat/completions": {"model": "m", "messages": HI},
    "responses": {"model": "m", "input": "hi"},
    "completions": {"model": "m", "prompt": "hi"},
    "messages": {"model": "m", "max_tokens": 9, "messages": HI},
}


@pytest.mark.parametrize("path", SPOKEN)
@pytest.mark.slow
async def test_unknown_fields_are_passed_over_or_with_the_strict_setting_refused(serve: Serve, path: str) -> None:
    odd = {"trace": {"id": 1}, "wölkchen": 2, "x" * 500: 3}
    async with serve() as served:
        access = await served.open()
        reply = await post(f"{access['base_url']}/{path}", access["api_key"], {**SPOKEN[path], **odd})
        assert reply.status_code == 200, reply.text
        assert ignored(reply) == {"trace", "unknown"}
        assert served.session(access["id"]).counters == {"gateway/ignored/unknown": 2}
    async with serve(limits=Limits(strict_fields=True)) as served:
        access = await served.open()
        reply = await post(f"{access['base_url']}/{path}", access["api_key"], {**SPOKEN[path], "trace": 1})
        assert (reply.status_code, "trace" in reply.text) == (400, True)


@pytest.mark.parametrize("path", SPOKEN)
@pytest.mark.slow
async def test_no_field_that_changes_the_text_anywhere_is_passed_over(serve: Serve, path: str) -> None:
    kind = {"chat/completions": chat, "responses": responses, "completions": completions, "messages": messages}[path]
    known = kind.PARAMETERS.known | kind.PARAMETERS.servers | {"model", "stream"}
    async with serve() as served:
        access = await served.open()
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {access['api_key']}"}, timeout=60) as http:
            for name in sorted(CHANGE_TEXT - known):
                reply = await http.post(f"{access['base_url']}/{path}", json={**SPOKEN[path], name: 1})
                assert (reply.status_code, f"'{name}'" in reply.text) == (400, True), name
        assert served.engine.calls == []


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        ("/sessions/a/v1/chat/completions", "/sessions/a/v1/chat/completions"),
        ("/sessions/a/chat/completions", "/sessions/a/v1/chat/completions"),
        ("/sessions/a//v1/v1/messages/", "/sessions/a/v1/messages"),
        ("/sessions/a/openai/deployments/org%2Fm/chat/completions", "/sessions/a/v1/chat/completions"),
        ("/sessions/a/v1/v1beta/models/m:generateContent", "/sessions/a/v1beta/models/m:generateContent"),
        ("//sessions/a/models/v1/openai", "/sessions/a/v1/models/v1/openai"),
        ("/sessions/a/reward/", "/sessions/a/reward"),
        ("/sessions/a/", "/sessions/a"),
        ("/sessions/", "/sessions"),
    ],
)
def test_an_address_means_the_same_with_its_version_once_or_twice_or_not_and_with_more_slashes(
    asked: str, known: str
) -> None:
    assert plain_path(asked) == plain_path(known) == known


async def test_clients_with_another_notion_of_a_base_url_find_the_session(serve: Serve) -> None:
    """AI SDK and Anthropic's own package read one variable, and only one of them adds `/v1`."""
    async with serve() as served:
        access = await served.open()
        url, own, key = access["base_url"], access["anthropic_base_url"], access["api_key"]
        said = [{"role": "user", "content": "hi"}]
        for base in (own, f"{url}/", f"{url}/v1"):
            for path, limit in (("chat/completions", {}), ("messages", {"max_tokens": 9})):
                reply = await post(f"{base}/{path}", key, {"model": "m", "messages": said, **limit})
                assert reply.status_code == 200, reply.text
        azure = openai.AsyncAzureOpenAI(azure_endpoint=own, api_key=key, api_version="2024-10-21", max_retries=0)
        completion = await azure.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert completion.choices[0].message.content == "hello"
        for name in ("planner", "worker"):  # LangChain's client leaves the model to the address
            reply = await post(f"{own}/openai/deployments/{name}/chat/completions?api-version=1", key, {"messages": HI})
            assert reply.json()["model"] == name
        async with httpx.AsyncClient(headers={"x-api-key": key}, timeout=60) as http:
            for address in (f"{url}/models", f"{url}/models/m", f"{own}/v1beta/models", f"{served.url}/health"):
                head, got = await http.head(address), await http.get(address)
                assert (head.status_code, head.content) == (200, b"")
                assert head.headers["content-length"] == str(len(got.content))
            assert (await http.head(f"{url}/chat/completions")).headers["allow"] == "POST"


async def test_a_name_that_the_format_does_not_write_is_told(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        said = [{"role": "user", "content": "hi", "name": "Bob"}]
        for messages, told in ((said, "name"), ([{"role": "user", "content": "ho"}], None)):
            reply = await post(
                f"{access['base_url']}/chat/completions", access["api_key"], {"model": "m", "messages": messages}
            )
            assert (reply.status_code, reply.headers.get("x-agentrl-ignored")) == (200, told)
        session = served.session(access["id"])
        assert session.counters["gateway/ignored/name"] == 1
    played = Session("s", Task(id="t"))
    talk = Conversation(played, TurnGenerator(renderer(), None))
    talk.add([Message(role="user", content="hi", name="Bob"), Message(role="user", content="ho")])
    talk.add(Message(role="tool", content="5", name="add"))  # whose name its call says, where a format has one
    assert played.counters == {UNWRITTEN_NAMES: 1}
    for one in (session, played):
        assert any("name that the model does not see" in note for note in sampling_notes([one], trained=True))


@pytest.mark.slow
async def test_an_address_that_does_not_exist_answers_in_the_protocols_own_shape(serve: Serve) -> None:
    async with serve() as served:
        access = await served.open()
        url, key = access["base_url"], access["api_key"]
        for path in ("/nothing", "/chat"):
            error = (await post(url + path, key, {})).json()["error"]
            assert (error["code"], error["type"]) == ("not_found", "not_found_error")
        for path, headers in (("/messages/batches", {}), ("/complete", {"anthropic-version": "2023-06-01"})):
            reply = await post(url + path, key, {}, **headers)
            assert (reply.status_code, reply.json()["type"]) == (404, "error")
            assert reply.json()["error"]["type"] == "not_found_error"
        async with httpx.AsyncClient(timeout=60) as http:
            wrong = await http.get(f"{url}/chat/completions")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
        assert wrong.headers["allow"] == "POST"
        with pytest.raises(Exception, match="no such address"):
            await claude(access).messages.batches.retrieve("x")


@pytest.mark.parametrize(
    ("form", "name", "missing"),
    [
        ({"type": "json_schema"}, "response_format", "response_format.schema"),
        (
            {"type": "json_schema", "json_schema": {"name": "x"}},
            "response_format",
            "response_format.json_schema.schema",
        ),
        ({"type": "json_schema", "name": "x"}, "text.format", "text.format.schema"),
    ],
)
def test_a_schema_that_is_missing_is_named(form: Any, name: str, missing: str) -> None:
    """Any object fitted what was asked for."""
    with pytest.raises(ApiError, match=f"^{missing}: is required"):
        chat.schema_of(form, True, name)
    assert chat.schema_of({"type": "json_object"}, True) == '{"type": "object"}'
