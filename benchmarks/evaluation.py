"""An evaluation of a model behind an API against inspect_ai's: `python -m benchmarks.evaluation [--samples 1000]`.

A server of the benchmark's own, in a process of its own on loopback, speaks OpenAI's Chat Completions and answers each
request after `--wait` seconds with the answer to its question. `agentrl eval` and inspect_ai (its `Task`, `generate()`,
`match()`, with the Python that `make adapters` has made, or `--python`) ask it as many questions of one turn, 100 at
once, each in a process of its own and in turn. Printed are samples a second of the whole command, samples a second of
CPU, which say the same on a busy machine, and the largest memory.

Then a suite of that one part is killed with -9 in the middle, and the same command is given again: it has to end with
every sample's result, and ask nothing again whose session was stored. The exit code is 1 where it does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agentrl
from agentrl.sessions.store.store import Store
from agentrl.types import Message, Session, StepResult, Task
from benchmarks.machine import machine

ROOT = Path(__file__).resolve().parents[1]
INSPECT = ROOT / ".venv-adapters" / "bin" / "python"
AT_ONCE = 100
AIMS = {"throughput": 3.0, "memory": 0.5}
LEFT = 200
"""The most requests of sessions that a kill cut off: those under way, and those whose commit was still waiting."""
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_NUMBER = re.compile(rb"What is twice (\d+)\?")


def question(number: int) -> str:
    """A sample's question."""
    return f"What is twice {number}?"


class Doubling(agentrl.Env):
    """A question of one turn.

    Args:
        samples: how many tasks there are.
    """

    max_turns = 1

    def __init__(self, samples: int = 1000) -> None:
        self.samples = samples

    def tasks(self, split: str = "train") -> Iterable[dict[str, Any]]:
        """The same for every split."""
        return [{"id": str(number), "number": number} for number in range(self.samples)]

    def reset(self, task: Task, *, seed: int | None = None) -> str:
        """The question."""
        self.number = int(task["number"])
        return question(self.number)

    def step(self, message: Message) -> StepResult:
        """The first answer is the last."""
        return StepResult(terminated=True)

    @agentrl.reward
    def right(self, session: Session) -> float:
        """Whether the answer is the double."""
        return float(session.answer == str(2 * self.number))


