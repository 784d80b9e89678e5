"""Whatever a model asks for, it gets an answer, and the run goes on."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from agentrl.errors import EnvError, InvalidInput, SandboxError, ToolError
from agentrl.tools.registry import ToolFailure, ToolRegistry
from agentrl.tools.tool import Tool, tool
from agentrl.types import FunctionCall, Message, Part, StepResult, ToolCall


def call(name: str, arguments: Any = None, error: str | None = None) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return ToolCall(id="c1", function=FunctionCall(name=name, arguments=text), error=error)


@tool
def double(n: int) -> int:
    """Double a number."""
    return 2 * n


@tool
async def triple(n: int) -> int:
    """Triple a number."""
    await asyncio.sleep(0)
    return 3 * n


async def answer(registry: ToolRegistry, *args: Any, **kwargs: Any) -> str:
    return (await registry.run(call(*args), **kwargs)).text


async def test_sync_and_async_tools_answer_under_the_calls_id():
    registry = ToolRegistry([double, triple])
    message = await registry.run(call("double", {"n": 4}))
    assert (message.role, message.content, message.tool_call_id, message.name) == ("tool", "8", "c1", "double")
    assert await answer(registry, "triple", {"n": 4}) == "12"
    assert registry.calls == 2
    assert not registry.failures


def test_the_decorator_leaves_the_function_as_it_is():
    assert double(4) == 8


async def test_an_unknown_tool_is_answered_with_the_nearest_name():
    registry = ToolRegistry([double, triple])
    text = await answer(registry, "dubble")
    assert text.startswith("Error: there is no tool 'dubble'; did you mean 'double'?")
    assert "triple" in text
    assert registry.failures == {ToolFailure.UNKNOWN: 1}


async def test_wrong_arguments_are_answered_in_words_and_nothing_runs():
    registry = ToolRegistry([double])
    assert await answer(registry, "double", {"number": 1}) == "Error: n is missing; number = 1 is not known (known: n)"
    assert "n = 'x'" in await answer(registry, "double", {"n": "x"})
    assert set(registry.failures) == {ToolFailure.ARGUMENTS}


@pytest.mark.parametrize("text", ["{", "[1]", "3", "null", '{"n": ' + "9" * 5000 + "}", "[" * 100_000, '{"n": NaN}'])
async def test_arguments_that_are_no_json_object_of_numbers_are_answered(text: str):
    registry = ToolRegistry([double])
    assert (await answer(registry, "double", text)).startswith("Error: ")
    assert registry.failures == {ToolFailure.ARGUMENTS: 1}


async def test_half_a_surrogate_pair_that_is_written_as_an_escape_reaches_no_tool():
    """It reached them, and what they stored could be encoded by no file, database or state."""
    got: list[str] = []
    registry = ToolRegistry()

    @registry.add
    def note(text: str) -> str:
        """Note a text."""
        got.append(text)
        return text

    await registry.run(call("note", '{"text": "a\\ud800b"}'))
    await registry.run(call("note", '{"text": "\\uD83D\\uDE00"}'))
    assert got == ["a?b", "\N{GRINNING FACE}"]


async def test_a_malformed_call_is_answered_with_the_parsers_words_even_under_a_known_name():
    registry = ToolRegistry([double])
    assert await answer(registry, "double", {"n": 1}, "unbalanced braces") == "Error: unbalanced braces"
    assert registry.failures == {ToolFailure.MALFORMED: 1}


async def test_a_tool_that_raises_is_answered_with_what_it_raised():
    @tool
    def broken() -> None:
        """Break."""
        raise KeyError("colour")

    registry = ToolRegistry([broken])
    assert await answer(registry, "broken") == "Error: KeyError: 'colour'"
    assert registry.failures == {ToolFailure.RAISED: 1}


async def test_a_tool_that_refuses_is_answered_in_its_own_words():
    @tool
    async def shop() -> None:
        """Shop."""
        raise ToolError("closed on Sundays")

    registry = ToolRegistry([shop])
    assert await answer(registry, "shop") == "Error: closed on Sundays"
    assert registry.failures == {ToolFailure.REFUSED: 1}


@pytest.mark.parametrize("error", [SandboxError("the daemon died"), EnvError("no database")])
async def test_failures_that_are_not_the_models_pass_through(error: Exception):
    @tool
    def use() -> None:
        """Use."""
        raise error

    registry = ToolRegistry([use])
    with pytest.raises(type(error), match=str(error)):
        await registry.run(call("use"))
    assert not registry.failures


class Panic(BaseException):
    """As libraries in Rust raise it (pyo3's PanicException)."""


@pytest.mark.parametrize("exception", [SystemExit(3), StopIteration("x"), asyncio.CancelledError(), Panic("x")])
@pytest.mark.parametrize("kind", ["thread", "quick", "async", "quick that is awaited"])
async def test_not_even_an_exit_ends_the_run(exception: BaseException, kind: str):
    def leave() -> None:
        """Leave."""
        raise exception

    async def leave_later() -> None:
        """Leave."""
        raise exception

    @tool(quick=True)
    def leave_when_awaited() -> Awaitable[None]:
        """Leave."""
        return leave_later()

    tools = {"thread": leave, "quick": tool(quick=True)(leave), "async": leave_later}
    registry = ToolRegistry([tools.get(kind, leave_when_awaited)])
    assert (await registry.run(call(registry.names[0]))).text.startswith("Error: ")
    assert registry.failures == {ToolFailure.RAISED: 1}


async def test_no_interrupt_that_a_thread_makes_itself_is_taken_for_ctrl_c():
    @tool
    def interrupt() -> None:
        """Interrupt."""
        raise KeyboardInterrupt

    assert await answer(ToolRegistry([interrupt]), "interrupt") == "Error: RuntimeError: KeyboardInterrupt"


class Colour(Enum):
    RED = "red"


@dataclass
class Place:
    at: Path
    colour: Colour
    since: date


PICTURE = Part(type="image_url", image_url={"url": "data:,"})
PLACES = {"here": Place(Path("/x"), Colour.RED, date(2020, 1, 2))}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Colour.RED, '"red"'),
        (MappingProxyType(PLACES), '{"here": {"at": "/x", "colour": "red", "since": "2020-01-02"}}'),
        (deque([b"abc", Decimal("0.5")]), '["abc", 0.5]'),
        (PLACES.keys(), '["here"]'),
        (map(str, [1]), "Error: ValueError: the tool gave a map, which has no text: return text, numbers, lists or"),
        ((n for n in "ab"), "Error: ValueError: the tool gave a generator, which has no text"),
        ([object()], "Error: ValueError: the tool gave a object, which has no text"),
        (len, "Error: ValueError: the tool gave a builtin_function_or_method, which has no text"),
        (range(3), "[0, 1, 2]"),
        (StepResult(reward=1.0), "Error: ValueError: the tool gave a StepResult: return the text"),
        (Message(role="user", content="a"), "Error: ValueError: the tool gave a Message: return the text"),
        ({"shown": PICTURE}, "Error: ValueError: the tool gave an image within other data"),
        ([PICTURE, 5], "Error: ValueError: the tool gave a int in a list with images"),
    ],
)
async def test_a_result_is_told_as_json_and_never_as_python_or_by_an_address(result: Any, text: str):
    """A dataclass came as its repr, an enum as a name that the schema does not take, a generator as its address."""

    def look() -> Any:
        """Look."""
        return result

    assert (await answer(ToolRegistry([look]), "look")).startswith(text)


