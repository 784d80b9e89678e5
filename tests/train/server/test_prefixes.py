"""Data as forests: shared prefixes once, each datum its own targets; and losses against their formulas."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from agentrl.errors import InvalidInput
from agentrl.models import tiny
from agentrl.train.server.learner import AdapterSpec, SharedBase, mixed_passes
from agentrl.train.server.losses import TARGETS, WIRE_LOSSES
from agentrl.train.server.messages import Datum, PassRequest
from agentrl.train.server.passes import AdamStep, RunAdapter
from agentrl.train.server.prefixes import shared_passes
from agentrl.train.trainers.torch_trainer.settings import TorchConfig

SHAPE = tiny.TinyShape(vocab=300, layers=2, width=32, heads=2, kv_heads=1, mlp=32, context=64)
tokens = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("base") / "model", ["one two three"] * 3, shape=SHAPE)


@pytest.fixture(scope="module")
def base(folder: Path) -> SharedBase:
    return SharedBase(folder, TorchConfig(device="cpu", token_budget=12))


def datum(ids: list[int], targets: list[int] | None = None, **inputs: list[float]) -> Datum:
    given = {"weights": np.ones(len(ids))} if not inputs or targets else {}
    arrays = {name: np.array(values, np.float32) for name, values in inputs.items()}
    return Datum(np.array(ids), {TARGETS: np.array(targets or ids), **given, **arrays})


@given(data=st.lists(tokens, min_size=1, max_size=6), budget=st.integers(1, 20))
@pytest.mark.slow
def test_each_distinct_prefix_is_one_token_of_a_forest_that_keeps_its_invariants(
    data: list[list[int]], budget: int
) -> None:
    passes = list(shared_passes([datum(ids) for ids in data], budget))
    seen: dict[int, list[tuple[int, int]]] = {}
    for shared in passes:
        shared.forest.check()
        parents = shared.forest.parents().tolist()
        ids = shared.forest.token_ids.tolist()

        def path(at: int, parents: list[int] = parents, ids: list[int] = ids) -> tuple[int, ...]:
            return (*(path(parents[at]) if parents[at] >= 0 else ()), ids[at])

        for index, place in shared.places.items():
            assert [path(at) for at in shared.rows.predictor[place].tolist()] == [
                tuple(data[index][: n + 1]) for n in range(len(data[index]))
            ]
            seen[index] = shared.rows.token_ids[place].tolist()
        mine = {tuple(data[index][: n + 1]) for index in shared.places for n in range(len(data[index]))}
        assert len(shared.forest) == len(mine)
        assert len(shared.forest) <= budget or len(shared.places) == 1
    assert seen == dict(enumerate(data))


def some_data(loss: str) -> list[Datum]:
    draw = random.Random(0)
    found = []
    for ids in ([1, 2, 3, 4, 5], [1, 2, 3, 9], [1, 2, 3, 4, 5, 6, 7], [8, 2], [1, 2, 3, 4, 5]):
        numbers = {name: [draw.uniform(-2, 1) for _ in ids] for name in WIRE_LOSSES[loss].inputs}
        arrays = {name: np.array(values, np.float32) for name, values in numbers.items()}
        found.append(Datum(np.array(ids), {TARGETS: np.array([draw.randrange(270) for _ in ids]), **arrays}))
    return found


def reference(loss: str, logp: torch.Tensor, datum: Datum) -> torch.Tensor:
    """The public service's formulas, written out a second time."""
    given = {name: torch.tensor(values) for name, values in datum.inputs.items() if name != TARGETS}
    if loss == "cross_entropy":
        return (-logp * given["weights"]).sum()
    ratio, advantage = torch.exp(logp - given["logprobs"]), given["advantages"]
    clipped = torch.clamp(ratio, 0.8, 1.2)
    if loss == "importance_sampling":
        return -(ratio * advantage).sum()
    if loss == "ppo":
        return -torch.minimum(ratio * advantage, clipped * advantage).sum()
    if loss == "cispo":
        return -(clipped.detach() * logp * advantage).sum()
    return -(logp * advantage - 0.5 * 0.05 * (logp - given["logprobs"]) ** 2).sum()


