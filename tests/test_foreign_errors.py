"""Whose fault an exception of other people's code is goes by its kind, and by who chose what it failed at."""

from __future__ import annotations

import asyncio
import errno
import socket
import urllib.error
from typing import Any

import anthropic
import httpx
import openai
import pytest

from agentrl.common.foreign_errors import disk_failure, is_infrastructure, is_one_of, words
from agentrl.errors import InfraError
from agentrl.tools.registry import ToolRegistry
from agentrl.tools.tool import tool
from agentrl.types import FunctionCall, ToolCall

REQUEST = httpx.Request("GET", "http://judge.test/")
CONNECTIONS: list[BaseException] = [
    ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
    ConnectionResetError("reset"),
    BrokenPipeError("pipe"),
    OSError(errno.EHOSTUNREACH, "no route"),
    OSError(errno.ETIMEDOUT, "timed out"),
    socket.gaierror(-2, "unknown name"),
    httpx.ConnectError("no"),
    httpx.ReadTimeout("slow"),
    httpx.RemoteProtocolError("gone"),
    openai.APIConnectionError(request=REQUEST),
    openai.APITimeoutError(request=REQUEST),
    anthropic.APIConnectionError(request=REQUEST),
    urllib.error.URLError(ConnectionRefusedError("refused")),
    ExceptionGroup("both", [httpx.ConnectError("no"), ConnectionResetError()]),
]
RESOURCES = [OSError(getattr(errno, name), name) for name in ("ENOSPC", "EMFILE", "ENFILE", "ENOMEM", "EIO")]
OF_THE_CODE: list[BaseException] = [
    KeyError("colour"),
    FileNotFoundError(errno.ENOENT, "no file"),
    PermissionError(errno.EACCES, "no"),
    OSError("of no kind"),
    httpx.UnsupportedProtocol("no http://"),
    httpx.HTTPStatusError("404", request=REQUEST, response=httpx.Response(404)),
    urllib.error.URLError("unknown url type"),
    ExceptionGroup("one of each", [ConnectionResetError(), KeyError("x")]),
]


class Unspeakable(Exception):
    """Its own words raise."""

    def __str__(self) -> str:
        raise SystemExit("no words")

    __repr__ = __str__


@pytest.mark.parametrize("error", [*CONNECTIONS, *RESOURCES], ids=repr)
def test_connections_and_resources_are_the_infrastructures(error: BaseException) -> None:
    assert is_infrastructure(error)
    assert is_infrastructure(error, own_deadlines=True)


@pytest.mark.parametrize("error", OF_THE_CODE, ids=repr)
def test_everything_else_is_the_codes_own(error: BaseException) -> None:
    assert not is_infrastructure(error)


def test_a_deadline_without_an_error_number_may_be_the_codes_own() -> None:
    assert is_infrastructure(TimeoutError())
    assert not is_infrastructure(TimeoutError(), own_deadlines=True)


@pytest.mark.parametrize("error", CONNECTIONS, ids=repr)
def test_a_tool_that_names_connection_errors_names_those_of_libraries_too(error: BaseException) -> None:
    assert is_one_of(error, (ConnectionError, TimeoutError))
    assert not is_one_of(error, (KeyError,))


def test_who_names_connections_has_not_named_resources() -> None:
    assert not any(is_one_of(error, (ConnectionError, TimeoutError)) for error in RESOURCES)
    assert all(is_one_of(error, (OSError,)) for error in RESOURCES)


async def called(error: BaseException, **marks: Any) -> str:
    @tool(**marks)
    async def fetch() -> str:
        """Fetch."""
        raise error

    function = FunctionCall(name="fetch", arguments="{}")
    return (await ToolRegistry([fetch]).run(ToolCall(id="c", function=function))).text


@pytest.mark.parametrize("error", [*CONNECTIONS, *RESOURCES], ids=repr)
async def test_in_a_tool_they_are_an_observation_only_where_the_tool_says_that_the_model_chose(
    error: BaseException,
) -> None:
    with pytest.raises(InfraError, match=r"the tool 'fetch' raised .*model_errors"):
        await called(error)
    assert (await called(error, model_errors=(ConnectionError, OSError))).startswith("Error: ")


async def test_a_tools_own_deadline_and_its_other_errors_stay_observations() -> None:
    assert await called(TimeoutError()) == "Error: TimeoutError"
    assert await called(FileNotFoundError("nothing.txt")) == "Error: FileNotFoundError: nothing.txt"


async def test_an_exception_whose_own_words_raise_is_told_all_the_same() -> None:
    assert words(Unspeakable()) == "Unspeakable: its __str__ raised SystemExit"
    assert await called(Unspeakable()) == f"Error: {words(Unspeakable())}"
    assert await asyncio.wait_for(called(Unspeakable(), model_errors=(ConnectionError,)), 10)


async def test_a_group_of_exceptions_is_told_with_what_is_in_it() -> None:
    """Of a TaskGroup 'unhandled errors (1 sub-exception)' said nothing of what had failed."""
    group = ExceptionGroup("unhandled", [KeyError("x"), ValueError("y")])
    assert await called(group) == "Error: ExceptionGroup: unhandled (2 sub-exceptions): KeyError: 'x'; ValueError: y"


def test_a_disks_failure_is_known_from_a_library_in_rust_too_and_from_a_file_alone_if_it_is_a_permission() -> None:
    """safetensors told of a full disk by a traceback, where a run builds its model."""
    full = disk_failure(RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"))
    assert full is not None
    assert full.errno == errno.ENOSPC
    assert disk_failure(PermissionError(errno.EACCES, "denied", "file")) is not None
    assert disk_failure(PermissionError(errno.EACCES, "denied")) is None  # of a port, say
    assert disk_failure(RuntimeError("connection refused (os error 111)")) is None
