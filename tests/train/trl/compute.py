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


def main(packages: str, cases: str, results: str) -> None:
    """Compute all cases."""
    sys.path.append(packages)
    from trl.trainer import grpo_trainer, rloo_trainer  # type: ignore[import-not-found]

    for module in (grpo_trainer, rloo_trainer):
        module.disable_gradient_checkpointing = lambda *_: nullcontext()
    trainers = {"grpo": grpo_trainer.GRPOTrainer, "rloo": rloo_trainer.RLOOTrainer}
    kinds = {"loss": loss, "advantage": advantages}
    found = [kinds[case["kind"]](trainers[case["trainer"]], case) for case in torch.load(cases, weights_only=False)]
    torch.save(found, results)


if __name__ == "__main__":
    main(*sys.argv[1:])
