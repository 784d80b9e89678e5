"""Requests of training runs, computed one after the other in a thread of their own; tenants take turns."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.errors import AgentRLError, Blame, InvalidInput
from agentrl.models.adapters import read_adapter
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.train.server.checkpoints import SCHEME, STATE, CheckpointInfo, checked_name, read_about, write_checkpoint
from agentrl.train.server.config import ServeTrainingConfig
from agentrl.train.server.learner import AdapterSpec, SharedBase
from agentrl.train.server.messages import PROTOBUF, read_pass_request, write_pass_result
from agentrl.train.server.passes import AdamStep, PassWork, RunAdapter
from agentrl.train.server.served_run import Answer, ServedRun, Work
from agentrl.train.server.tenants import SamplerInfo, Tenant

logger = logging.getLogger(__name__)
CHANGES = frozenset(("create_model", "load_weights", "optim_step"))
"""Requests after which the state is written."""
TOKEN_BYTES = 64
"""A request with more bytes than this for each token that there is room for is not read to be mixed with others."""
SAVES = frozenset(("save_weights", "save_weights_for_sampler"))
"""Requests that are not computed again where their answers are known."""


class RunExecutor:
    """Computes the next request of a run, and writes what is to last before anybody gets the answer.

    Of all runs that are in memory, one has its optimizer's moments there: whose turn an update was last. Those of the
    others are in their states on the disk.
    """

    def __init__(self, base: SharedBase, config: ServeTrainingConfig) -> None:
        self.base, self.config = base, config
        self._apart = set[tuple[str, int]]()  # requests whose mixed pass failed
        self._updated: ServedRun | None = None  # the run whose moments are in memory
        self._kinds: dict[str, Callable[[Tenant, ServedRun, int, bytes], Answer]] = {
            "create_model": self._create,
            "load_weights": self._load,
            "forward_backward": self._pass,
            "optim_step": self._step,
            "save_weights": self._save,
            "save_weights_for_sampler": self._save_for_sampler,
        }

    def execute(self, tenant: Tenant, run: ServedRun) -> None:
        """Compute the request that is due."""
        number = run.computed + 1
        try:
            work, known = run.waiting[number], run.answer(number)
            if known is not None and (known.failed or work.kind in SAVES):
                return run.advance(number)
            self._compute(tenant, run, number, work, again=known is not None)
        except Exception as error:
            self._break(run, number, error)

    def _break(self, run: ServedRun, number: int, error: Exception) -> None:
        """End a run after an error of the disk, or of what was computed before: trying on would never end."""
        logger.error("request %d of %s", number, run.info.model_id, exc_info=error)
        run.broken = f"{type(error).__name__}: {error}"

    def execute_due(self, due: Sequence[tuple[Tenant, ServedRun]]) -> None:
        """Compute the first run's request, and with `passes=mixed` what others, and the same run, ask beside it."""
        if self.config.passes == "separate" or not self._compute_together(due):
            self.execute(*due[0])

    def _compute_together(self, due: Sequence[tuple[Tenant, ServedRun]]) -> bool:
        """Compute forward and backward passes in one; False, with nothing done, where there are not several."""
        found: list[tuple[ServedRun, int, PassWork]] = []
        left = self.base.mixed_tokens
        for _, run in due:
            number = run.computed + 1
            most = left if found else None
            while (work := self._mixable(run, number, most)) is not None:
                found.append((run, number, work))
                left, number = left - work.tokens, number + 1
                most = left
            if not found:
                return False  # the first run's turn is something else
        if len(found) < 2:
            return False
        try:
            results = self.base.run_together([work for _, _, work in found])
        except Exception:
            logger.exception("a mixed pass of %d requests failed; each is computed by itself", len(found))
            for run, number, _ in reversed(found):
                self._apart.add((run.info.model_id, number))
                run.rewind()  # half a gradient may have been added
            return True
        for (run, number, _), result in zip(found, results, strict=True):
            if run.broken is not None:
                continue
            try:
                run.keep(number, Answer(PROTOBUF, write_pass_result(result.logprobs, result.metrics)))
                run.advance(number)
            except Exception as error:
                self._break(run, number, error)
        return True

    def _mixable(self, run: ServedRun, number: int, most: int | None) -> PassWork | None:
        """Return a run's request of at most so many tokens, if it may be computed together with others."""
        asked = run.waiting.get(number)
        if asked is None or asked.kind != "forward_backward" or (run.info.model_id, number) in self._apart:
            return None
        if run.broken is not None or (most is not None and len(asked.body) > TOKEN_BYTES * most):
            return None
        if run.answer(number) is not None:
            return None
        try:
            work = self.base.work(self._restore(run), read_pass_request(asked.body))
        except Exception:  # by itself it fails again, and is answered
            return None
        return work if most is None or work.tokens <= most else None

    def _compute(self, tenant: Tenant, run: ServedRun, number: int, work: Work, *, again: bool) -> None:
        try:
            if number > 0:
                self._restore(run)
            answer = self._kinds[work.kind](tenant, run, number, work.body)
        except Exception as error:
            if again:
                raise
            return self._fail(run, number, error)
        run.keep(number, answer)
        if work.kind in CHANGES:
            run.save(number)
        run.advance(number)

    def _fail(self, run: ServedRun, number: int, error: Exception) -> None:
        """Answer with the failure. A user's leaves the run as it was; after another, it goes back to its state."""
        if isinstance(error, ApiError) or (isinstance(error, AgentRLError) and error.blame is Blame.USER):
            run.keep(number, Answer.failure(str(error), user=True))
            return run.advance(number)
        logger.error("request %d of %s failed", number, run.info.model_id, exc_info=error)
        run.keep(number, Answer.failure(f"{type(error).__name__}: {error}", user=False))
        run.rewind()

    def _restore(self, run: ServedRun) -> RunAdapter:
        if run.loaded is None:
            run.loaded = RunAdapter.restore(run.read_state(), self.base.device)
            self._hold_moments(run)
        return run.loaded

    def _hold_moments(self, run: ServedRun) -> RunAdapter:
        """Return a run's adapter with its moments in memory; no other run's are there."""
        last, self._updated, adapter = self._updated, run, run.adapter
        if last is not None and last is not run and last.loaded is not None:
            last.loaded.rest()
        if adapter.resting:
            adapter.wake(run.read_state())
        return adapter

    def _create(self, tenant: Tenant, run: ServedRun, number: int, body: bytes) -> Answer:
        info = run.info
        run.loaded = self.base.new_adapter(
            AdapterSpec(info.rank, info.seed, self.config.alpha, attention=info.attention, mlp=info.mlp)
        )
        return Answer.of({"model_id": info.model_id, "type": "create_model"})

    def _load(self, tenant: Tenant, run: ServedRun, number: int, body: bytes) -> Answer:
        request = json.loads(body)
        folder, about = tenant.checkpoint(request["path"])
        if request["optimizer"]:
            import torch

            if not (folder / STATE).exists():
                raise InvalidInput(f"{request['path']} has no optimizer state; load it without")
            state = torch.load(folder / STATE, weights_only=True)
            run.loaded = RunAdapter.restore({**state, "gradients": [None] * len(state["gradients"])}, self.base.device)
        else:
            run.loaded = RunAdapter.of(read_adapter(folder), self.base.device)
        self._hold_moments(run)
        run.write_info(replace(run.info, rank=about.rank, attention=about.attention, mlp=about.mlp))
        return Answer.of({"path": request["path"], "model_id": run.info.model_id, "type": "load_weights"})

    def _pass(self, tenant: Tenant, run: ServedRun, number: int, body: bytes) -> Answer:
        result = self.base.run_pass(run.adapter, read_pass_request(body))
        return Answer(PROTOBUF, write_pass_result(result.logprobs, result.metrics))

    def _step(self, tenant: Tenant, run: ServedRun, number: int, body: bytes) -> Answer:
        return Answer.of({"metrics": self._hold_moments(run).step(AdamStep(**json.loads(body)))})

    def _save(self, tenant: Tenant, run: ServedRun, number: int, body: bytes) -> Answer:
        request = json.loads(body)
        path = self._write(run, number, "weights", request, overwrite=request["overwrite"])
        return Answer.of({"path": path, "type": "save_weights"})

    def _save_for_sampler(self, tenant: Tenant, run: ServedRun, number: int, body: bytes) -> Answer:
        request = json.loads(body)
        if request["path"] is not None:
            path = self._write(run, number, "sampler_weights", request, overwrite=False)
            return Answer.of({"path": path, "type": "save_weights_for_sampler"})
        folder = run.path / "snapshots" / str(number)
        self._write_folder(run, number, folder, request, moments=False)
        run.remove_old_snapshots(self.config.keep_snapshots)
        sampler_id = f"{run.info.session_id}:sample:{request['sampling_session_seq_id']}"
        tenant.keep_sampler(SamplerInfo(sampler_id, run.info.base_model, str(folder.relative_to(tenant.path))))
        return Answer.of({"sampling_session_id": sampler_id, "type": "save_weights_for_sampler"})

    def _write(self, run: ServedRun, number: int, kind: str, request: dict[str, Any], *, overwrite: bool) -> str:
        name = checked_name(request["path"] or f"{number:06d}")
        path, folder = f"{SCHEME}{run.info.model_id}/{kind}/{name}", run.path / kind / name
        there = read_about(folder)
        if there is None or overwrite:
            self._write_folder(run, number, folder, request, moments=kind == "weights")
        elif there.request != number:
            raise InvalidInput(f"{path} exists already; overwrite=True replaces a training checkpoint")
        return path

    def _write_folder(
        self, run: ServedRun, number: int, folder: Path, request: dict[str, Any], *, moments: bool
    ) -> None:
        adapter = self._hold_moments(run) if moments else self._restore(run)
        info = run.info
        about = CheckpointInfo(info.base_model, info.rank, info.attention, info.mlp, number)
        if request["ttl_seconds"] is not None:
            about = replace(about, expires=about.created + request["ttl_seconds"])
        about = replace(about, metadata=request["user_metadata"])
        write_checkpoint(folder, self.base, adapter, about, moments=moments)


