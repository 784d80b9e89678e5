"""Users' agent programs: a function or a command line that uses the gateway, with a deadline.

An agent gets a task and the address of a session of its own, and uses the model as it likes. The gateway stores its
messages. An agent that fails is an AGENT_ERROR, one that exceeds its deadline is TRUNCATED, and one that failed after a
failed request to the gateway is an INFRA_ERROR.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import shlex
import shutil
import signal
import ssl
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from agentrl.cluster.keeper import Keeper
from agentrl.common import processes
from agentrl.common.imports import load
from agentrl.envs.adapters import programs
from agentrl.errors import AgentError, ConfigError
from agentrl.rollout.episodes.functions import FunctionAgent, SessionUrls
from agentrl.sessions.tree.codec import whole_json
from agentrl.types import Sampling, Session, Status, Task

T = TypeVar("T")
_FUNCTION = re.compile(r"\S+\.py:[A-Za-z_]\w*")
KILL_SECONDS = 2.0
"""Seconds between a command's SIGTERM and its SIGKILL."""
TAIL_BYTES = 4000
"""Bytes of a command's error output that are kept."""


LONGEST_VARIABLE = 100_000
"""Bytes of a task that is given as an environment variable: Linux takes no longer ones than 128 KiB."""
OVERRULING = frozenset({"ANTHROPIC_AUTH_TOKEN"})
"""Variables of a user that clients prefer to the gateway's, and that nothing else reads: programs don't get them."""


class OpenSession(Protocol):
    """A session that is open at a gateway, for one program."""

    @property
    def address(self) -> SessionUrls:
        """The address at which the program reaches the session."""

    async def broken(self) -> None:
        """Wait until the session can't go on; does not return otherwise.

        Raises:
            Diverged: it is run again, and a recorded request does not come.
            InfraError: its gateway is lost.
        """

    async def finish(self, status: Status, error: str | None) -> Session:
        """End it; the session with all that was recorded, sealed.

        Where its client has ended it by a final reward, that end stands. An AGENT_ERROR behind a failed request to the
        gateway is an INFRA_ERROR.

        Raises:
            Diverged: as in `broken`.
            InfraError: its gateway is lost.
        """


class SessionGateway(Protocol):
    """Opens sessions for programs, in this process or in a worker (`gateways`, `gateway_workers`)."""

    def opened(
        self, session: Session, sampling: Sampling, recorded: Session | None = None
    ) -> AbstractAsyncContextManager[OpenSession]:
        """A new session, open within the block; one that is not finished there is ABORTED.

        Args:
            session: it, with its task.
            sampling: how its turns are drawn where the program doesn't say, or doesn't decide (`gateway.sampling`).
            recorded: the session that it runs again, in whose order its requests are taken.

        Raises:
            InfraError: there is no gateway.
        """


class UserAgent(Protocol):
    """Works on a task through the gateway."""

    async def run(self, task: Task, address: SessionUrls) -> None:
        """Work on the task to its end; being cancelled ends it.

        Raises:
            AgentError: it failed.
        """


HELD = 'read -r _ && exec "$@" < /dev/null'
"""A shell's script that becomes the program of its arguments once it gets a line."""


@dataclass(frozen=True)
class CommandAgent:
    """A program; `environment` says what it finds in its environment variables."""

    argv: Sequence[str]
    cwd: str | None = None

    async def run(self, task: Task, address: SessionUrls) -> None:
        """Run the program in a process group of its own, and end the whole group with it, and when we are killed.

        A shell holds the program until the keeper knows of its group, and ends without it where we are killed before.
        It ends with its first process: others that it leaves behind may hold its error output open for ever.
        """
        where = f"agent={shlex.join(self.argv)!r} can't be started"
        if shutil.which(os.path.join(self.cwd or "", self.argv[0]) if "/" in self.argv[0] else self.argv[0]) is None:
            raise ConfigError(f"{where}: there is no such program")
        keeper = _keeper()
        with _variables(task, address) as variables:
            reading, writing = os.pipe()
            pipe, errors = await asyncio.get_running_loop().connect_read_pipe(_Tail, os.fdopen(reading, "rb", 0))
            try:
                process = await asyncio.create_subprocess_exec(
                    *("/bin/sh", "-c", HELD, "sh", *self.argv),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=writing,
                    env=variables,
                    cwd=self.cwd,
                    start_new_session=True,
                )
            except OSError as error:
                pipe.close()
                raise ConfigError(f"{where}: {error}") from None
            finally:
                os.close(writing)
            keeper.keep(process.pid)
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.close()
            try:
                code = await process.wait()
            finally:
                await _end_group(process)
                keeper.forget(process.pid)
                with contextlib.suppress(TimeoutError), contextlib.closing(pipe):
                    async with asyncio.timeout(KILL_SECONDS):
                        await errors.ended.wait()
        if code != 0:
            raise AgentError(f"{shlex.join(self.argv)} ended with exit status {code}: {errors.text}")


@cache
def _keeper() -> Keeper:
    """Ends the programs of this process where it is killed."""
    return Keeper()


@contextlib.contextmanager
def _variables(task: Task, address: SessionUrls) -> Iterator[dict[str, str]]:
    """All of a command's environment; a task that is too long for a variable is in a file while the block runs."""
    inherited = {name: value for name, value in os.environ.items() if name not in OVERRULING}
    given = {**inherited, **environment(task, address)}
    if len(given["AGENTRL_TASK"].encode()) <= LONGEST_VARIABLE:
        yield given
        return
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="agentrl-task-", suffix=".json") as file:
        file.write(given.pop("AGENTRL_TASK"))
        file.flush()
        yield {**given, "AGENTRL_TASK_FILE": file.name}