# ------------------------------------------------------------------------------------------- the server


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wait: float, log: Path) -> None:
    """Serve one connection: each request is noted by its number and answered after `wait` seconds."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            found = _LENGTH.search(head)
            body = await reader.readexactly(int(found[1]) if found else 0)
            number = int(_NUMBER.findall(body)[-1])
            with log.open("a") as file:
                file.write(f"{number}\n")
            await asyncio.sleep(wait)
            message = {"role": "assistant", "content": str(2 * number)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22}
            reply = {"id": "x", "object": "chat.completion", "created": 0, "model": "canned", "choices": [choice]}
            data = json.dumps({**reply, "usage": usage}).encode()
            start = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
            writer.write(b"%s%d\r\n\r\n%s" % (start, len(data), data))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def serve(wait: float, log: Path) -> None:
    """Print the port, and serve until the process is ended."""
    server = await asyncio.start_server(lambda *streams: answer(*streams, wait, log), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def serving(wait: float, log: Path) -> Iterator[str]:
    """The API's address, with a server behind it."""
    command = [sys.executable, "-m", "benchmarks.evaluation", "--serve", str(log), "--wait", str(wait)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


# ------------------------------------------------------------------------------------------- both sides


@dataclass(frozen=True, slots=True)
class Cost:
    """What a whole process took: seconds, CPU seconds, and the most bytes that were resident."""

    seconds: float
    cpu: float
    memory: int


def ours(url: str, samples: int, folder: Path) -> list[str]:
    """The command of an evaluation of ours."""
    settings = [
        f"env={Path(__file__).resolve()}:Doubling",
        f"env.samples={samples}",
        f"policy={url}",
        "api.model=canned",
    ]
    settings += [f"eval.tasks={samples}", "eval.n=1", f"eval.concurrency={AT_ONCE}", f"run_dir={folder}"]
    return [sys.executable, "-m", "agentrl", "eval", *settings]


def theirs(python: Path, url: str, samples: int, folder: Path) -> list[str]:
    """The command of inspect_ai's evaluation: this file, by its Python."""
    words = ["--inspect", url, "--samples", str(samples), "--logs", str(folder)]
    return [str(python), "-m", "benchmarks.evaluation", *words]


def inspect(url: str, samples: int, logs: str) -> None:
    """Evaluate with inspect_ai."""
    from inspect_ai import Task as Evaluation
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import generate

    dataset = [Sample(input=question(number), target=str(2 * number)) for number in range(samples)]
    model = get_model("openai-api/canned/canned", base_url=url, api_key="none")
    task = Evaluation(dataset=dataset, solver=generate(), scorer=match(location="exact"), config=GenerateConfig())
    limits: dict[str, Any] = {"max_connections": AT_ONCE, "max_samples": AT_ONCE}
    (log,) = evaluate(task, model=model, display="none", log_dir=logs, **limits)
    assert log.status == "success", log.error
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1.0, log.results


def timed(command: Sequence[str], python_path: str) -> Cost:
    """Run a command to its end.

    Raises:
        SystemExit: it failed.
    """
    environment = {**os.environ, "PYTHONPATH": python_path, "OPENAI_API_KEY": "none"}
    began = time.perf_counter()
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=told, stderr=told)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            told.seek(0)
            raise SystemExit(f"{' '.join(command[:4])} failed:\n{told.read().decode()[-3000:]}")
    return Cost(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def compare(python: Path, samples: int, rounds: int, wait: float) -> None:
    """Measure both in turn, and print the best of each."""
    costs: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory() as scratch, serving(wait, Path(scratch) / "log") as url:
        for number in range(rounds):
            folder = Path(scratch) / str(number)
            sides = {"agentrl": ours(url, samples, folder / "run")}
            if python.exists():
                sides["inspect_ai"] = theirs(python, url, samples, folder / "logs")
            for side, command in sides.items():
                costs.setdefault(side, []).append(timed(command, str(ROOT)))
    best = {side: Cost(*(min(getattr(c, f) for c in each) for f in Cost.__slots__)) for side, each in costs.items()}
    for side, cost in best.items():
        rates = f"{samples / cost.seconds:6.0f} samples/s, {samples / cost.cpu:6.0f} samples a CPU second"
        print(f"{side:11} {rates}, {cost.memory / 2**20:5.0f} MiB", flush=True)
    if "inspect_ai" not in best:
        print(f"inspect_ai: not measured, since {python} is not there: make adapters")
        return
    mine, other = best["agentrl"], best["inspect_ai"]
    print(f"throughput {other.seconds / mine.seconds:.2f} times, by CPU {other.cpu / mine.cpu:.2f} (aim: at least 3)")
    print(f"memory {mine.memory / other.memory:.2f} (aim: at most {AIMS['memory']})", flush=True)


def kill(samples: int, wait: float) -> bool:
    """Kill a suite in the middle, give its command again, and print what is there; whether it is complete."""
    with tempfile.TemporaryDirectory() as scratch, serving(wait, log := Path(scratch) / "log") as url:
        log.touch()
        run, environment = Path(scratch) / "run", {**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "none"}
        suite = Path(scratch) / "suite.yaml"
        env = f"{{name: {Path(__file__).resolve()}:Doubling, samples: {samples}}}"
        settings = f"eval.tasks: {samples}, eval.n: 1, eval.concurrency: {AT_ONCE}"
        suite.write_text(f"parts:\n  doubling: {{env: {env}, {settings}}}\n")
        words = [f"suite={suite}", f"policy={url}", "api.model=canned", f"run_dir={run}"]
        command = [sys.executable, "-m", "agentrl", "eval", *words]
        first = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
        while len(log.read_text().splitlines()) < samples // 2:
            if first.poll() is not None:
                raise SystemExit(f"the evaluation ended with {first.returncode} before it could be killed")
            time.sleep(0.01)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        timed(command, str(ROOT))
        requests = len(log.read_text().splitlines())
        (file,) = run.glob("**/sessions.db")
        with Store(file, read_only=True) as store:
            found = {session.task.id for session in store.sessions() if session.reward == 1.0}
    complete = len(found) == samples and requests <= samples + LEFT
    print(f"killed after {samples // 2} requests and repeated: {len(found)} of {samples} results, {requests} requests")
    return complete


def main() -> int:
    """Compare, and kill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wait", type=float, default=0.05, help="seconds until the server answers")
    parser.add_argument("--python", type=Path, default=INSPECT, help="one that has inspect_ai and openai")
    for hidden in ("--serve", "--inspect", "--logs"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.wait, Path(given.serve)))
    elif given.inspect:
        inspect(given.inspect, given.samples, given.logs)
    else:
        print(machine(), flush=True)
        compare(given.python, given.samples, given.rounds, given.wait)
        complete = kill(given.samples, given.wait)
        print(machine())
        return 0 if complete else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
