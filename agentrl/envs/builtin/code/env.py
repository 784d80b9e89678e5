"""`env=code`: write a function, which is scored by hidden tests.

An episode is one answer, unless `env.tools=True` adds a Python interpreter as a tool. The interpreter's sandbox is the
episode's; the answer is scored in another one, which gets nothing but the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.envs.base import Env, reward
from agentrl.envs.builtin.code.problems import read_problems
from agentrl.envs.builtin.code.reward import SECONDS, code_verdict
from agentrl.envs.builtin.code.runners import SPEC, InSandbox, JudgeRunner, Remote
from agentrl.envs.data.splits import BUILT_IN_SHARE, SHARE, divide
from agentrl.envs.sandboxes import SandboxLease, supplier
from agentrl.errors import ConfigError
from agentrl.tools.sandbox.base import Sandbox
from agentrl.tools.sandbox.toolkit import Toolkit
from agentrl.types import Message, Session, Task

CELL_SECONDS = 10.0


class Code(Env):
    """Write a Python function that hidden tests accept.

    Args:
        path: a JSONL file in HumanEval's or MBPP's layout; without it a small built-in set.
        eval_path: another for the split `eval`; without it a tenth is held out (a quarter of the built-in set).
        tools: whether there is a Python interpreter to try code in before answering.
        partial: whether passing a part of the tests is rewarded in part.
        shown: how many of an MBPP problem's tests the model sees; all of them are run.
        timeout: seconds for scoring an answer, without what it waits for a processor.
        sandbox: docker, or subprocess, which isolates nothing.
        image: the sandboxes' image; python3 must be in it.
        remote: a remote execution service that runs the tests, such as http://HOST:8080/run_code.
    """

    needs = "Docker, or sandbox=subprocess"

    def __init__(
        self,
        path: str | None = None,
        eval_path: str | None = None,
        tools: bool = False,
        partial: bool = False,
        shown: int = 1,
        timeout: float = SECONDS,
        sandbox: str = "docker",
        image: str = SPEC.image,
        remote: str | None = None,
    ) -> None:
        if shown < 0:
            raise ConfigError(f"env.shown = {shown}: must be 0 or more")
        if not timeout > 0:
            raise ConfigError(f"env.timeout = {timeout}: must be positive (seconds)")
        if eval_path is not None and path is None:
            raise ConfigError(f"env.eval_path = {eval_path!r} without env.path: give both, or neither")
        self.path, self.eval_path, self.shown, self.partial, self.timeout = path, eval_path, shown, partial, timeout
        self.runner: JudgeRunner = Remote(remote) if remote else InSandbox(sandbox, image)
        self.interactive, self.max_turns = tools, 8 if tools else 1
        self._task = Task(id="")
        self._lease = SandboxLease(sandbox, SPEC.model_copy(update={"image": image}))
        self._toolkit = Toolkit(["python"], timeout=CELL_SECONDS)
        for tool in self._toolkit.tools if tools else ():
            self.tools.add(tool)

    def tasks(self, split: str = "train") -> list[Task]:
        problems = read_problems(self.eval_path if split == "eval" and self.eval_path else self.path, self.shown)
        if self.eval_path:
            return problems
        where, share = ("env=code", BUILT_IN_SHARE) if self.path is None else (f"env.path = {self.path!r}", SHARE)
        return divide(problems, split, lambda task: str(task["statement"]), where, share)

    async def prepare(self, tasks: Sequence[Task], sessions: int) -> None:
        """Have sandboxes created for scoring, and for the interpreters where there are any."""
        if isinstance(self.runner, InSandbox):
            pool = supplier(self.runner.backend)
            await pool.check(self.runner.spec)
            await pool.prepare(self.runner.spec, min(sessions, 8))

    async def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:
        await self._lease.release()
        self._task = task
        words = "\n\nTry your code with the tool before you answer." if self.interactive else ""
        return [Message(role="user", content=task["statement"] + words)]

    def state(self) -> None:
        """Nothing but the task; StateUnsupported once the interpreter was used, whose variables are in a process."""
        self._toolkit.state()

    def restore(self, task: Task, state: None) -> None:
        self._task = task

    def brief(self, task: Task) -> Task:
        return Task(id=task.id, data={"statement": task["statement"], "entry_point": task["entry_point"]})

    @reward
    async def solved(self, session: Session) -> float:
        """1 where the hidden tests pass (with `partial`, the share that passes)."""
        verdict = await code_verdict(
            session.answer,
            self._task["tests"],
            entry_point=self._task["entry_point"],
            names=self._task.get("names", ()),
            prompt=self._task["prompt"],
            trusted=self._task["trusted"],
            partial=self.partial,
            timeout=self.timeout,
            runner=self.runner,
        )
        session.info["code"] = {"passed": verdict.passed, "total": verdict.total, "note": verdict.note}
        return verdict.share if self.partial else float(verdict.solved)

    def expert(self, messages: Sequence[Message]) -> Message:
        """The reference solution; run in the interpreter first where there is one."""
        reference = self._task["reference"]
        if self.interactive and not any(message.role == "tool" for message in messages):
            return self.call("python", code=reference)
        return Message(role="assistant", content=f"```python\n{reference}\n```")

    async def close(self) -> None:
        await self._lease.release()

    async def _get_sandbox(self) -> Sandbox:
        return await self._lease.get()