def test_what_no_call_can_be_made_of_is_refused_where_it_is_marked():
    def lines() -> Iterator[str]:
        """Lines."""
        yield "a"

    async def later() -> AsyncIterator[str]:
        """Lines."""
        yield "a"

    for wrong in (lines, later):
        with pytest.raises(InvalidInput, match=r"the tool .*\.(lines|later) yields, but a call has one result"):
            tool(wrong)
        with pytest.raises(InvalidInput, match="yields"):
            ToolRegistry([wrong])
    for odd in (property(lambda self: 1), partial(int, base=2), "".join, 3):
        with pytest.raises(InvalidInput, match=r"@tool on .*: a function is wanted"):
            tool(odd)  # type: ignore[arg-type, call-overload]
    with pytest.raises(InvalidInput, match=r"a lambda: give it a name, @tool\(name=…\)"):
        tool(lambda: 1)
    with pytest.raises(InvalidInput, match=r"tool 'odd': the type of callback has no JSON schema"):
        ToolRegistry([odd_parameter])


@tool(name="odd")
def odd_parameter(text: str, callback: Callable[[], int]) -> int:
    """Take a function."""
    return callback()


def test_a_python_that_removes_docstrings_is_told_of_once():
    code = "from agentrl.tools.tool import Tool\ndef f(): 'F.'\nfor _ in range(2): print(repr(Tool.of(f).description))"
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "''\n''\n"
    assert done.stderr.count("-OO (PYTHONOPTIMIZE=2), which removes docstrings: tools have no descriptions") == 1


