"""`env=swe`: an agent repairs a repository, and hidden tests score its changes.

An episode has two sandboxes, one after the other: the agent's, and a fresh one for scoring, which gets nothing but the
changed files (`changes`, `scoring`). The first is prepared while the model generates its first turn; it is released
before the second is acquired, so that episodes can't deadlock.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from agentrl import tracing
from agentrl.envs.base import Env, reward
from agentrl.envs.builtin.swe import building
from agentrl.envs.builtin.swe.changes import Changes, PatchRefused
from agentrl.envs.builtin.swe.choice import choose
from agentrl.envs.builtin.swe.limits import EpisodeLimits, LimitMeter
from agentrl.envs.builtin.swe.prebuilt import REWARD
from agentrl.envs.builtin.swe.prompts import FORMAT_ERROR, commands, opening
from agentrl.envs.builtin.swe.repair import TINY_RECIPE, Repair
from agentrl.envs.builtin.swe.scoring import ScoringResult
from agentrl.envs.builtin.swe.source import RepositorySource, source_of
from agentrl.envs.builtin.swe.task import SweTask
from agentrl.envs.builtin.swe.tools import Step, SweTools
from agentrl.envs.builtin.swe.workspace import SPEC
from agentrl.envs.data.rows import ending_of
from agentrl.envs.sandboxes import Supplier, supplier
from agentrl.errors import AgentError, ConfigError, EnvError, StateUnsupported
from agentrl.tools.sandbox.base import Sandbox, Snapshot
from agentrl.types import Message, Session, StepResult, Task

__all__ = ["SPEC", "Swe"]

PROVING = 4
"""Tasks that are proven at once, the first time that they are used."""
KEPT_PATCH = 100_000
"""Bytes of the patch that a session keeps."""


class Swe(Env):
    """Repair a repository in a sandbox; hidden tests score the result.

    Args:
        form: "full", or "repair": single lines of tiny programs, for a tiny model.
        path: a folder of tasks, or of one (task.toml, instruction.md, environment/, tests/, solution/), or a data set's
            rows as .jsonl or .parquet; without it the built-in ones.
        layout: whose rows these are: auto, swebench, swegym, smith, r2e.
        image: their images' name, in place of what the layout says; {id} stands for the row's name.
        build: whether the images of a folder's tasks are built from their Dockerfiles, before they are first played.
        fresh_tests: whether tests of Harbor's and Terminal-Bench's tasks run in a new sandbox, on what was changed in
            the working directory; false: in the agent's own, as there.
        test_command: their tests' command, in place of what the layout says.
        difficulty: easy, medium or hard; without it all.
        tools: "all" is bash, an editor and submit; "bash" is one command in each answer, as mini-swe-agent works.
        sandbox: docker, or subprocess, which isolates nothing.
        partial: whether passing a part of the tests is rewarded in part.
        steps: answers that the agent may give.
        seconds: from the first message on; without it what the task says, or 600.
        tokens: of all messages together, as estimated from their length.
        command_seconds: of one command.
        output_bytes: of one command's output; the middle of a longer one is left out.
    """

    def __new__(cls, form: str = "full", **options: Any) -> Any:
        """An environment of the given form; `repair` has a class of its own."""
        return Repair(form, **options) if form == "repair" and cls is Swe else super().__new__(cls)

    needs = "Docker"

    def __init__(
        self,
        form: Literal["full", "repair"] = "full",
        path: str | None = None,
        layout: str = "auto",
        image: str | None = None,
        build: bool = False,
        fresh_tests: bool = True,
        test_command: str | None = None,
        difficulty: Literal["easy", "medium", "hard"] | None = None,
        tools: Literal["all", "bash"] = "all",
        sandbox: str = "docker",
        partial: bool = False,
        steps: int = 40,
        seconds: float | None = None,
        tokens: int = 60_000,
        command_seconds: float = 20.0,
        output_bytes: int = 8_000,
    ) -> None:
        if build and (path is None or ending_of(path) or image is not None):
            raise ConfigError("env.build=true: allowed with env.path=FOLDER and without env.image, which names others")
        self.backend, self.partial, self.build, self._fresh_tests = sandbox, partial, build, fresh_tests
        given = {"image": image, "test_command": test_command}
        options = tuple((key, value) for key, value in given.items() if value is not None)
        self._chosen = path, layout, options, difficulty
        self.bash_only = tools == "bash"
        self._seconds, own = seconds, {} if seconds is None else {"seconds": seconds}
        self.limits = EpisodeLimits(
            steps=steps, tokens=tokens, command_seconds=command_seconds, output_bytes=output_bytes, **own
        )
        self.max_turns = steps
        offered = SweTools(self.limits, self.end, self.bash_only)
        self._toolkit = offered.toolkit
        for tool in offered.tools:
            self.tools.add(tool)
        self._meter = LimitMeter(self.limits)
        self._begun: tuple[SweTask, RepositorySource] | None = None
        self._opening: asyncio.Task[Sandbox] | None = None
        self._plan: list[Step] | None = None
        self.waited, self._used = 0.0, False

    @classmethod
    def recipe(cls, model: str) -> dict[str, Any]:
        """The tiny form for a tiny model; larger token limits for a real one."""
        if model == "tiny":
            return TINY_RECIPE
        return {
            "rollout.concurrency": 16,
            "rollout.groups_per_step": 4,
            "rollout.turn_tokens": 1024,
            "rollout.session_tokens": 16384,
            "rollout.turn_timeout": 600.0,
            "rollout.timeout": 3600.0,
        }

    # ------------------------------------------------------------------ the episode

    def tasks(self, split: str = "train") -> list[Task]:
        return choose(*self._chosen, split, self.build).copy()

    async def prepare(self, tasks: Sequence[Task], sessions: int) -> None:
        """Have sandboxes created for the next episodes, and the tasks proven that were not used before.

        Raises:
            InvalidInput: a task can't be scored; the message says why.
        """
        problems = {task.id: SweTask.of(task) for task in tasks}
        for problem in problems.values():
            await self._ensure_image(problem)
        specs = [source_of(problems[task.id]).spec for task in tasks] or [SPEC]
        kinds = Counter(spec.key for spec in specs)
        for spec in {spec.key: spec for spec in specs}.values():
            await self._supplier.check(spec)
            await self._supplier.prepare(spec, -(-sessions * kinds[spec.key] // len(specs)))
        proving = asyncio.Semaphore(PROVING)

        async def prove(task: Task) -> None:
            async with proving:
                await source_of(SweTask.of(task)).prove(self._supplier)

        await asyncio.gather(*(prove(task) for task in {task.id: task for task in tasks}.values()))

    async def reset(self, task: Task, *, seed: int | None = None) -> list[Message]:
        self._opening = asyncio.create_task(self._open(await self._begin(task)))
        said = [Message(role="user", content=opening(self._problem.instruction, self.limits, self.bash_only))]
        self._meter.count(said)
        return said

    async def _begin(self, task: Task) -> RepositorySource:
        problem = SweTask.of(task)
        if self.limits.command_seconds > self.tools.timeout:
            raise ConfigError(
                f"env.command_seconds = {self.limits.command_seconds:g}: allowed are at most "
                f"rollout.tool_timeout={self.tools.timeout:g}, which ends the call; give a larger one"
            )
        if self._seconds is None:
            self.limits = replace(self.limits, seconds=problem.agent_timeout)
        source = source_of(problem, self._fresh_tests)
        self._begun = problem, source
        await self._ensure_image(problem)
        await self._supplier.check(source.spec)
        await source.prove(self._supplier)
        await self._release_sandbox()
        self._meter, self._plan, self.waited, self._used = LimitMeter(self.limits), None, 0.0, False
        return source

    def _require_begun(self) -> tuple[SweTask, RepositorySource]:
        if self._begun is None:
            raise EnvError("no episode has begun")
        return self._begun

    @property
    def _problem(self) -> SweTask:
        return self._require_begun()[0]

    @property
    def _source(self) -> RepositorySource:
        return self._require_begun()[1]

    async def _ensure_image(self, problem: SweTask) -> None:
        """Have the image built that a task's Dockerfile makes, where that was asked for."""
        if self.build and self.backend == "docker" and problem.image and not problem.commits:
            await building.ensure(building.context_of(str(self._chosen[0]), problem.id), problem.image)

    async def state(self) -> dict[str, Any]:
        """The used part of the limits, and the sandbox's files once a tool has used it."""
        if self._opening is None:
            raise StateUnsupported("the episode is over: its sandbox has been released")
        state = {"limits": self._meter.state(), "waited": self.waited, "tools": self._toolkit.state()}
        if not self._used:
            return state | {"sandbox": None, "source": None}
        files = await (await self._get_sandbox()).snapshot()
        return state | {"sandbox": files.plain(), "source": self._source.state()}

    async def restore(self, task: Task, state: dict[str, Any]) -> None:
        """Continue in a sandbox with the same files, which is opened meanwhile; processes have ended."""
        source = await self._begin(task)
        self._meter.restore(state["limits"])
        self._toolkit.restore(state["tools"])
        self.waited, self._used = state["waited"], state["sandbox"] is not None
        if not self._used:
            self._opening = asyncio.create_task(self._open(source))
            return
        source.restore(state["source"])
        self._opening = asyncio.create_task(self._reopen(source, Snapshot.of(state["sandbox"])))

    async def brief(self, task: Task) -> Task:
        """The instruction and the container to work in; neither the hidden tests nor the solution."""
        sandbox = await self._get_sandbox()
        known = {"instruction": self._problem.instruction, "container": sandbox.id, "workdir": sandbox.workdir}
        return Task(id=task.id, data={**known, "steps": self.limits.steps, "seconds": self.limits.seconds})

    async def step(self, message: Message) -> StepResult:
        """Run the agent's calls, and append a notice where a limit is near."""
        self._meter.steps += 1
        self._meter.count([message])
        if message.tool_calls or (self.bash_only and commands(message.text)):
            await self._get_sandbox()  # not within a tool's timeout: the wait for a container is not the agent's
        result = await (self._one_command(message) if self.bash_only else self.run_tools(message))
        self._meter.count(result.messages)
        if not result.terminated:
            result.truncated = self._meter.spent is not None
            notice = self._meter.notice()
            if notice and result.messages:
                last = result.messages[-1]
                result.messages[-1] = last.model_copy(update={"content": f"{last.text}\n{notice}".lstrip()})
        return result

    @reward
    async def solved(self, session: Session) -> float:
        """1 where all required tests pass (with `partial`, a part); unsubmitted work counts as it stands."""
        try:
            changes, verdict = await self._run_tests()
        except AgentError as error:  # its tree can't be read, or its sandbox ran out of memory
            session.info["swe"] = {"note": str(error)}
            return 0.0
        session.timings["sandbox_wait"] = self.waited
        if verdict is None:
            session.info["swe"] = {"note": "nothing was changed"}
            return 0.0
        session.info["swe"] = {"note": verdict.note, "failed": dict(verdict.failures)}
        if verdict.rewards:
            session.info["swe"]["rewards"] = dict(verdict.rewards)
        patch = await asyncio.to_thread(self._source.patch, changes, KEPT_PATCH)  # the agent decides how long
        session.info["patch"] = patch.decode(errors="replace")
        return reward_of(self._problem, verdict, self.partial)

    async def close(self) -> None:
        await self._release_sandbox()

    def expert(self, messages: Sequence[Message]) -> Message:
        if self._plan is None:
            self._plan = self._source.expert(self.bash_only)
        done = sum(message.role == "assistant" for message in messages)
        name, arguments = self._plan[min(done, len(self._plan) - 1)]
        return self.call(name, **arguments)

    async def _one_command(self, message: Message) -> StepResult:
        """Run the one command of an answer, a call or a code block; any other number is answered with an error."""
        calls, blocks = message.tool_calls or [], commands(message.text)
        if len(calls) == 1:
            return await self.run_tools(message)
        if not calls and len(blocks) == 1:
            result = await self.run_tools(self.call("bash", command=blocks[0]))
            result.messages = [Message(role="user", content=result.messages[0].content)]
            return result
        words = FORMAT_ERROR.format(count=len(calls or blocks))
        if not calls:
            return StepResult([Message(role="user", content=words)])
        return StepResult([Message(role="tool", content=words, tool_call_id=call.id) for call in calls])

    # ------------------------------------------------------------------ sandboxes

    @property
    def _supplier(self) -> Supplier:
        return supplier(self.backend)

    async def _get_sandbox(self) -> Sandbox:
        if self._opening is None:
            raise EnvError("the episode is over: its sandbox has been released")
        began, self._used = time.monotonic(), True
        with tracing.span("sandbox"):
            sandbox = await asyncio.shield(self._opening)
        self.waited += time.monotonic() - began
        return sandbox

    async def _open(self, source: RepositorySource) -> Sandbox:
        sandbox, _ = await self._supplier.acquire(source.spec)
        try:
            await source.open(sandbox)
        except BaseException:
            await asyncio.shield(self._supplier.release(sandbox))
            raise
        return sandbox

    async def _reopen(self, source: RepositorySource, files: Snapshot) -> Sandbox:
        sandbox, _ = await self._supplier.acquire_restored(source.spec, files)
        return sandbox

    async def _run_tests(self) -> tuple[Changes, ScoringResult | None]:
        """Return what the agent changed, and the tests' verdict; None where it did nothing."""
        source = self._source
        if not source.in_place:
            changes = await self._take_changes()
            return changes, await self._judge(changes) if changes else None
        if not self._used:
            return {}, None
        sandbox = await self._get_sandbox()
        try:
            changes = await source.changes(sandbox)
        except PatchRefused:  # too much to be shown; the tests find it where it is
            changes = {}
        verdict = await source.judge(changes, sandbox)
        await self._release_sandbox()
        return changes, verdict

    async def _take_changes(self) -> Changes:
        if not self._used:
            return {}
        changes = await self._source.changes(await self._get_sandbox())
        await self._release_sandbox()
        return changes

    async def _judge(self, changes: Changes) -> ScoringResult:
        source = self._source
        verdict, waited = await self._supplier.run(source.spec, lambda sandbox: source.judge(changes, sandbox))
        self.waited += waited
        return verdict

    async def _release_sandbox(self) -> None:
        opening, self._opening = self._opening, None
        await self._supplier.release_opened(opening)


def reward_of(problem: SweTask, verdict: ScoringResult, partial: bool) -> float:
    """The reward of a verdict; `partial`: the passed share of fail_to_pass times that of pass_to_pass.

    Of a task that writes its reward it is that, from 0 to 1, and without `partial` whether it is 1.
    """
    if partial and REWARD in verdict.rewards:
        return min(max(verdict.rewards[REWARD], 0.0), 1.0)
    if not partial or not problem.required:
        return float(verdict.solved)
    return verdict.share(problem.fail_to_pass) * verdict.share(problem.pass_to_pass)