@pytest.mark.slow
@pytest.mark.parametrize("loss", WIRE_LOSSES)
def test_shared_prefixes_give_the_loss_and_the_gradient_of_separate_rows(
    base: SharedBase, folder: Path, loss: str
) -> None:
    adapter = base.new_adapter(AdapterSpec(rank=2, seed=1))
    with torch.no_grad():
        for matrix in adapter.parameters():
            matrix.normal_(std=0.2, generator=torch.Generator().manual_seed(7))
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = dict(merged.named_parameters())
    for name, (a, b) in adapter.matrices.items():
        weights[f"{name}.weight"].data += adapter.shape.scale * (b @ a).detach()
    data, total = some_data(loss), torch.zeros(())
    rows = []
    for each in data:
        logits = merged(torch.tensor(each.tokens)[None]).logits[0]
        logp = torch.log_softmax(logits, -1).gather(1, torch.tensor(each.inputs[TARGETS])[:, None])[:, 0]
        rows.append(logp.detach().numpy())
        total = total + reference(loss, logp, each)
    total.backward()
    found = base.run_pass(adapter, PassRequest("", 1, loss, data))
    assert found.metrics["loss:sum"] == pytest.approx(float(total.detach()), rel=1e-4)
    assert found.metrics["computed_tokens:sum"] < sum(len(each.tokens) for each in data)
    for ours, theirs in zip(found.logprobs, rows, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    for name, (a, b) in adapter.matrices.items():
        whole = weights[f"{name}.weight"].grad
        assert a.grad is not None
        assert b.grad is not None
        assert whole is not None
        scale = adapter.shape.scale
        torch.testing.assert_close(b.grad, scale * whole @ a.detach().T, atol=2e-4, rtol=2e-4)
        torch.testing.assert_close(a.grad, scale * b.detach().T @ whole, atol=2e-4, rtol=2e-4)


def test_a_run_computes_bit_for_bit_what_it_would_alone(base: SharedBase) -> None:
    def steps(run: RunAdapter, count: int, beside: RunAdapter | None = None) -> list[float]:
        losses = []
        for _ in range(count):
            for other in filter(None, (beside,)):
                base.run_pass(other, PassRequest("", 1, "importance_sampling", some_data("importance_sampling")))
                other.step(AdamStep(1e-2))
            losses.append(base.run_pass(run, PassRequest("", 1, "ppo", some_data("ppo"))).metrics["loss:sum"])
            run.step(AdamStep(1e-2, grad_clip_norm=1.0))
        return losses

    alone, together = (base.new_adapter(AdapterSpec(rank=2, seed=1)) for _ in range(2))
    assert steps(alone, 3) == steps(together, 3, base.new_adapter(AdapterSpec(rank=4, seed=2, mlp=False)))
    again = RunAdapter.restore(together.state(), base.device)
    assert steps(alone, 2) == steps(again, 2)
    assert all(torch.equal(a, b) for a, b in zip(alone.parameters(), again.parameters(), strict=True))


def test_requests_of_several_runs_in_one_pass_compute_what_each_would_alone(base: SharedBase) -> None:
    """Other ranks and layers, two requests of one run, and one that is forward only and learns nothing."""
    base.require_mixed()
    specs = (AdapterSpec(2, 1), AdapterSpec(4, 2, mlp=False), AdapterSpec(1, 3, attention=False))
    few = slice(3, 4)
    asked = [(0, "ppo", False), (1, "cross_entropy", False), (0, "dro", False), (2, "cispo", True)]
    parts = [slice(None), few, slice(None), few]

    def runs() -> list[RunAdapter]:
        found = [base.new_adapter(spec) for spec in specs]
        with torch.no_grad():
            for run in found:
                for matrix in run.parameters():
                    matrix.normal_(std=0.2, generator=torch.Generator().manual_seed(run.shape.rank))
        return found

    separate, together = runs(), runs()
    kinds = zip(asked, parts, strict=True)
    requests = [PassRequest("", 1, loss, some_data(loss)[part], forward) for (_, loss, forward), part in kinds]
    plain = [base.run_pass(separate[run], request) for (run, _, _), request in zip(asked, requests, strict=True)]
    works = [base.work(together[run], request) for (run, _, _), request in zip(asked, requests, strict=True)]
    whole = base.config.token_budget
    passes = list(mixed_passes(works, whole))
    assert all(len(one.whole.forest) <= whole for one in passes)
    assert [len(one.works) for one in passes] == [2, 2]
    for one in passes:
        one.whole.forest.check()
    for ours, theirs in zip(base.run_together(works), plain, strict=True):
        assert ours.metrics == {name: pytest.approx(value, rel=1e-5) for name, value in theirs.metrics.items()}
        for each, other in zip(ours.logprobs, theirs.logprobs, strict=True):
            np.testing.assert_allclose(each, other, atol=1e-5)
    for run, other in zip(together, separate, strict=True):
        for matrix, same in zip(run.parameters(), other.parameters(), strict=True):
            assert (matrix.grad is None) == (same.grad is None)
            if matrix.grad is not None and same.grad is not None:
                torch.testing.assert_close(matrix.grad, same.grad, atol=1e-5, rtol=1e-4)
    assert all(matrix.grad is None for matrix in together[2].parameters())


@pytest.mark.parametrize(
    ("data", "loss", "message"),
    [
        ([], "cross_entropy", "data is empty"),
        ([datum([1, 300])], "cross_entropy", "token id outside 0 to"),
        ([datum([1] * 65)], "cross_entropy", "65 tokens; 1 to 64"),
        ([datum([1], weights=[float("nan")])], "cross_entropy", "not finite"),
        ([datum([1], mask=[1.0])], "cross_entropy", "'weights'"),
        ([datum([1])], "ppo", "lacks 'advantages'"),
        ([datum([1], [1], mask=[1.0])], "cross_entropy", "'mask', which this loss does not read"),
        ([datum([1])], "gspo", "loss_fn='gspo' is not computed here"),
    ],
)
def test_what_can_not_be_computed_is_refused_by_name_and_changes_no_gradient(
    base: SharedBase, data: list[Datum], loss: str, message: str
) -> None:
    adapter = base.new_adapter(AdapterSpec(rank=1, seed=1))
    with pytest.raises(InvalidInput, match=message):
        base.run_pass(adapter, PassRequest("", 1, loss, data))
    assert all(parameter.grad is None for parameter in adapter.parameters())


def test_an_update_with_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(base: SharedBase) -> None:
    adapter = base.new_adapter(AdapterSpec(rank=1, seed=1))
    before = [parameter.detach().clone() for parameter in adapter.parameters()]
    adapter.parameters()[0].grad = torch.full_like(before[0], float("inf"))
    assert adapter.step(AdamStep())["skipped_updates"] == 1
    assert all(torch.equal(a, b) for a, b in zip(adapter.parameters(), before, strict=True))
