"""inspect_ai's own evaluation of a task, of which each episode is a sample.

The library can add samples to an evaluation under way (`SampleSource`, `enqueue_sample`). So a task has one evaluation,
in a thread of its own for as long as the process lives: an episode adds its sample, as an epoch of its own, and the
library runs solver, tools, limits and scorers. The evaluated model is a provider of ours, `agentrl/policy`: it hands
each request to the sample's episode and waits for its agent's turn.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from inspect_ai import SampleSource, Task, enqueue_sample, eval_async, task_with
from inspect_ai._eval import eval as evaluations
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalSample
from inspect_ai.model import ChatMessage, GenerateConfig, ModelAPI, ModelOutput, get_model, modelapi
from inspect_ai.solver._task_state import sample_state
from inspect_ai.tool import ToolChoice, ToolInfo
from inspect_ai.util import LimitExceededError
from inspect_ai.util._display import init_display_type

from agentrl.common.scratch import ScratchFolder
from agentrl.errors import EnvError

CONNECTIONS = 100_000
"""Turns that may be waited for at once, and samples under way; the library's own limits are for providers' APIs."""
POLICY = "agentrl/policy"
START_SECONDS = 120.0
"""Seconds that an evaluation may take until its first sample can be added."""
_epochs = itertools.count(1)
_episodes: dict[int, _Episode] = {}
"""The episodes under way, by the epochs that their samples are; over all evaluations."""


@dataclass(frozen=True, eq=False)
class _Request:
    """A request for a turn."""

    messages: list[ChatMessage]
    tools: list[ToolInfo]
    answer: Future[ModelOutput] = field(default_factory=Future)


class _Episode:
    """A sample under way, as the episode sees it: requests one after another, then the sample with its scores."""

    def __init__(self) -> None:
        self.epoch = next(_epochs)
        self.cut = False
        self.ended: EvalSample | None = None
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[_Request | EvalSample | Exception] = asyncio.Queue()
        self._asked: set[_Request] = set()

    async def next(self) -> _Request | EvalSample:
        """The next request, or the sample at its end."""
        if self.ended is not None:
            return self.ended
        event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        if isinstance(event, EvalSample):
            self.ended = event
        return event

    async def end(self) -> EvalSample:
        """The sample at its end; its requests, from now on, are answered by a limit that was exceeded."""
        self.cut_off()
        while isinstance(event := await self.next(), _Request):
            pass
        return event

    def cut_off(self) -> None:
        """Answer all requests, also those to come, by a limit that was exceeded."""
        self.cut = True
        for request in list(self._asked):
            if not request.answer.done():
                request.answer.set_exception(_limit())

    async def ask(self, messages: list[ChatMessage], tools: list[ToolInfo]) -> ModelOutput:
        """Return the agent's next message; called in the evaluation's thread."""
        request = _Request(messages, tools)
        self._asked.add(request)
        if self.cut:
            raise _limit()
        self.tell(request)
        try:
            return await asyncio.wrap_future(request.answer)
        finally:
            self._asked.discard(request)

    def tell(self, event: _Request | EvalSample | Exception) -> None:
        """Tell the episode something; from any thread."""
        with suppress(RuntimeError):  # its event loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)


class InspectEvaluation(SampleSource):  # type: ignore[misc]  # the library may not be there
    """The evaluation of one task, which ends with the process."""

    def __init__(self, task: Task, name: str, roles: Mapping[str, str]) -> None:
        self.samples = list(task.dataset)
        self._task, self._name, self._roles = task, name, dict(roles)
        self._added = asyncio.Event()
        self._context: Future[tuple[asyncio.AbstractEventLoop, contextvars.Context]] = Future()
        self._running: set[_Episode] = set()
        self._failed: Exception | None = None
        self._logging = list(logging.getLogger().handlers), logging.getLogger().level
        threading.Thread(target=self._run, name=f"agentrl-{name}", daemon=True).start()

    async def begin(self, place: int) -> _Episode:
        """Add a sample to the evaluation; EnvError where the evaluation has ended, or does not begin."""
        loop, context = await asyncio.wait_for(asyncio.wrap_future(self._context), START_SECONDS)
        episode, sample = _Episode(), self.samples[place].model_copy(deep=True)
        sample.id = place + 1 if sample.id is None else sample.id
        _episodes[episode.epoch] = episode
        self._running.add(episode)
        if self._failed is not None:
            raise self._failed
        loop.call_soon_threadsafe(self._add, sample, episode.epoch, context=context)
        return episode

    def _add(self, sample: Sample, epoch: int) -> None:
        enqueue_sample(sample, epoch=epoch)
        self._added.set()

    def initial_samples(self) -> list[Sample]:
        """There are none: an episode adds its own."""
        return []

    async def next_samples(self) -> list[Sample]:
        """Wait until an episode has added its sample."""
        if not self._context.done():
            root = logging.getLogger()
            root.handlers[:], level = self._logging  # the library's own evaluations log to the terminal
            root.setLevel(level)
            evaluations._eval_async_running = False  # it takes one at a time, though all state is a context's own
            self._context.set_result((asyncio.get_running_loop(), contextvars.copy_context()))
        await self._added.wait()
        self._added.clear()
        return []

    async def sample_complete(self, sample: EvalSample) -> None:
        """Give a sample that has ended to its episode."""
        if (episode := _episodes.pop(sample.epoch, None)) is not None:
            self._running.discard(episode)
            episode.tell(sample)

    def _run(self) -> None:
        folder, error = ScratchFolder(), None
        try:
            asyncio.run(self._evaluate(str(folder.path)))
        except Exception as raised:
            error = raised
        folder.close()
        reason = f": {type(error).__name__}: {error}" if error else ""
        self._failed = EnvError(f"{self._name}: the library's evaluation has ended{reason}")
        if not self._context.done():
            self._context.set_exception(self._failed)
        for episode in list(self._running):
            _episodes.pop(episode.epoch, None)
            episode.tell(self._failed)

    async def _evaluate(self, folder: str) -> None:
        init_display_type("none")
        config = GenerateConfig(max_connections=CONNECTIONS)
        logs = await eval_async(
            task_with(self._task, dataset=self),
            model=get_model(POLICY, memoize=False, config=config),
            model_roles=dict(self._roles),
            log_dir=folder,
            log_samples=False,
            log_realtime=False,
            score_display=False,
            ctl_server=False,
            fail_on_error=False,
            retry_on_error=0,
            max_samples=CONNECTIONS,
        )
        if failed := next((log.error for log in logs if log.error is not None), None):
            raise EnvError(failed.message)  # such as a sandbox that it can't start


@modelapi(name="agentrl")
class _Policy(ModelAPI):  # type: ignore[misc]
    """The evaluated model: the agent of the episode whose sample asks."""

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        state = sample_state()
        episode = None if state is None else _episodes.get(state.epoch)
        if episode is None:
            raise _limit()
        return await episode.ask(input, tools)

    def max_connections(self) -> int:
        return CONNECTIONS


def _limit() -> LimitExceededError:
    return LimitExceededError("custom", value=1, limit=1)
