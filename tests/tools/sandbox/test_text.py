"""Whatever text a model's call is made of, a sandbox takes it or says in the agent's words what is wrong with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.errors import AgentError, ToolArguments
from agentrl.tools.sandbox.base import PathError, Sandbox
from agentrl.tools.sandbox.docker.plain import PlainSandbox
from agentrl.tools.sandbox.local import create_subprocess
from agentrl.tools.sandbox.runner.loop import blocking
from agentrl.tools.sandbox.spec import SandboxSpec

Use = Callable[[Sandbox, str], Awaitable[Any]]
ENTRANCES: dict[str, Use] = {
    "a command": lambda s, text: s.exec(f": {text}"),
    "an argument": lambda s, text: s.exec(["true", text]),
    "a working directory": lambda s, text: s.exec("true", cwd=text),
    "a variable": lambda s, text: s.exec("true", env={"X": text}),
    "a path to read": lambda s, text: s.read(text),
    "a path to write": lambda s, text: s.write(f"/work/files/{text}", "x"),
    "a path to upload to": lambda s, text: s.upload(b"", f"/work/files/{text}"),
}
CONTENTS: dict[str, Use] = {
    "standard input": lambda s, text: s.exec("true", stdin=text),
    "a file": lambda s, text: s.write("file", text),
}
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=12) | st.sampled_from(["a\0b", "\ud800", "\udfff/x"])


@pytest.fixture(scope="module")
def local() -> Iterator[Sandbox]:
    """A sandbox over a runner."""
    sandbox = blocking(create_subprocess(SandboxSpec()))
    yield sandbox
    blocking(sandbox.close())


@pytest.fixture
def plain() -> Sandbox:
    """One without a runner, and without a daemon: nothing must get as far as that."""
    return PlainSandbox("nowhere", SandboxSpec(), None)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local", "plain"])
@pytest.mark.parametrize("where", [*ENTRANCES, *CONTENTS])
def test_text_that_is_none_is_refused_in(where: str, backend: str, request: pytest.FixtureRequest) -> None:
    sandbox: Sandbox = request.getfixturevalue(backend)
    with pytest.raises(AgentError, match="lone surrogate"):
        blocking({**ENTRANCES, **CONTENTS}[where](sandbox, "a\ud800b"))
    if where in ENTRANCES:
        with pytest.raises(PathError, match="NUL character"):
            blocking(ENTRANCES[where](sandbox, "a\0b"))


@pytest.mark.parametrize("backend", ["local", "plain"])
def test_an_empty_command_is_refused(backend: str, request: pytest.FixtureRequest) -> None:
    for command in ("", " \n", []):
        with pytest.raises(ToolArguments, match="empty"):
            blocking(request.getfixturevalue(backend).exec(command))


@pytest.mark.parametrize("where", [*ENTRANCES, *CONTENTS])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=ANY_TEXT)
@pytest.mark.slow
def test_no_text_is_anybodys_fault_but_the_agents_in(where: str, text: str, local: Sandbox) -> None:
    try:
        blocking({**ENTRANCES, **CONTENTS}[where](local, text))
    except AgentError as error:
        str(error).encode()
    assert blocking(local.healthy())