async def test_a_partial_and_an_object_that_is_called_are_tools_with_their_own_names_and_texts():
    class Adder:
        def __call__(this, number: int) -> int:
            """Add one."""
            return number + 1

    def add(index: object, number: int) -> int:
        """Add two."""
        return number + 2

    registry = ToolRegistry([Adder(), partial(add, index=object())])
    assert [(one.name, one.description) for one in registry] == [("Adder", "Add one."), ("add", "Add two.")]
    assert [list(one.parameters["properties"]) for one in registry] == [["number"], ["number"]]
    assert [await answer(registry, name, {"number": 1}) for name in registry.names] == ["2", "3"]


async def test_a_slow_tool_is_answered_at_its_deadline_sync_or_async():
    released = threading.Event()

    @tool(timeout=0.05)
    def slow() -> None:
        """Wait."""
        released.wait(30)

    @tool(quick=True)
    def slow_when_awaited() -> Awaitable[None]:
        """Wait."""
        return asyncio.sleep(30)

    @tool
    async def slow_too() -> None:
        """Wait."""
        await asyncio.sleep(30)

    registry = ToolRegistry([slow, slow_too, slow_when_awaited])
    try:
        assert await answer(registry, "slow") == "Error: 'slow' took longer than 0.05 s"
        for name in ("slow_too", "slow_when_awaited"):
            assert await answer(registry, name, timeout=0.04) == f"Error: {name!r} took longer than 0.04 s"
    finally:
        released.set()
    assert registry.failures == {ToolFailure.TIMEOUT: 3}


async def test_a_coroutine_that_ignores_its_cancellation_is_left_behind():
    stop = asyncio.Event()

    @tool(timeout=0.05)
    async def stubborn() -> None:
        """Stay."""
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                continue

    text = await asyncio.wait_for(answer(ToolRegistry([stubborn]), "stubborn"), 20)
    stop.set()
    assert text == "Error: 'stubborn' took longer than 0.05 s"


async def test_many_stuck_tools_do_not_keep_another_from_running():
    released = threading.Event()

    @tool(timeout=0.2)
    def stuck() -> None:
        """Wait."""
        released.wait(30)

    registry = ToolRegistry([stuck, double])
    try:
        texts = await asyncio.gather(*(answer(registry, "stuck") for _ in range(100)))
        assert all("took longer" in text for text in texts)
        assert await answer(registry, "double", {"n": 1}) == "2"
    finally:
        released.set()


async def test_a_timeout_error_of_the_tools_own_is_not_called_a_deadline():
    @tool
    def fetch() -> None:
        """Fetch."""
        raise TimeoutError("socket")

    registry = ToolRegistry([fetch])
    assert await answer(registry, "fetch") == "Error: TimeoutError: socket"
    assert registry.failures == {ToolFailure.RAISED: 1}


async def test_cancelling_the_caller_cancels_the_tool():
    events: list[str] = []
    began = asyncio.Event()

    async def wait() -> None:
        try:
            began.set()
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    running = asyncio.create_task(ToolRegistry([wait]).run(call("wait")))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0)
    assert events == ["cancelled"]


async def test_results_become_text():
    class Box(BaseModel):
        n: int

    values: dict[str, Any] = {
        "text": "a",
        "nothing": None,
        "list": [1, "ü"],
        "model": Box(n=1),
        "nested": {"b": Box(n=2)},
    }

    @tool
    def get(key: str) -> Any:
        """Get."""
        return values[key]

    registry = ToolRegistry([get])
    results = {key: await answer(registry, "get", {"key": key}) for key in values}
    assert results == {"text": "a", "nothing": "", "list": '[1, "ü"]', "model": '{"n":1}', "nested": '{"b": {"n": 2}}'}


async def test_images_stay_parts():
    image = Part(type="image_url", image_url={"url": "data:,"})
    registry = ToolRegistry()
    registry.add(lambda: [image])
    assert (await registry.run(call("<lambda>"))).content == [image]


async def test_images_and_texts_are_told_together_and_a_picture_is_an_image():
    """A list of an image and a text came as JSON with the image's bytes in it, a picture as its address."""
    picture = pytest.importorskip("PIL.Image").new("RGB", (2, 2))
    registry = ToolRegistry()
    registry.add(lambda: [PICTURE, "above"])
    said = (await registry.run(call("<lambda>"))).content
    assert said == [PICTURE, Part(type="text", text="above")]
    registry = ToolRegistry()
    registry.add(lambda: picture)
    (shown,) = (await registry.run(call("<lambda>"))).content
    assert shown.image.startswith("data:image/png;base64,")


