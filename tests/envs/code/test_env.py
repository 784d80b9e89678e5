"""`env=code` as an environment: its contract, its files, and a remote service in the sandbox's place."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs import calls
from agentrl.envs.builtin.code import code_exec
from agentrl.envs.builtin.code.builtin import PROBLEMS
from agentrl.envs.builtin.code.env import Code
from agentrl.envs.builtin.code.reward import code_verdict
from agentrl.envs.builtin.code.runners import LONGER, Remote
from agentrl.envs.check import check_env
from agentrl.envs.episode import expert_policy, noop_policy, play
from agentrl.envs.registry import make
from agentrl.errors import Blame, ConfigError, DeadlineExceeded, SandboxError
from tests.envs.code.conftest import PATIENCE

SANITIZED = {
    "source_file": "Benchmark Questions Verification V2.ipynb",
    "task_id": 2,
    "prompt": "Write a function to find the shared elements from the given two lists.",
    "code": "def similar_elements(a, b):\r\n  return tuple(set(a) & set(b))",
    "test_imports": ["import math"],
    "test_list": [
        "assert set(similar_elements((3, 4, 5, 6), (5, 7, 4, 10))) == set((4, 5))",
        "assert math.prod(similar_elements((1, 2), (2, 3))) == 2",
    ],
}
FULL = {
    "text": "Write a function that doubles what a cell holds.",
    "code": "from fractions import Fraction as F\nclass Cell:\n    def __init__(self, n): self.n = n\n\n"
    "def double(cell): return 2 * cell.n",
    "task_id": 601,
    "test_setup_code": "cell = Cell(4)",
    "test_list": ["assert double(cell) == 8", "assert double(Cell(1)) == F(4, 2)"],
    "challenge_test_list": [],
}
HUMANEVAL = {
    "task_id": "HumanEval/x",
    "prompt": 'from typing import List\n\ndef last(xs: List[int]) -> int:\n    """The last one."""\n',
    "entry_point": "last",
    "canonical_solution": "    return xs[-1]\n",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 2\n",
}


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (SANITIZED, FULL, HUMANEVAL)))
    return str(path)


@pytest.mark.slow
async def test_both_layouts_are_read_and_their_references_pass(docker: None, rows: str) -> None:
    make_env = lambda: Code(path=rows, eval_path=rows, timeout=PATIENCE)  # noqa: E731
    tasks = list(calls.tasks(make_env()))
    assert [task.id for task in tasks] == ["mbpp-2", "mbpp-601", "HumanEval/x"]
    assert "assert set(similar" in tasks[0]["statement"]
    assert tasks[1]["names"] == ["Cell", "double"], "what the reference defines, and not what it imports"
    assert "prod" not in tasks[0]["statement"], "only the first test is shown"
    for task in tasks:
        assert (await play(make_env(), task, expert_policy)).reward == 1.0
        assert (await play(make_env(), task, noop_policy)).reward == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("tools", [False, True])
def test_it_keeps_the_environment_contract_with_and_without_tools(docker: None, tools: bool) -> None:
    def env() -> Code:
        return Code(tools=tools, timeout=PATIENCE)

    assert check_env(env, tasks=1, limit=3 * PATIENCE, scored=2) == []


async def test_a_program_is_given_neither_the_tests_nor_the_reference() -> None:
    env = Code()
    told = await calls.brief(env, env.tasks()[0])
    assert "assert digit_sum(-45)" not in told.model_dump_json()
    assert PROBLEMS[0]["code"] not in json.dumps(told.data)


def test_wrong_settings_and_rows_are_named(tmp_path: Path) -> None:
    for options, words in (
        ({"path": "/no/such"}, "there is no such file"),
        ({"shown": -1}, "env.shown = -1"),
        ({"timeout": 0}, "env.timeout = 0"),
        ({"eval_path": "x"}, "without env.path"),
        ({"remote": "somewhere"}, "is not an address"),
    ):
        with pytest.raises(ConfigError, match=words):
            make("code", **options).tasks()
    bad = tmp_path / "bad.jsonl"
    for text, words in (('{"x": 1}', "line 1: neither"), ("{", "line 1: not a JSON object"), ("", "holds no problems")):
        bad.write_text(text)
        with pytest.raises(ConfigError, match=words):
            make("code", path=str(bad)).tasks()


# ------------------------------------------------------------------ a remote service

Answer = Callable[[dict[str, Any]], "tuple[int, Any]"]
GOOD, WRONG, TESTS = "def f(x): return x + 1", "def f(x): return x", ["assert f(1) == 2"]


async def executed(body: dict[str, Any]) -> tuple[int, Any]:
    """What SandboxFusion does with a request, in its own field names: run the code on its input."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", body["code"]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(body["stdin"].encode())
    run = {"status": "Finished", "return_code": process.returncode, "stdout": out.decode(), "stderr": err.decode()}
    return 200, {"status": "Failed" if process.returncode else "Success", "message": "", "run_result": run}