class TrainingQueue:
    """The order in which requests of all runs are computed: tenants take turns, and so do a tenant's runs."""

    def __init__(self, executor: RunExecutor, tenants: list[Tenant]) -> None:
        self.executor = executor
        self.computed = 0
        self._tenants = deque(tenants)
        self._last: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "agentrl-train")
        self._ending = False

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Compute until `end` is called."""
        loop = asyncio.get_running_loop()
        while not self._ending:
            self._wake.clear()
            first = self._next()
            if first is None:
                await self._wake.wait()
                continue
            due = [first, *(pair for pair in self._due() if pair[1] is not first[1])]
            before = {run.info.model_id: run.computed for _, run in due}
            await loop.run_in_executor(self._thread, self.executor.execute_due, due)
            for _, run in due:
                self.computed += max(0, run.computed - before[run.info.model_id])
                run.wake()

    def end(self) -> None:
        """Compute nothing more after the request that is being computed; what waits is on the disk."""
        self._ending = True
        self._wake.set()

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _due(self) -> list[tuple[Tenant, ServedRun]]:
        return [(tenant, run) for tenant in self._tenants for run in tenant.runs.values() if run.due]

    def _next(self) -> tuple[Tenant, ServedRun] | None:
        for _ in range(len(self._tenants)):
            tenant = self._tenants[0]
            self._tenants.rotate(-1)
            due = sorted(name for name, run in tenant.runs.items() if run.due)
            if due:
                last = self._last.get(tenant.name, "")
                name = next((name for name in due if name > last), due[0])
                self._last[tenant.name] = name
                return tenant, tenant.runs[name]
        return None
