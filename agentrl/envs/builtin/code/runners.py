"""Places for the judge: a local sandbox, or a remote execution service.

The remote API is SandboxFusion's, which verl uses as well (Bytedance's SandboxFusion,
`sandbox/server/sandbox_api.py`): `POST <url>` with JSON

    {"code": …, "language": "python", "stdin": …, "run_timeout": seconds, "compile_timeout": seconds,
     "memory_limit_MB": …, "files": {}, "fetch_files": []}

answered by `{"status": "Success" | "Failed" | "SandboxError", "message": …, "run_result": {"status": "Finished" |
"Error" | "TimeLimitExceeded", "return_code": …, "stdout": …, "stderr": …}}`. The code sent is the judge's program,
which is no secret; tests and nonce are in `stdin`, which no other process on the remote machine can read.

Its `run_timeout` is by the clock, and it does not tell a program that sleeps from one that gets no processor. So the
program limits its own processor time, and `run_timeout` is `LONGER` times as long: only what sleeps is stopped by it.

A service that can't be reached, is too slow, overloaded or broken is an infrastructure failure: the request is repeated
a few times and then an InfraError, never a reward of 0. A request that it refuses (400 to 499) is a ConfigError.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from agentrl.common.retries import retry, spread
from agentrl.common.untrusted import read_json
from agentrl.envs.builtin.code.inside.solution import BOOT
from agentrl.envs.builtin.code.judging import CANARY, Job, Verdict, encode_job, program, read
from agentrl.envs.sandboxes import supplier
from agentrl.errors import ConfigError, DeadlineExceeded, SandboxError
from agentrl.tools.sandbox.base import Outcome, Sandbox, SandboxMemory
from agentrl.tools.sandbox.spec import SandboxSpec

SPEC = SandboxSpec(memory_mb=512, pids=64, tmpfs_mb={"/work": 64, "/tmp": 32}, file_mb=64)
CANARY_SECONDS = 60.0
GRACE = 15.0
BACKOFF = (0.2, 1.0, 3.0)
LONGER = 20.0
"""A remote service's limit, in those of the code: what sleeps holds a place there for so long."""
MAX_ANSWER = 4 << 20
"""Bytes of a remote service's response, which contains the judge's short output."""
ENDED = {
    Outcome.TIMEOUT: "the time limit was reached",
    Outcome.MEMORY: "the memory limit was reached",
    Outcome.SIGNALED: "the judge was killed",
    Outcome.NOT_STARTED: "no process could be started",
}

_proven: set[JudgeRunner] = set()


class JudgeRunner(Protocol):
    """Runs the judge's program on a standard input. Equal runners are interchangeable."""

    async def run(self, stdin: bytes, timeout: float) -> tuple[str, str]:
        """Run the judge; return its output, and how it ended ('' where by itself).

        Raises:
            InfraError: the sandbox or service failed, not the program.
        """
        ...

    def __hash__(self) -> int: ...


async def judge(runner: JudgeRunner, job: Job, timeout: float) -> Verdict:
    """Judge a job.

    Args:
        runner: where.
        job: the code and its tests.
        timeout: seconds for all of it, as the runner counts them.

    Raises:
        ConfigError: the judge does not work there.
        EnvError: the task's own code is broken.
        InfraError: the sandbox or service failed.
    """
    if runner not in _proven:
        proof = await _judge(runner, CANARY, max(timeout, CANARY_SECONDS))
        if not proof.solved:
            raise ConfigError(f"code can't be judged by {runner}: a correct function failed there ({proof.note})")
        _proven.add(runner)
    return await _judge(runner, job, timeout)


async def _judge(runner: JudgeRunner, job: Job, timeout: float) -> Verdict:
    stdin, nonce = encode_job(job)
    output, ended = await runner.run(stdin, timeout)
    return read(output, nonce, ended)