@asynccontextmanager
async def service(*answers: Any) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A service on loopback that gives these answers in turn, and then the last one for ever."""
    asked: list[dict[str, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = int(head.split("content-length:")[1].split("\r\n")[0])
            body = json.loads(await reader.readexactly(size))
            asked.append(body)
            answer = answers[min(len(asked), len(answers)) - 1]
            status, said = await answer(body) if callable(answer) else answer
            data = said if isinstance(said, bytes) else json.dumps(said).encode()
            writer.write(
                b"HTTP/1.1 %d x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(data)) + data
            )
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 22)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/run_code", asked
    finally:
        server.close()


def hasty(url: str, grace: float = 15.0) -> Remote:
    """A service that is asked again at once."""
    return Remote(url, grace=grace, backoff=(0.0, 0.0, 0.0))


@pytest.mark.slow
async def test_a_remote_service_gives_the_same_verdicts() -> None:
    async with service(executed) as (url, asked):
        assert await code_exec(GOOD, TESTS, remote=url, timeout=PATIENCE) == 1.0
        assert await code_exec(WRONG, TESTS, remote=url, timeout=PATIENCE) == 0.0
        assert await code_exec("import os; os._exit(0)", TESTS, remote=url, timeout=PATIENCE) == 0.0
        assert await code_exec("print('x' * 9)\n" + GOOD, TESTS, remote=url, timeout=PATIENCE) == 1.0
        assert all("assert f(1)" not in body["code"] for body in asked), "tests travel in the input alone"
        assert {body["language"] for body in asked} == {"python"}
        assert {body["run_timeout"] for body in asked} == {LONGER * PATIENCE}


@pytest.mark.slow
async def test_a_failing_service_is_called_again() -> None:
    broken = (200, {"status": "SandboxError", "message": "no room", "run_result": None})
    async with service((503, {}), (429, {}), broken, executed) as (url, asked):
        assert (await code_verdict(GOOD, TESTS, runner=hasty(url), timeout=PATIENCE)).solved
        assert len(asked) == 5, "three failures, the proof that it can judge, and the verdict"


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [(500, {}), (200, b"not json"), (200, []), (200, {"status": "Success"}), (200, b"[" + b" " * (5 << 20) + b"]")],
    ids=["500", "no json", "a list", "no result", "too long"],
)
async def test_a_broken_service_is_our_failure_and_never_a_reward(answer: Any) -> None:
    async with service(answer) as (url, asked):
        with pytest.raises(SandboxError) as caught:
            await code_verdict(GOOD, TESTS, runner=hasty(url))
        assert caught.value.blame is Blame.INFRA
        assert len(asked) == 4


@pytest.mark.slow
async def test_a_service_that_is_down_or_silent_is_our_failure() -> None:
    with pytest.raises(SandboxError, match="can't be reached"):
        await code_verdict(GOOD, TESTS, runner=hasty("http://127.0.0.1:1/run_code"))
    release = asyncio.Event()

    async def silent(body: dict[str, Any]) -> tuple[int, Any]:
        await release.wait()
        return 200, {}

    async with service(executed, silent) as (url, asked):  # first it proves that it can judge
        with pytest.raises(DeadlineExceeded, match="did not answer"):
            await code_verdict(GOOD, TESTS, runner=hasty(url, grace=0.5), timeout=0.01)
        assert 1 < len(asked) <= 5, "a busy service does not see requests that were given up"
        release.set()


async def test_a_refused_request_and_a_place_that_cannot_judge_are_mistakes_of_the_configuration() -> None:
    async with service((401, {"detail": "who are you"})) as (url, asked):
        with pytest.raises(ConfigError, match="refused the request: 401"):
            await code_exec(GOOD, TESTS, remote=url)
        assert len(asked) == 1
    finished = {"status": "Finished", "return_code": 127, "stdout": "", "stderr": "python: not found"}
    async with service((200, {"status": "Failed", "run_result": finished})) as (url, _):
        with pytest.raises(ConfigError, match="code can't be judged by"):
            await code_exec(GOOD, TESTS, remote=url)


@pytest.mark.slow
async def test_code_that_computes_too_long_ends_itself_on_a_remote_service() -> None:
    """The service's own limit is by the clock, and says nothing where it is busy."""
    async with service(executed) as (url, _):
        assert await code_exec("def f(x):\n    while True: pass", TESTS, remote=url, timeout=1.0) == 0.0


@pytest.mark.slow
async def test_a_remote_time_limit_is_the_codes_own_doing() -> None:
    late = (200, {"status": "Failed", "run_result": {"status": "TimeLimitExceeded", "stdout": None}})
    async with service(executed, late) as (url, _):
        assert await code_exec("def f(x):\n    while True: pass", TESTS, remote=url, timeout=PATIENCE) == 0.0
