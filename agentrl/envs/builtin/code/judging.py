"""The input of the judge (`inside`), and how its output is read.

Only a line that begins with the job's nonce is a verdict; the nonce is on the judge's standard input and nowhere else.
Whatever ends the judge before that line (a time limit, memory, a kill) counts as the submitted code's failure. A Python
too old, or a system that can't hide the judge's memory, would look the same, and is detected beforehand by a job that
must succeed (`CANARY`).
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files

from agentrl.errors import EnvError

MAX_CODE = 200_000
"""Characters of submitted code; more is not run."""
PARTS = ("plain", "worker", "solution", "judge")
"""The modules of `inside` whose text, in this order, is the program."""


@dataclass(frozen=True)
class Job:
    """Code to judge.

    Attributes:
        code: what was submitted, loaded in this order into one module.
        tests: sources with `assert` statements, run one after the other in one module of their own. One that defines
            `check(candidate)` has it called with the function, as HumanEval's do.
        entry_point: the function to write; None where the tests call what they need by name.
        trusted: run in the tests' module first; what it defines is never taken from the submitted code.
        partial: whether to go on after a failure, to count what passes.
        names: what else the tests take from the submitted code: functions, and classes (with a capital letter). Without
            these and without an entry point, it is what the tests call and don't define.
    """

    code: tuple[str, ...]
    tests: tuple[str, ...]
    entry_point: str | None = None
    trusted: str = ""
    partial: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The result of a job: assertions that passed, failures, and how many there are at least."""

    passed: int
    failed: int
    total: int
    note: str = ""

    @property
    def solved(self) -> bool:
        """Return whether the tests finished, none failed, and at least one assertion was made."""
        return self.failed == 0 and self.passed > 0

    @property
    def share(self) -> float:
        """The part of the assertions that passed; 1 only where nothing failed."""
        return 1.0 if self.solved else min(self.passed / self.total, 1 - 1 / (self.total + 1))


CANARY = Job(("def answer(x):\n    return [x, {'y': (1.5, None)}]",), ("assert answer(2) == [2, {'y': (1.5, None)}]",))


@lru_cache(maxsize=1)
def program() -> str:
    """The judge's and the worker's program: the modules of `inside` as one, without their imports of each other."""
    sources = (
        files("agentrl.envs.builtin.code.inside").joinpath(f"{part}.py").read_text(encoding="utf-8") for part in PARTS
    )
    left_out = ("from agentrl.", "from __future__")
    lines = (line for source in sources for line in source.split("\n") if not line.startswith(left_out))
    return "from __future__ import annotations\n" + "\n".join(lines)


def encode_job(job: Job) -> tuple[bytes, str]:
    """A job as the judge reads it, and its nonce."""
    nonce = secrets.token_hex(16)
    return json.dumps({"nonce": nonce, **asdict(job)}).encode(), nonce


def read(output: str, nonce: str, ended: str) -> Verdict:
    """The judge's verdict.

    Args:
        output: what the judge printed.
        nonce: the job's.
        ended: how it ended, where that was not by itself.

    Raises:
        EnvError: the task's own code is broken.
    """
    said = next((line[len(nonce) :] for line in output.splitlines() if line.startswith(nonce)), None)
    if said is None:
        return Verdict(0, 1, 1, ended or "the judge ended without a verdict")
    verdict = json.loads(said)
    if "broken" in verdict:
        raise EnvError(f"the task's tests can't be run: {verdict['broken']}")
    return Verdict(verdict["passed"], verdict["failed"], verdict["total"], verdict["error"] or "")