@dataclass(frozen=True)
class InSandbox:
    """A sandbox of this process's pool, fresh or emptied for each run."""

    backend: str = "docker"
    image: str = SPEC.image
    python: str = "python3"

    @property
    def spec(self) -> SandboxSpec:
        """The specification of its sandboxes."""
        return SPEC.model_copy(update={"image": self.image})

    async def run(self, stdin: bytes, timeout: float) -> tuple[str, str]:
        pool = supplier(self.backend)
        await pool.check(self.spec)
        said, _ = await pool.run(self.spec, partial(self._run, stdin, timeout))
        return said

    async def _run(self, stdin: bytes, timeout: float, sandbox: Sandbox) -> tuple[str, str]:
        command = [self.python, "-I", "-c", BOOT, program(), "judge"]
        try:
            result = await sandbox.exec(command, stdin=stdin, timeout=timeout)
        except SandboxMemory as error:
            return "", str(error)
        return result.stdout.decode(errors="replace"), ENDED.get(result.outcome, "")


@dataclass(frozen=True)
class Remote:
    """A remote execution service with the API above.

    Attributes:
        url: the whole address, with its path.
        token: what it asks for, if it does.
        memory_mb: a program's memory.
        grace: seconds beyond the run's time limit in which it must respond.
        backoff: seconds between attempts, each times 0.5 to 1.5.
    """

    url: str
    token: str | None = None
    memory_mb: int = SPEC.memory_mb
    grace: float = GRACE
    backoff: tuple[float, ...] = BACKOFF

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"remote={self.url!r} is not an address; give one such as http://HOST:8080/run_code")

    def __repr__(self) -> str:
        return f"Remote({self.url!r})"

    async def run(self, stdin: bytes, timeout: float) -> tuple[str, str]:
        limit = f"resource.setrlimit(resource.RLIMIT_CPU, ({math.ceil(timeout)},) * 2)"
        source = f"import resource, sys\n{limit}\nsys.argv = ['judge', {program()!r}, 'judge']\n{BOOT}\n"
        body = {
            "code": source,
            "language": "python",
            "stdin": stdin.decode(),
            "run_timeout": LONGER * timeout,
            "compile_timeout": LONGER * timeout,
            "memory_limit_MB": self.memory_mb,
            "files": {},
            "fetch_files": [],
        }

        async def ask() -> tuple[str, str]:
            return _read_answer(await self._post(body, LONGER * timeout + self.grace), self.url)

        return await retry(ask, (SandboxError, DeadlineExceeded), spread(self.backoff))

    async def _post(self, body: dict[str, Any], seconds: float) -> Any:
        import httpx

        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            async with (
                asyncio.timeout(seconds),
                httpx.AsyncClient(timeout=seconds) as client,
                client.stream("POST", self.url, json=body, headers=headers) as answer,
            ):
                data = b""
                async for piece in answer.aiter_bytes():
                    data += piece
                    if len(data) > MAX_ANSWER:
                        raise SandboxError(f"{self.url} answered with more than {MAX_ANSWER} bytes")
        except (TimeoutError, httpx.TimeoutException) as error:
            raise DeadlineExceeded(f"{self.url} did not answer within {seconds:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SandboxError(f"{self.url} can't be reached: {type(error).__name__}: {error}") from error
        if 400 <= answer.status_code < 500 and answer.status_code not in (408, 425, 429):
            raise ConfigError(
                f"{self.url} refused the request: {answer.status_code} {data[:300].decode(errors='replace')}"
            )
        if answer.status_code != 200:
            raise SandboxError(f"{self.url} answered {answer.status_code}")
        try:
            return read_json(data)
        except ValueError:
            raise SandboxError(f"{self.url} answered with something that is not JSON") from None


def _read_answer(answer: Any, url: str) -> tuple[str, str]:
    run = answer.get("run_result") if isinstance(answer, dict) else None
    if not isinstance(run, dict) or answer.get("status") == "SandboxError" or run.get("status") == "Error":
        said = answer.get("message") if isinstance(answer, dict) else answer
        raise SandboxError(f"{url} failed: {str(said)[:300]}")
    if run.get("status") == "TimeLimitExceeded":
        return "", ENDED[Outcome.TIMEOUT]
    return str(run.get("stdout") or ""), ""
