"""The server's promises on repeated, reordered and failing requests, over its web application without a socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from agentrl.errors import UnknownName
from agentrl.models import tiny
from agentrl.overrides import validate
from agentrl.train.server.app import create_training_app
from agentrl.train.server.commands import serve_training
from agentrl.train.server.config import ServeTrainingConfig
from agentrl.train.server.learner import SharedBase
from agentrl.train.server.messages import PassRequest, read_fields, write_fields
from agentrl.train.server.passes import PassResult, PassWork, RunAdapter
from agentrl.train.server.sampling import WeightsInTurn
from agentrl.train.server.service import TrainingService
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from tests.train.server.test_prefixes import SHAPE

Client = httpx.AsyncClient


def tensor(values: list[float], dtype: str, number: int) -> bytes:
    return write_fields([(1, np.array(values, dtype).tobytes()), (3, number), (4, len(values))])


def body(run: str, seq: int, ids: list[int], loss: str = "cross_entropy") -> bytes:
    """A `ForwardBackwardRequest` of one datum, as the SDK writes it."""
    chunk = write_fields([(1, write_fields([(1, np.array(ids, "<i4").tobytes())]))])
    inputs = {"target_tokens": tensor(ids, "<i8", 2), "weights": tensor([1.0] * len(ids), "<f4", 1)}
    datum = [(1, chunk), *((2, write_fields([(1, name), (2, value)])) for name, value in inputs.items())]
    return write_fields([(1, run), (2, seq), (3, write_fields(datum)), (4, loss)])


class Asking:
    """A client of one tenant."""

    def __init__(self, service: TrainingService, client: Client) -> None:
        self.service, self.client = service, client
        self.key = service.tenants.all[0].key

    @property
    def base(self) -> FailingBase:
        """What computes the service's passes."""
        assert isinstance(self.service.base, FailingBase)
        return self.service.base

    async def post(self, path: str, content: Any, **headers: str) -> httpx.Response:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        return await self.client.post(f"/api/v1/{path}", content=data, headers={"X-API-Key": self.key, **headers})

    async def answer(self, request_id: str) -> httpx.Response:
        return await self.post("retrieve_future", {"request_id": request_id})

    async def run(self) -> str:
        session = (await self.post("create_session", {})).json()["session_id"]
        new = {"session_id": session, "model_seq_id": 0, "base_model": "base", "lora_config": {"rank": 2, "seed": 1}}
        return str((await self.answer((await self.post("create_model", new)).json()["request_id"])).json()["model_id"])

    async def ask(self, run: str, seq: int, ids: list[int] | None = None, loss: str = "cross_entropy") -> str:
        """A pass over these tokens, or an update; returns the request's id."""
        step = {"model_id": run, "seq_id": seq, "adam_params": {"learning_rate": 0.01}}
        asked = await (
            self.post("optim_step", step) if ids is None else self.post("forward_backward", body(run, seq, ids, loss))
        )
        return str(asked.json()["request_id"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("base") / "model", ["one two three"] * 3, shape=SHAPE)


class FailingBase(SharedBase):
    """Fails where it is told to, once the gradients of what fails were added.

    Attributes:
        sizes: how many requests each mixed pass had.
        fails_next: whether the next mixed pass fails.
        failing: the number, in its run, of a request that fails by itself.
    """

    fails_next, failing = False, 0

    def __init__(self, path: Path, config: TorchConfig) -> None:
        super().__init__(path, config)
        self.sizes: list[int] = []

    def run_together(self, works: Sequence[PassWork]) -> list[PassResult]:
        results = super().run_together(works)
        self.sizes.append(len(works))
        if self.fails_next:
            self.fails_next = False
            raise RuntimeError("no memory is left")
        return results

    def run_pass(self, adapter: RunAdapter, request: PassRequest) -> PassResult:
        result = super().run_pass(adapter, request)
        if request.seq_id == self.failing:
            raise RuntimeError("no memory is left")
        return result


@contextlib.asynccontextmanager
async def serving(folder: Path, path: Path, **more: str) -> AsyncIterator[Asking]:
    settings = {"model": str(folder), "names": "base", "max_queued": 6, "trainer": {"device": "cpu"}, **more}
    config = validate(settings, ServeTrainingConfig)
    service = TrainingService(config, folder, path, FailingBase(folder, config.trainer))
    transport = httpx.ASGITransport(create_training_app(service))
    async with service.running(), Client(transport=transport, base_url="http://localhost") as client:
        yield Asking(service, client)


@pytest.fixture
async def asking(folder: Path, tmp_path: Path) -> AsyncIterator[Asking]:
    async with serving(folder, tmp_path) as found:
        yield found


@pytest.mark.slow
async def test_requests_are_computed_once_and_in_their_order_however_they_are_sent(asking: Asking) -> None:
    one, other = await asking.run(), await asking.run()
    sent = {1: [5, 6, 7], 2: [5, 6, 8], 3: None, 4: [5, 6, 7]}
    plain = [await asking.answer(await asking.ask(one, seq, ids)) for seq, ids in sent.items()]
    ids = [await asking.ask(other, seq, sent[seq]) for seq in (4, 2, 2, 3, 1, 3, 1)]
    mixed = {asked: await asking.answer(asked) for asked in ids}
    assert [answer.content for answer in plain] == [mixed[f"{other}:{seq}"].content for seq in sent]
    again = await asking.answer(await asking.ask(other, 3))
    assert again.content == plain[2].content
    adapter = asking.service.tenants.all[0].runs[other].adapter
    assert adapter.steps == 1


@pytest.mark.slow
async def test_one_run_at_a_time_has_its_moments_in_memory_and_each_learns_as_alone(asking: Asking) -> None:
    """The others' are on the disk, from which weights that are saved to go on with have them too."""
    alone, *both = [await asking.run() for _ in range(3)]
    sent = {1: [5, 6, 7], 2: None, 3: [6, 7, 8], 4: None, 5: [5, 7], 6: None}
    plain = {seq: await asking.answer(await asking.ask(alone, seq, ids)) for seq, ids in sent.items()}
    tenant = asking.service.tenants.all[0]
    adapters = [tenant.runs[run].adapter for run in (alone, *both)]
    for seq, ids in sent.items():
        for run in both:
            answer = await asking.answer(await asking.ask(run, seq, ids))
            assert answer.content == plain[seq].content
            awake = [adapter for adapter in adapters if adapter is not None and adapter.optimizer.state]
            assert len(awake) == 1
    save = await asking.post("save_weights", {"model_id": both[0], "seq_id": 7, "path": "here"})
    path = (await asking.answer(save.json()["request_id"])).json()["path"]
    saved, last = torch.load(tenant.checkpoint(path)[0] / "state.pt"), tenant.runs[alone].read_state()
    ours, theirs = (state["optimizer"]["state"] for state in (saved, last))
    assert ours.keys() == theirs.keys() != set()
    assert all(torch.equal(ours[at]["exp_avg"], theirs[at]["exp_avg"]) for at in ours)


@pytest.mark.slow
async def test_mixed_passes_are_answered_as_separate_ones_also_where_one_fails(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs' passes wait while a third's is computed; one pass of each is its user's mistake."""
    sent = {1: [5, 6, 7], 2: [5, 9999], 3: [5, 6, 8, 9]}
    norms: dict[str, list[float]] = {}
    for passes in ("separate", "mixed"):
        entered, gate = threading.Event(), threading.Event()
        async with serving(folder, tmp_path / passes, passes=passes, max_queued="12") as asking:
            asking.base.sizes.clear()  # what it was tried with as it started
            asking.base.fails_next = True
            executor = asking.service.queue.executor
            execute = executor.execute_due

            def execute_later(due: Any, execute: Any = execute, entered: Any = entered, gate: Any = gate) -> None:
                entered.set()
                gate.wait(60)
                execute(due)

            runs, other, norms[passes] = [await asking.run(), await asking.run()], await asking.run(), []
            monkeypatch.setattr(executor, "execute_due", execute_later)
            for count, first in enumerate((1, 5), 1):
                gate.clear()
                entered.clear()
                await asking.ask(other, count, [5, 6])
                await asyncio.to_thread(entered.wait, 60)
                asked = {(seq, run): await asking.ask(run, seq + first - 1, sent[seq]) for seq in sent for run in runs}
                gate.set()
                for (seq, _), request in asked.items():
                    assert (b"token id outside" in (await asking.answer(request)).content) == (seq == 2)
                for run in runs:
                    step = await asking.answer(await asking.ask(run, first + 3))
                    norms[passes].append(step.json()["metrics"]["grad_norm"])
        assert asking.base.sizes == ([2, 2, 2, 2] if passes == "mixed" else [])
    assert norms["mixed"] == pytest.approx(norms["separate"], rel=1e-5)


@pytest.mark.slow
async def test_a_failure_of_the_server_leaves_the_gradient_as_it_was_before(asking: Asking) -> None:
    one, other = await asking.run(), await asking.run()
    plain = [await asking.answer(await asking.ask(one, seq, ids)) for seq, ids in enumerate(([5, 6], None), 1)]
    await asking.answer(await asking.ask(other, 1, [5, 6]))
    asking.base.failing = 2
    failed = (await asking.answer(await asking.ask(other, 2, [7, 8]))).json()
    assert failed == {"error": "RuntimeError: no memory is left", "category": "server"}
    assert (await asking.answer(await asking.ask(other, 3))).content == plain[1].content


async def test_users_mistakes_are_answered_and_the_run_goes_on(asking: Asking) -> None:
    run = await asking.run()
    wrong = (await asking.answer(await asking.ask(run, 1, [5, 9999]))).json()
    assert wrong["category"] == "user"
    assert "token id outside" in wrong["error"]
    assert dict(read_fields((await asking.answer(await asking.ask(run, 2, [5, 6]))).content))[1] == b"ArrayRecord"
    cut = await asking.post("forward_backward", body(run, 3, [5, 6])[:-3])
    assert cut.status_code == 400


async def test_limits_keys_and_unknown_addresses_have_codes_that_clients_understand(asking: Asking) -> None:
    run = await asking.run()
    for seq in range(2, 8):  # 1 is missing, so that they wait
        assert (await asking.ask(run, seq, [5, 6])).endswith(f":{seq}")
    full = await asking.post("forward_backward", body(run, 8, [5, 6]))
    assert (full.status_code, full.headers["x-should-retry"]) == (429, "true")
    assert (await asking.ask(run, 7, [5, 6])).endswith(":7")  # sent again, it is no further one
    assert (await asking.service.retrieve(asking.service.tenants.all[0], f"{run}:7", 0.01)) is None
    stranger = await asking.post("optim_step", {}, **{"X-API-Key": "tml-another"})
    assert stranger.status_code == 401
    nowhere = await asking.post("copy_weights", {})
    assert (nowhere.status_code, nowhere.headers["x-should-retry"]) == (404, "false")
    assert (await asking.client.get("/health")).json()["queued"] == 6


class Switched:
    """An engine that knows what was published to it, and during what."""

    def __init__(self) -> None:
        self.number = self.running = self.published = 0

    def version(self) -> int:
        return self.number

    async def publish(self, weights: Any, version: int) -> None:
        assert not self.running
        await asyncio.sleep(0)
        self.number, self.published = version, self.published + 1


async def test_an_engine_is_given_weights_while_idle_and_once_for_all_who_wait_for_them() -> None:
    engine, held = Switched(), list[str]()
    given: Any = (engine, Path("base"), lambda folder, base: held.append(str(folder)))
    weights = WeightsInTurn(*given)

    async def sample(folder: str, leave: bool) -> None:
        async with weights.holding(Path(folder)):
            engine.running += 1
            assert held[-1] == folder
            await asyncio.sleep(0)
            engine.running -= 1
            if leave:
                raise asyncio.CancelledError

    tasks = [asyncio.ensure_future(sample(folder, n % 3 == 0)) for n, folder in enumerate("abababccab")]
    tasks[4].cancel()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert held == ["a", "b", "c"]
    await asyncio.gather(*(sample("c", False) for _ in range(3)))
    assert (engine.published, engine.running, weights.waiting) == (3, 0, 0)


def test_a_new_server_that_can_not_start_leaves_no_folder_that_the_next_one_stumbles_over(tmp_path: Path) -> None:
    """After a wrong model's name the right one was refused: the folder had a server's runs already."""
    folder = tmp_path / "runs" / "server"
    for _ in range(2):
        with pytest.raises(UnknownName, match="unknown model"):
            serve_training({"model": str(tmp_path / "none"), "port": 0, "run_dir": str(folder)})
        assert not folder.exists()
