"""TRL's own losses and advantages on given tensors, in a process of their own: importing TRL changes its process.

TRL computes them in methods of its trainers. They are called here on an object that has what these methods read: the
settings, and log-probabilities or rewards that are given instead of computed.

python compute.py FOLDER-OF-PACKAGES CASES.pt RESULTS.pt
"""

from __future__ import annotations

import sys
from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

ARGS = {
    **{"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1, "gradient_accumulation_steps": 1},
    **{"sapo_temperature_pos": 1.5, "sapo_temperature_neg": 2.0, "gradient_checkpointing_kwargs": None},
    **{"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0},
    **{"per_device_eval_batch_size": 64},
}


def stub(**fields: Any) -> SimpleNamespace:
    """What both kinds of methods read of a trainer; it evaluates, which divides by no accumulation of gradients."""
    accelerator = SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=1,
        process_index=0,
        gather=lambda value: value,
        reduce=lambda value, reduction: value,
    )
    common = {
        **{
            "accelerator": accelerator,
            "model": SimpleNamespace(training=False),
            "_metrics": {"eval": defaultdict(list)},
        },
        **{"use_vllm": False, "beta": 0.0, "aux_loss_enabled": False, "args": SimpleNamespace(**ARGS)},
    }
    return SimpleNamespace(**(common | fields))


def loss(trainer: Any, case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """A loss of GRPOTrainer and its gradient by the current log-probabilities."""
    logp, mask = case["logp"].clone().requires_grad_(), case["mask"]
    own = {"importance_sampling_level": "token", "epsilon_low": 0.1, "epsilon_high": 0.2, **case["settings"]}
    made = stub(
        **{"top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "_entropy_bonus_enabled": False},
        _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
        get_gamma_weights=trainer.get_gamma_weights,
        **{name: value for name, value in own.items() if name not in ARGS},
    )
    vars(made.args).update({name: value for name, value in own.items() if name in ARGS})
    ids = torch.zeros(mask.shape, dtype=torch.long)
    inputs = {
        **{"prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1] + 1, "completion_ids": ids, "completion_mask": mask},
        **{"advantages": case["advantage"], "old_per_token_logps": case["old"], "ref_per_token_logps": case["ref"]},
        "num_items_in_batch": mask.sum(),
    }
    value = trainer._compute_loss(made, None, inputs)
    (gradient,) = torch.autograd.grad(value, logp)
    return value.detach(), gradient


def advantages(trainer: Any, case: dict[str, Any]) -> Tensor:
    """The advantages of one group's sessions."""
    rewards: Tensor = case["rewards"]
    ids = [[1]] * len(rewards)
    generated: tuple[Any, ...] = (ids, ids, ["."] * len(rewards))
    if case["trainer"] == "grpo":
        generated = (ids, ids, None, ["."] * len(rewards), None, {}, None, None)
    logs: dict[str, Any] = {
        "prompt": [],
        "completion": [],
        "rewards": defaultdict(list),
        "advantages": [],
        "extra": defaultdict(list),
    }
    made = stub(
        **{"environment_factories": None, "environments": None, "tools": None, "pad_to_multiple_of": None},
        **{"mask_truncated_completions": False, "num_iterations": 1, "num_generations_eval": len(rewards)},
        **{"reward_weights": torch.ones(1), "reward_func_names": ["right"], "reward_clip_range": None},
        **{"multi_objective_aggregation": "sum_then_normalize", "normalize_advantages": False, "log_multimodal": False},
        **{"_logs": logs, "_pending_extra_logs": {}, "_pending_metrics": {}, **case["settings"]},
        _tokenizer=SimpleNamespace(pad_token_id=0),
        _generate=lambda _: generated,
        _calculate_rewards=lambda *_: rewards[:, None],
        _get_per_token_logps_and_entropies=lambda *_, **__: (torch.zeros(len(rewards), 1), None, None),
    )
    found: Tensor = trainer._generate_and_score_completions(made, [{"prompt": "."}] * len(rewards))["advantages"]
    return found


class Outputs(SimpleNamespace):
    """A model's outputs of given log-probabilities, which a loss over pairs or labels reads; what it logs is 0."""

    def __init__(self, logp: Tensor) -> None:
        still = torch.zeros_like(logp)
        super().__init__(log_probs=logp, entropy=still, mean_logits=still, is_top1=still.bool())


def preference(trainer: Any, case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """A loss of DPOTrainer, KTOTrainer, CPOTrainer or ORPOTrainer, and its gradient by the log-probabilities.

    Rows are pairs, all chosen ones before all rejected ones; the last two trainers get one pair at a time, whose
    likelihood is then a mean over the tokens of one sequence.
    """
    logp, mask, ref = case["logp"].clone().requires_grad_(), case["mask"], case["ref"]
    rows, half = logp * mask, len(logp) // 2
    fields = {
        "label_smoothing": 0.0,
        "beta": 0.1,
        "alpha": 0.0,
        "cpo_alpha": 1.0,
        "simpo_gamma": 0.5,
        **case["settings"],
    }
    made = stub(**fields)
    made.accelerator.gather_for_metrics = made.accelerator.gather
    if case["trainer"] in ("dpo", "kto"):
        one = torch.zeros(len(logp), 1)
        inputs = {"input_ids": torch.zeros(len(logp), mask.shape[1] + 1).long(), "attention_mask": one}
        inputs["completion_mask"] = torch.cat([one, mask], 1).long()
        vars(made).update(ld_alpha=None, f_divergence_type="reverse_kl", loss_weights=[1.0], use_weighting=False)
        vars(made).update(precompute_ref_logps=True, calculate_KL=True, _total_train_tokens=0, _tp_size=1)
        if case["trainer"] == "dpo":
            inputs |= {"ref_chosen_logps": ref[:half].sum(1), "ref_rejected_logps": ref[half:].sum(1)}
        else:
            inputs |= {"label": torch.arange(len(logp)) < half, "ref_logps": ref.sum(1), "ref_KL_logps": case["kl_ref"]}
            made._compute_kl_logps = lambda *_: case["kl_logp"]
        made.model = Model(rows)
        value = trainer._compute_loss(made, made.model, inputs, False)
    else:
        sums, mean = rows.sum(1), rows.sum(1) / mask.sum(1)
        made._losses = [pair_loss(trainer, made, sums, mean, place, half) for place in range(half)]
        value = torch.stack(made._losses).mean()
    (gradient,) = torch.autograd.grad(value, logp)
    return value.detach(), gradient


def reward(trainer: Any, case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The loss of RewardTrainer and its gradient by the scores, the chosen ones before the rejected ones."""
    scores = case["scores"].clone().requires_grad_()
    made = stub(_total_train_tokens=0, _tp_size=1)
    made.accelerator.gather_for_metrics = made.accelerator.gather
    made.args.center_rewards_coefficient = case["center"]
    inputs = {"attention_mask": torch.ones(len(scores), 1), **({"margin": case["margin"]} if "margin" in case else {})}
    value = trainer.compute_loss(made, Scored(scores), inputs)
    (gradient,) = torch.autograd.grad(value, scores)
    return value.detach(), gradient


class Scored:
    """A model in evaluation that returns given scores."""

    training = False

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def __call__(self, **_: Any) -> Outputs:
        found = Outputs(self.scores)
        found.logits = self.scores[:, None]
        return found


class Model:
    """A model in evaluation that returns given log-probabilities."""

    training = False

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __call__(self, **_: Any) -> Outputs:
        return Outputs(self.rows)


def pair_loss(trainer: Any, made: Any, sums: Tensor, mean: Tensor, place: int, half: int) -> Tensor:
    """The whole loss of one pair, as a trainer without a reference computes it."""
    score = mean if made.loss_type in ("simpo", "orpo") else sums
    chosen, rejected = score[place : place + 1], score[half + place : half + place + 1]
    still = torch.zeros(1)
    made.concatenated_forward = lambda *_: (chosen, rejected, still, still, -mean[place])
    made.cpo_loss = lambda *each: trainer.cpo_loss(made, *each)
    made.odds_ratio_loss = lambda *each: trainer.odds_ratio_loss(made, *each)
    loss: Tensor = trainer.get_batch_loss_metrics(made, None, {})[0]
    return loss


def main(packages: str, cases: str, results: str) -> None:
    """Compute all cases."""
    sys.path.append(packages)
    from trl.experimental.cpo import cpo_trainer  # type: ignore[import-not-found]
    from trl.experimental.orpo import orpo_trainer  # type: ignore[import-not-found]
    from trl.trainer import (  # type: ignore[import-not-found]
        dpo_trainer,
        grpo_trainer,
        kto_trainer,
        reward_trainer,
        rloo_trainer,
    )

    for module in (grpo_trainer, rloo_trainer):
        module.disable_gradient_checkpointing = lambda *_: nullcontext()
    trainers = {"grpo": grpo_trainer.GRPOTrainer, "rloo": rloo_trainer.RLOOTrainer}
    trainers |= {"dpo": dpo_trainer.DPOTrainer, "kto": kto_trainer.KTOTrainer}
    trainers |= {"reward": reward_trainer.RewardTrainer}
    trainers |= {"cpo": cpo_trainer.CPOTrainer, "orpo": orpo_trainer.ORPOTrainer}
    kinds = {"loss": loss, "advantage": advantages, "preference": preference, "reward": reward}
    found = [kinds[case["kind"]](trainers[case["trainer"]], case) for case in torch.load(cases, weights_only=False)]
    torch.save(found, results)


if __name__ == "__main__":
    main(*sys.argv[1:])