def environment(task: Task, address: SessionUrls) -> dict[str, str]:
    """Return a command's environment variables: its task, and what leads its clients to the gateway past any proxy."""
    host = urlsplit(address.base_url).hostname or ""
    direct = next((value for name in ("no_proxy", "NO_PROXY") if (value := os.environ.get(name))), "")
    return {
        **dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(filter(None, (direct, host)))),
        "OPENAI_API_BASE": address.base_url,
        "OPENAI_BASE_URL": address.base_url,
        "OPENAI_API_KEY": address.api_key,
        "ANTHROPIC_BASE_URL": address.anthropic_base_url,
        "ANTHROPIC_API_KEY": address.api_key,
        "GOOGLE_GEMINI_BASE_URL": address.anthropic_base_url,
        "GEMINI_API_KEY": address.api_key,
        "AGENTRL_TASK": whole_json({"id": task.id, **task.data}),
    }


def load_agent(agent: str | Callable[..., Any] | UserAgent, trusted: ssl.SSLContext | None = None) -> UserAgent:
    """An agent from `path/to/file.py:function`, a command line, or a coroutine function.

    Args:
        agent: it; `slime:` or `verl:` before a path is a function or a loop of these (`envs.adapters.programs`).
        trusted: what a function's client trusts where the gateway serves HTTPS; None is as usual.

    Raises:
        UnknownName: the file or the function is not there.
        ConfigError: it is no coroutine function, importing it raised something, or there is no such program.
    """
    if isinstance(agent, str):
        named = agent
        if programs.is_foreign(agent):
            agent = programs.load_program(agent)
        elif _FUNCTION.fullmatch(agent.strip()) is None:
            return _command(agent)
        else:
            agent = load(agent, f"agent={agent!r}")
    else:
        named = getattr(agent, "__name__", repr(agent))
    if hasattr(agent, "run"):
        made: UserAgent = agent
        return made
    if not inspect.iscoroutinefunction(agent):
        raise ConfigError(f"agent={named!r} is {agent!r}; it must be `async def agent(task, client)`")
    return FunctionAgent(agent, trusted)


def _command(line: str) -> CommandAgent:
    """A command line's program, looked up now: otherwise hundreds of sessions would fail one by one."""
    where = f"agent={line!r}"
    try:
        argv = shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"{where} can't be read as a command line: {error}") from None
    if not argv:
        raise ConfigError(f"{where} is neither path.py:function nor a command line")
    program = sys.executable if argv[0] == "python" else shutil.which(argv[0])
    if program is None:
        raise ConfigError(f"{where}: there is no program {argv[0]!r} that can be run, and it is no path.py:function")
    script = argv[1] if len(argv) > 1 else ""
    if Path(program).name.startswith("python") and script.endswith(".py") and not Path(script).is_file():
        raise ConfigError(f"{where}: there is no file {script!r}")
    return CommandAgent([program, *argv[1:]])


async def play(
    gateway: SessionGateway,
    session: Session,
    agent: UserAgent,
    timeout: float,
    sampling: Sampling,
    brief: Task | None = None,
    recorded: Session | None = None,
) -> Session:
    """Let an agent work on a session's task; the session with what was recorded, closed, sealed and stored.

    Args:
        gateway: where the session is opened.
        session: new, with its task.
        agent: works on the task.
        timeout: seconds until it is stopped.
        sampling: how its turns are drawn.
        brief: what it is given of the task; None is the session's whole task.
        recorded: the session that is run again.

    Raises:
        ConfigError: the agent can't be started at all.
        Diverged: a recorded request does not come.
        InfraError: the gateway is lost.
    """
    async with gateway.opened(session, sampling, recorded) as opened:
        work = _outcome(agent, brief or session.task, opened.address, timeout)
        return await opened.finish(*await _unless(opened.broken(), work))


async def _unless(failure: Awaitable[None], work: Awaitable[T]) -> T:
    """Return the work's result; a failure that comes first is raised, once the work is cancelled and has ended."""
    tasks = (asyncio.ensure_future(work), asyncio.ensure_future(failure))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            tasks[1].result()
        return await tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _outcome(agent: UserAgent, task: Task, address: SessionUrls, timeout: float) -> tuple[Status, str | None]:
    try:
        async with asyncio.timeout(timeout) as limit:
            await agent.run(task, address)
    except AgentError as error:
        return Status.AGENT_ERROR, str(error)
    except TimeoutError:
        if not limit.expired():
            raise
        return Status.TRUNCATED, f"the agent took longer than {timeout:g} s"
    return Status.COMPLETED, None


class _Tail(asyncio.Protocol):
    """The end of what a program writes to its error output."""

    def __init__(self) -> None:
        self.ended, self._bytes = asyncio.Event(), b""

    @property
    def text(self) -> str:
        return self._bytes.decode(errors="replace").strip()

    def data_received(self, data: bytes) -> None:
        """Keep no more than the end."""
        self._bytes = (self._bytes + data)[-TAIL_BYTES:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that nobody writes any more."""
        self.ended.set()


async def _end_group(process: asyncio.subprocess.Process) -> None:
    for number, seconds in ((signal.SIGTERM, KILL_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        processes.signal_group(process.pid, number)
        if process.returncode is not None and number is signal.SIGTERM:
            continue
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()
