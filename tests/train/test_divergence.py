"""Divergences from a teacher equal naive ones over whole logits, in value and gradient, however they are cut up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from agentrl.train.algorithms.divergences import IDS, LOGPS, STATES, Divergence
from agentrl.train.forest.columns import Column
from agentrl.train.forest.forest import Rows
from agentrl.train.trainers.teachers.divergence import VocabularyHead, row_divergences

ROWS, WIDTH, VOCABULARY = 7, 5, 23


def gkd(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """TRL's GKDTrainer.generalized_jsd_loss (Apache-2.0), summed over the vocabulary, from log-probabilities."""
    if beta == 0:
        return functional.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
    if beta == 1:
        return functional.kl_div(teacher, student, reduction="none", log_target=True).sum(-1)
    b = torch.tensor(beta, dtype=student.dtype)
    mixture = torch.logsumexp(torch.stack([student + torch.log1p(-b), teacher + torch.log(b)]), dim=0)
    of_teacher = functional.kl_div(mixture, teacher, reduction="none", log_target=True)
    of_student = functional.kl_div(mixture, student, reduction="none", log_target=True)
    return (beta * of_teacher + (1 - beta) * of_student).sum(-1)


def drawn(seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Hidden states, heads and temperatures, all random, and a row's weight in the loss."""
    random = torch.Generator().manual_seed(seed)
    made = {
        "states": torch.randn(ROWS, WIDTH, generator=random, dtype=torch.float64),
        "weight": torch.randn(VOCABULARY, WIDTH, generator=random, dtype=torch.float64),
        "bias": torch.randn(VOCABULARY, generator=random, dtype=torch.float64),
        "teacher_states": torch.randn(ROWS, WIDTH + 1, generator=random, dtype=torch.float64),
        "teacher_weight": torch.randn(VOCABULARY, WIDTH + 1, generator=random, dtype=torch.float64),
        "temperature": torch.rand(ROWS, generator=random, dtype=torch.float64) + 0.5,
    }
    return made, torch.rand(ROWS, generator=random, dtype=torch.float64)


def rows_with(temperature: Tensor, **fields: Tensor) -> Rows:
    whole = torch.zeros(len(temperature), dtype=torch.int64)
    number = torch.ones(len(temperature))
    return Rows(whole, whole, whole, number, number, temperature, number, whole, whole, whole, whole,
                fields={name: Column(values) for name, values in fields.items()})  # fmt: skip


def gradients(value: Tensor, weight: Tensor, of: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad((value * weight).sum(), of))


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("top_k", [None, 1, 4, 12])
def test_values_and_gradients_equal_the_naive_ones_over_the_vocabulary_and_over_the_top_k(
    beta: float, top_k: int | None
) -> None:
    """With top k all other tokens are one outcome: the same formula over k + 1 of them. Chunks are of two rows."""
    made, weight = drawn(3)
    learned = [made[name].requires_grad_() for name in ("states", "weight", "bias")]
    student = ((made["states"] @ made["weight"].T + made["bias"]) / made["temperature"][:, None]).log_softmax(-1)
    teacher = (made["teacher_states"] @ made["teacher_weight"].T / made["temperature"][:, None]).log_softmax(-1)
    fields = {STATES: made["teacher_states"]}
    if top_k is not None:
        logps, ids = teacher.topk(top_k)
        fields = {IDS: ids.to(torch.int32), LOGPS: logps}
        rest = torch.ones_like(teacher, dtype=torch.bool).scatter(1, ids, value=False)
        student, teacher = (
            torch.cat((each.gather(1, ids), each.masked_fill(~rest, -torch.inf).logsumexp(1, keepdim=True)), 1)
            for each in (student, teacher)
        )
    naive = gkd(student, teacher, beta)
    expected = gradients(naive, weight, learned)
    found = row_divergences(
        Divergence(beta, top_k),
        made["states"],
        VocabularyHead(made["weight"], made["bias"]),
        rows_with(made["temperature"], **fields),
        VocabularyHead(made["teacher_weight"]) if top_k is None else None,
        chunk_elements=2 * VOCABULARY * (2 if top_k is None else 1),
    )
    torch.testing.assert_close(found, naive, atol=1e-9, rtol=1e-9)
    for mine, other in zip(gradients(found, weight, learned), expected, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-9, rtol=1e-9)


def test_beta_0_and_1_are_the_limits_of_the_divergence_over_beta_and_over_1_less_beta() -> None:
    made, _ = drawn(5)
    rows = rows_with(made["temperature"], **{STATES: made["teacher_states"]})

    def at(beta: float) -> Tensor:
        heads = VocabularyHead(0.3 * made["weight"]), VocabularyHead(0.3 * made["teacher_weight"])
        return row_divergences(Divergence(beta), made["states"], heads[0], rows, heads[1])

    near = 1e-7
    torch.testing.assert_close(at(near) / near, at(0.0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(at(1 - near) / near, at(1.0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_teacher_that_names_fewer_tokens_or_leaves_no_tail_gives_finite_numbers(beta: float) -> None:
    """Missing names are -1; a student that puts nothing there, and one that puts all there, have gradients too."""
    states = torch.tensor([[200.0], [-200.0], [0.5]], requires_grad=True)
    head = VocabularyHead(torch.tensor([[1.0], [0.0], [-1.0], [0.5]]))
    fields = {
        IDS: torch.tensor([[0, -1], [0, 1], [2, 3]], dtype=torch.int32),
        LOGPS: torch.tensor([[0.0, 0.0], [-0.5, -1.0], [-1e-8, -18.5]]),
    }
    found = row_divergences(Divergence(beta, 2), states, head, rows_with(torch.ones(3), **fields))
    (slope,) = torch.autograd.grad(found.sum(), [states])
    assert torch.isfinite(found).all()
    assert torch.isfinite(slope).all()
    assert (found > -1e-5).all()
    assert float(found[0].detach()) == pytest.approx(0.0, abs=1e-4)


def test_heads_that_are_padded_differently_are_compared_in_the_entries_that_both_have() -> None:
    made, _ = drawn(7)
    wide = torch.cat((made["teacher_weight"], torch.ones(4, WIDTH + 1, dtype=torch.float64)))
    rows = rows_with(made["temperature"], **{STATES: made["teacher_states"]})
    expected, found = (
        row_divergences(Divergence(1.0), made["states"], VocabularyHead(made["weight"]), rows, VocabularyHead(teacher))
        for teacher in (made["teacher_weight"], wide)
    )
    torch.testing.assert_close(found, expected)
