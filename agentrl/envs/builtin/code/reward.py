"""`code_exec`: code and tests in, a reward out, for any environment's `@reward` method.

@agentrl.reward
async def correct(self, session):
    return await code_exec(session.answer, self._task["tests"])
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.envs.builtin.code.extract import extract
from agentrl.envs.builtin.code.judging import MAX_CODE, Job, Verdict
from agentrl.envs.builtin.code.runners import InSandbox, JudgeRunner, Remote, judge
from agentrl.errors import InvalidInput

SECONDS = 10.0
"""For one scoring: the start of two interpreters, the code and its tests."""


async def code_exec(
    reply: str,
    tests: str | Sequence[str],
    *,
    entry_point: str | None = None,
    names: Sequence[str] = (),
    prompt: str = "",
    partial: bool = False,
    timeout: float = SECONDS,
    sandbox: str = "docker",
    remote: str | None = None,
) -> float:
    """The reward for code: 1 where all tests pass, and 0 otherwise.

    Args:
        reply: the model's answer; its code is found by `extract`.
        tests: sources with `assert` statements, or with HumanEval's `check(candidate)`. The code never sees them.
        entry_point: the function to write.
        names: what else the tests take from the code (`judging.Job`); a list, as of classes.
        prompt: the beginning of the code, where the model was given one to complete.
        partial: the share of assertions that pass instead.
        timeout: seconds for all of it.
        sandbox: docker, or subprocess, which isolates nothing.
        remote: a remote execution service to use instead (`runners`), such as http://HOST:8080/run_code.

    Raises:
        ConfigError: no code can be run there.
        EnvError: the tests are broken.
        InfraError: the sandbox or the service failed; never a reward.
    """
    runner: JudgeRunner = Remote(remote) if remote else InSandbox(sandbox)
    verdict = await code_verdict(
        reply,
        tests,
        entry_point=entry_point,
        names=names,
        prompt=prompt,
        partial=partial,
        timeout=timeout,
        runner=runner,
    )
    return verdict.share if partial else float(verdict.solved)


async def code_verdict(
    reply: str,
    tests: str | Sequence[str],
    *,
    entry_point: str | None = None,
    names: Sequence[str] = (),
    prompt: str = "",
    trusted: str = "",
    partial: bool = False,
    timeout: float = SECONDS,
    runner: JudgeRunner | None = None,
) -> Verdict:
    """Like `code_exec`, with details; `trusted` is code for the tests' module (`judging.Job`)."""
    if not timeout > 0:
        raise InvalidInput(f"timeout must be positive, not {timeout!r}")
    sources = extract(reply, entry_point, prompt)
    if sources is None:
        return Verdict(0, 1, 1, "there is no code in the reply")
    if sum(map(len, sources)) > MAX_CODE:
        return Verdict(0, 1, 1, f"the code is longer than {MAX_CODE} characters")
    if isinstance(names, str):
        raise InvalidInput(f"names must be a list of names, not the text {names!r}")
    texts = (tests,) if isinstance(tests, str) else tuple(tests)
    job = Job(sources, texts, entry_point, trusted, partial, tuple(names))
    return await judge(runner or InSandbox(), job, timeout)
