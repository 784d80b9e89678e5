"""The work of a training server: it keeps requests of tenants, computes them in their order, and hands answers out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from pathlib import Path

from agentrl.errors import AgentRLError, Blame, InvalidInput
from agentrl.rollout.engines.local.engine import LocalEngine
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.train.server.config import ServeTrainingConfig
from agentrl.train.server.execution import RunExecutor, TrainingQueue
from agentrl.train.server.learner import SharedBase
from agentrl.train.server.sampling import SampleAnswers, SampleBody, WeightsInTurn
from agentrl.train.server.served_run import Answer, ServedRun, Work
from agentrl.train.server.tenants import SamplerInfo, Tenant, Tenants

logger = logging.getLogger(__name__)
POLL_SECONDS = 20.0
"""Seconds that a question for an answer waits; clients wait for 45 s."""
KEPT_SAMPLES = 4096
"""Answers to requests for samples that are kept."""


class TrainingService:
    """The server without its wire."""

    def __init__(self, config: ServeTrainingConfig, model: Path, folder: Path, base: SharedBase | None = None) -> None:
        self.config, self.model = config, model
        self.names = tuple(dict.fromkeys((config.model.name, *config.names, str(model))))
        self.tenants = Tenants(folder / "tenants", config.tenants)
        self.base = base or SharedBase(model, config.trainer)
        if config.passes == "mixed":
            self.base.require_mixed()
        self.queue = TrainingQueue(RunExecutor(self.base, config), self.tenants.all)
        self.engine = LocalEngine(model, config.engine)
        self.weights = WeightsInTurn(self.engine, model)
        self.sampler = SampleAnswers(self.weights, model, config)
        self._samples: OrderedDict[tuple[str, str], asyncio.Task[Answer]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Compute while the block runs; what is being computed is finished after it."""
        computing = asyncio.ensure_future(self.queue.run())
        try:
            yield
        finally:
            self.queue.end()
            await asyncio.gather(computing, return_exceptions=True)
            self.queue.close()
            for task in self._samples.values():
                task.cancel()
            await asyncio.gather(*self._samples.values(), return_exceptions=True)
            await self.engine.close()
            self.base.close()

    def require_base(self, name: str) -> None:
        """Refuse another base than this server's."""
        if name not in self.names:
            raise ApiError(400, f"base_model={name!r}: this server has {', '.join(self.names)}", "unknown_model")

    def submit(self, tenant: Tenant, run: ServedRun, number: int, work: Work) -> dict[str, str]:
        """Keep a training run's request; returns where its answer will be."""
        if tenant.queued >= self.config.max_queued and not run.knows(number):
            raise ApiError(429, f"{tenant.queued} requests of this tenant wait", "queue_full", retry_after=1)
        run.accept(number, work)
        self.queue.wake()
        return {"request_id": f"{run.info.model_id}:{number}", "model_id": run.info.model_id}

    def submit_sample(self, tenant: Tenant, body: SampleBody) -> dict[str, object]:
        """Begin to sample, unless an earlier request of the same number has; returns where the answer will be.

        Raises:
            ApiError: too many wait, or the weights are gone.
        """
        sampler = tenant.sampler(body.sampling_session_id)
        request_id = f"{sampler.sampler_id}:{body.seq_id}"
        key = tenant.name, request_id
        if key not in self._samples:
            pending = sum(name == tenant.name and not task.done() for (name, _), task in self._samples.items())
            if pending >= self.config.max_queued:
                raise ApiError(429, f"{pending} samples of this tenant wait", "queue_full", retry_after=1)
            folder = self.folder_of(tenant, sampler)
            self._samples[key] = asyncio.ensure_future(self._sample(request_id, body, folder))
            self._forget_samples()
        ids = [f"{request_id}:{number}" for number in range(body.num_samples)]
        return {"request_id": request_id, "sample_sequence_ids": ids}

    def folder_of(self, tenant: Tenant, sampler: SamplerInfo) -> Path | None:
        """Return the folder of a sampler's weights; None: it samples from the base."""
        if sampler.folder is None:
            return None
        folder = tenant.path / sampler.folder
        if not folder.is_dir():
            kept = f"each run keeps its newest {self.config.keep_snapshots} unnamed ones (keep_snapshots)"
            raise ApiError(404, f"the weights of {sampler.sampler_id} have been removed; {kept}", "not_found")
        return folder

    async def _sample(self, request_id: str, body: SampleBody, folder: Path | None) -> Answer:
        try:
            return await self.sampler.sample(request_id, body, folder)
        except AgentRLError as error:
            return Answer.failure(str(error), user=error.blame is Blame.USER)
        except Exception as error:
            logger.exception("sampling for %s failed", request_id)
            return Answer.failure(f"{type(error).__name__}: {error}", user=False)

    def _forget_samples(self) -> None:
        for key in list(self._samples)[: len(self._samples) - KEPT_SAMPLES]:
            if self._samples[key].done():
                del self._samples[key]

    def cancel_sample(self, tenant: Tenant, request_id: str) -> None:
        """Stop sampling for somebody who has left."""
        if (task := self._samples.pop((tenant.name, request_id), None)) is not None:
            task.cancel()

    async def retrieve(self, tenant: Tenant, request_id: str, seconds: float = POLL_SECONDS) -> Answer | None:
        """Return a request's answer; None where it has none within so many seconds.

        Raises:
            ApiError: there is no such request. A sample's client asks anew where it is 410: this server was restarted.
        """
        task = self._samples.get((tenant.name, request_id))
        if task is not None:
            await asyncio.wait([task], timeout=seconds)
            return task.result() if task.done() and not task.cancelled() else None
        model_id, _, number = request_id.rpartition(":")
        if model_id in tenant.samplers:
            raise ApiError(410, f"{request_id}: the server was restarted, and samples are not kept", "gone")
        run = tenant.run(model_id)
        if not number.isdecimal() or not run.knows(int(number)):
            raise ApiError(404, f"{request_id}: there is no such request, or its answer is no longer kept", "not_found")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (found := run.ready(int(number))) is None:
                    await run.answered.wait()
                return found
        return None

    def resolve_sampler(self, tenant: Tenant, sampler_id: str, base: str | None, path: str | None) -> SamplerInfo:
        """Return a new sampling session's description."""
        if path is not None:
            folder, about = tenant.checkpoint(path)
            return SamplerInfo(sampler_id, base or about.base_model, str(folder.relative_to(tenant.path)), path)
        if base is None:
            raise InvalidInput("a sampling session needs base_model or model_path")
        self.require_base(base)
        return SamplerInfo(sampler_id, base)

    def health(self) -> dict[str, object]:
        """Return how much there is to do."""
        return {
            "ok": True,
            "model": self.config.model.name,
            "tenants": len(self.tenants.all),
            "runs": sum(len(tenant.runs) for tenant in self.tenants.all),
            "queued": sum(tenant.queued for tenant in self.tenants.all),
            "computed": self.queue.computed,
            "sampled_tokens": self.sampler.sampled,
            "samples_waiting": self.weights.waiting,
        }