async def test_a_huge_result_keeps_its_head_and_tail_and_lone_surrogates_are_replaced():
    @tool
    def shout(text: str) -> str:
        """Shout."""
        return "head" + text * 1_000_000 + "tail"

    text = await answer(ToolRegistry([shout]), "shout", '{"text": "\\ud800"}')
    assert text.startswith("head?")
    assert text.endswith("?tail")
    assert "characters left out" in text
    assert len(text) < 101_000


async def test_a_tool_made_by_hand_needs_no_python_signature():
    async def invoke(arguments: dict[str, Any], sandbox: Any) -> str:
        return f"{arguments} {sandbox}"

    made = Tool("remote", "Elsewhere.", {"type": "object"}, invoke)
    assert await answer(ToolRegistry([made]), "remote", {"a": 1}) == "{'a': 1} None"


async def test_a_sandbox_tool_gets_the_handle_that_the_model_never_sees():
    @tool(sandbox=True)
    async def bash(command: str, sandbox: Any) -> str:
        """Run."""
        return f"{command} in {sandbox}"

    async def provider() -> str:
        return "box 1"

    registry = ToolRegistry([bash], sandbox=provider)
    assert list(registry.schemas()[0]["function"]["parameters"]["properties"]) == ["command"]
    assert await answer(registry, "bash", {"command": "ls"}) == "ls in box 1"
    assert "sandbox" in await answer(registry, "bash", {"command": "ls", "sandbox": "mine"})
    with pytest.raises(InvalidInput, match="needs a sandbox"):
        ToolRegistry([bash])


async def test_a_sandbox_that_can_not_be_had_is_not_the_models_fault():
    @tool(sandbox=True)
    def bash(sandbox: Any) -> str:
        """Run."""
        return "never"

    async def provider() -> str:
        raise SandboxError("no daemon")

    with pytest.raises(SandboxError, match="no daemon"):
        await ToolRegistry([bash], sandbox=provider).run(call("bash"))


def test_two_tools_of_one_name_and_senseless_marks_are_refused():
    with pytest.raises(InvalidInput, match="two tools are called 'double'"):
        ToolRegistry([double, double])
    with pytest.raises(InvalidInput, match="timeout must be positive"):
        tool(timeout=0)(lambda: None)
    with pytest.raises(InvalidInput, match="needs a parameter 'sandbox'"):
        tool(sandbox=True)(lambda: None)


async def test_a_tool_can_go_by_another_name():
    registry = ToolRegistry([tool(name="twice")(lambda n: 2 * n)])
    assert registry.names == ["twice"]
    assert await answer(registry, "twice", {"n": 2}) == "4"


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["double", "triple", "doubl", ""]) | st.text(max_size=20),
    arguments=st.text(max_size=60) | st.dictionaries(st.sampled_from("nm"), st.integers() | st.text()).map(json.dumps),
    error=st.none() | st.text(min_size=1, max_size=20),
)
@pytest.mark.slow
def test_no_call_that_can_be_written_stops_the_run(name: str, arguments: str, error: str | None):
    async def run() -> None:
        registry = ToolRegistry([double, triple])
        wanted = ToolCall(id="c", function=FunctionCall(name=name, arguments=arguments), error=error)
        message = await registry.run(wanted)
        assert message.tool_call_id == "c"
        assert message.text.startswith("Error: ") == (registry.failures.total() == 1)
        message.model_dump_json()

    asyncio.run(run())


async def test_threads_are_used_again():
    seen: list[threading.Thread] = []
    registry = ToolRegistry([tool(name="where")(lambda: seen.append(threading.current_thread()))])
    for _ in range(20):
        await registry.run(call("where"))
        await asyncio.sleep(0.001)
    assert all(thread.daemon for thread in seen)
    assert threading.main_thread() not in seen
    assert len(set(seen)) < 20


async def test_a_quick_tool_runs_on_the_event_loop_and_fails_like_any_other():
    @tool(quick=True)
    def here(n: int) -> bool:
        """Here?"""
        return bool(1 / n) and threading.current_thread() is threading.main_thread()

    registry = ToolRegistry([here])
    assert await answer(registry, "here", {"n": 1}) == "true"
    assert await answer(registry, "here", {"n": 0}) == "Error: ZeroDivisionError: division by zero"
