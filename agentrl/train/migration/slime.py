"""slime's flags: those of `slime/utils/arguments.py`, and the ones of Megatron that its scripts use."""

from __future__ import annotations

from agentrl.train.migration.rules import Counterpart, Framework, Settings, number, ratio, whole

BUILT_IN = "it is always so"
ENVIRONMENT = "write an environment, whose rewards and tools it becomes: docs/environments.md"
TRACKER = "a tracker's own variables name projects and runs: docs/metrics.md"
MODEL_CODE = "the model's family says it: docs/families.md"
MEGATRON = "the trainer chooses it"
PROMPT = 2048.0
"""Tokens that a prompt gets beside the reply, where the script says nothing."""
RULES = {
    "train-backend": Counterpart("trainer", {"megatron": "megatron", "fsdp": "fsdp"}),
    "hf-checkpoint": Counterpart("model"),
    "ref-load": Counterpart(why="the reference is the model that the run began with"),
    "load": Counterpart(why="model=FOLDER is a folder in Hugging Face's format; resume=runs/NAME goes on with a run"),
    "save": Counterpart("run_dir"),
    "save-interval": Counterpart("checkpoint_every"),
    "async-save": Counterpart("trainer.async_save"),
    "prompt-data": Counterpart("env.path", why="`agentrl convert data` checks its rows"),
    "input-key": Counterpart("env.columns.question"),
    "label-key": Counterpart("env.columns.answer"),
    "metadata-key": Counterpart(why=ENVIRONMENT),
    "tool-key": Counterpart(why=ENVIRONMENT),
    "apply-chat-template": Counterpart(why=BUILT_IN),
    "rollout-shuffle": Counterpart(why="it is the default (rollout.sampler=shuffled)"),
    "rollout-seed": Counterpart(why="one seed is for all"),
    "rm-type": Counterpart(
        "env.grading",
        {**dict.fromkeys(("math", "deepscaler", "dapo", "boxed_math"), "math"), "f1": "exact", "gpqa": "choice"},
        "other rewards are by name (rewards.NAME=KIND, docs/rewards.md) or an environment's",
    ),
    "custom-rm-path": Counterpart(why="rewards.NAME=file.py:CLASS, docs/rewards.md"),
    "rm-url": Counterpart(why="a reward that calls a service: examples/plugins/reward_service.py"),
    "custom-generate-function-path": Counterpart(why=f"{ENVIRONMENT}, or agent=file.py:FUNCTION: docs/agents.md"),
    "rollout-function-path": Counterpart(why=ENVIRONMENT),
    "num-rollout": Counterpart("steps"),
    "num-epoch": Counterpart(why="a run counts steps"),
    "rollout-batch-size": Counterpart("rollout.groups_per_step"),
    "n-samples-per-prompt": Counterpart("rollout.group_size"),
    "num-steps-per-rollout": Counterpart("algo.minibatches"),
    "global-batch-size": Counterpart(why="algo.minibatches follows from it and the step's sessions"),
    "micro-batch-size": Counterpart(why="forests are filled up to trainer.token_budget"),
    "use-dynamic-batch-size": Counterpart(why=BUILT_IN),
    "max-tokens-per-gpu": Counterpart(why="trainer.token_budget follows from it and the context-parallel ranks"),
    "log-probs-max-tokens-per-gpu": Counterpart(why="trainer.token_budget is for all passes"),
    "balance-data": Counterpart(why=BUILT_IN),
    "rollout-max-response-len": Counterpart(
        "rollout.turn_tokens", why="of one turn; a session has rollout.session_tokens"
    ),
    "rollout-max-prompt-len": Counterpart(why="prompts without room for a turn are left out (rollout.overlong=skip)"),
    "rollout-max-context-len": Counterpart("rollout.context_tokens"),
    "rollout-temperature": Counterpart("rollout.temperature"),
    "rollout-top-p": Counterpart("rollout.top_p", why="below 1 it needs engine=local: docs/engines.md"),
    "rollout-top-k": Counterpart("rollout.top_k", why="it needs engine=local: docs/engines.md"),
    "rollout-stop": Counterpart(why="a turn ends where the model's format ends it"),
    "over-sampling-batch-size": Counterpart(why="rollout.oversample follows from it, with rollout.order=ready"),
    "dynamic-sampling-filter-path": Counterpart(
        "rollout.filter",
        {"slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std": "signal"},
        "a filter of yours is rollout.filter=file.py:FUNCTION",
    ),
    "partial-rollout": Counterpart("weights.mode", {"true": "abort"}, "it matters with rollout.staleness=1"),
    "advantage-estimator": Counterpart(
        "algo",
        {
            **{name: name for name in ("grpo", "gspo", "ppo")},
            "reinforce_plus_plus": "reinforce_pp",
            "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
        },
        "cispo is algo=grpo algo.loss=cispo; distillation is algo=distill: docs/algorithms.md",
    ),
    "use-kl-loss": Counterpart("algo.kl_as", {"true": "loss"}),
    "kl-loss-coef": Counterpart("algo.kl_coef"),
    "kl-loss-type": Counterpart("algo.kl_estimator", {"k1": "k1", "k2": "k2", "k3": "k3", "low_var_kl": "k3"}),
    "kl-coef": Counterpart(why="algo.kl_as=reward with algo.kl_coef; 0 is no penalty"),
    "entropy-coef": Counterpart("algo.entropy_coef"),
    "eps-clip": Counterpart("algo.loss.clip_low"),
    "eps-clip-high": Counterpart("algo.loss.clip_high"),
    "eps-clip-c": Counterpart("algo.loss.dual_clip"),
    "gamma": Counterpart("algo.gamma", why="of algo=ppo"),
    "lambd": Counterpart("algo.gae_lambda", why="of algo=ppo"),
    "value-clip": Counterpart("algo.value_clip", why="of algo=ppo"),
    "disable-grpo-std-normalization": Counterpart("algo.scale_by_std", {"true": "false"}),
    "calculate-per-token-loss": Counterpart("algo.normalize", {"true": "token"}),
    "use-tis": Counterpart("algo.correction.weight", {"true": "token"}),
    "tis-clip": Counterpart("algo.correction.weight_max"),
    "tis-clip-low": Counterpart("algo.correction.weight_min"),
    "use-rollout-logprobs": Counterpart(
        why="the ratio is against the log-probabilities of the rollout: it is the default"
    ),
    "use-routing-replay": Counterpart("trainer.moe.routing_replay", {"true": "forward"}),
    "use-rollout-routing-replay": Counterpart("trainer.moe.routing_replay", {"true": "rollout"}),
    "optimizer": Counterpart("trainer.optimizer", {"adam": "adam", "sgd": "sgd"}),
    "lr": Counterpart("algo.lr"),
    "lr-decay-style": Counterpart("algo.schedule", {name: name for name in ("constant", "linear", "cosine")}),
    "lr-warmup-iters": Counterpart("algo.warmup_steps"),
    "weight-decay": Counterpart("algo.weight_decay"),
    "adam-beta1": Counterpart(why="algo.betas follows from both"),
    "adam-beta2": Counterpart(why="algo.betas follows from both"),
    "clip-grad": Counterpart("algo.max_grad_norm"),
    "seed": Counterpart("seed"),
    "eval-interval": Counterpart("eval.every"),
    "eval-prompt-data": Counterpart(
        "env.eval_path", why="of several sets, the first: a suite measures more (docs/evaluation.md)"
    ),
    "n-samples-per-eval-prompt": Counterpart("eval.n"),
    "eval-max-response-len": Counterpart("eval.turn_tokens"),
    "eval-temperature": Counterpart("eval.temperature"),
    "eval-top-p": Counterpart("eval.top_p"),
    "eval-top-k": Counterpart("eval.top_k"),
    "skip-eval-before-train": Counterpart(
        why="a run is measured before its first step; eval.tasks says on how many tasks"
    ),
    "tensor-model-parallel-size": Counterpart("trainer.tensor_parallel"),
    "sequence-parallel": Counterpart("trainer.sequence_parallel"),
    "pipeline-model-parallel-size": Counterpart("trainer.pipeline_parallel"),
    "context-parallel-size": Counterpart("trainer.context_parallel"),
    "expert-model-parallel-size": Counterpart("trainer.expert_parallel"),
    "expert-tensor-parallel-size": Counterpart(why="experts are not divided by tensor parallelism"),
    "recompute-granularity": Counterpart("trainer.recompute", {"full": "full"}, "whole layers alone"),
    "recompute-method": Counterpart(why="every layer is recomputed"),
    "recompute-num-layers": Counterpart(why="every layer is recomputed"),
    "optimizer-cpu-offload": Counterpart("trainer.offload_optimizer"),
    "moe-aux-loss-coeff": Counterpart("trainer.moe.aux_loss"),
    "actor-num-nodes": Counterpart(why="trainer.ranks follows from nodes and GPUs"),
    "actor-num-gpus-per-node": Counterpart(why="trainer.ranks follows from nodes and GPUs"),
    "rollout-num-gpus": Counterpart(why="fleet.engines follows from it and the GPUs of an engine"),
    "rollout-num-gpus-per-engine": Counterpart("engine.server.tp_size"),
    "num-gpus-per-node": Counterpart(why="Ray says what nodes have"),
    "colocate": Counterpart("fleet.colocated"),
    "offload": Counterpart(why="colocated engines and trainers do it"),
    "sglang-enable-deterministic-inference": Counterpart("engine.deterministic"),
    "sglang-context-length": Counterpart("engine.max_context"),
    "sglang-max-running-requests": Counterpart("engine.max_batch"),
    "use-wandb": Counterpart("metrics", {"true": "[wandb]"}),
    "use-tensorboard": Counterpart(why="it is the default"),
    "use-slime-router": Counterpart(why="a fleet balances sessions itself: docs/fleet.md"),
    "use-fault-tolerance": Counterpart(why=BUILT_IN),
    "bf16": Counterpart("trainer.dtype", {"true": "bfloat16"}),
    **dict.fromkeys(
        ("attention-dropout", "hidden-dropout", "attention-backend", "deterministic-mode"), Counterpart(why=MEGATRON)
    ),
    **dict.fromkeys(("accumulate-allreduce-grads-in-fp32", "attention-softmax-in-fp32"), Counterpart(why=MEGATRON)),
    **dict.fromkeys(
        ("swiglu", "num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads"), Counterpart(why=MODEL_CODE)
    ),
    **dict.fromkeys(
        ("use-rotary-position-embeddings", "disable-bias-linear", "add-qkv-bias"), Counterpart(why=MODEL_CODE)
    ),
    **dict.fromkeys(
        ("normalization", "norm-epsilon", "rotary-base", "vocab-size", "kv-channels"), Counterpart(why=MODEL_CODE)
    ),
    **dict.fromkeys(("group-query-attention", "num-query-groups", "qk-layernorm"), Counterpart(why=MODEL_CODE)),
}
PREFIXES = {
    "sglang-": Counterpart("engine.server"),
    "wandb-": Counterpart(why=TRACKER),
    "tb-": Counterpart(why=TRACKER),
}


def derive_settings(flags: Settings) -> dict[str, str]:
    """The settings that follow from several flags."""
    found: dict[str, str] = {}
    parts = ratio(flags, "rollout-batch-size", "n-samples-per-prompt", "global-batch-size")
    if parts:
        found["algo.minibatches"] = str(parts)
    if tokens := number(flags, "max-tokens-per-gpu"):
        found["trainer.token_budget"] = whole(tokens * (number(flags, "context-parallel-size", 1.0) or 1.0))
    ranks = (number(flags, "actor-num-nodes", 1.0) or 1) * (number(flags, "actor-num-gpus-per-node", 8.0) or 8)
    each = number(flags, "rollout-num-gpus-per-engine", 1.0) or 1.0
    if {"actor-num-nodes", "actor-num-gpus-per-node"} & flags.keys():
        found["trainer.ranks"] = whole(ranks)
    gpus = number(flags, "rollout-num-gpus", ranks if "colocate" in flags else None)
    if gpus:
        found["fleet.engines"] = whole(max(gpus // each, 1.0))
    if reply := number(flags, "rollout-max-response-len"):
        found["rollout.session_tokens"] = whole(reply + (number(flags, "rollout-max-prompt-len", PROMPT) or PROMPT))
    if {"adam-beta1", "adam-beta2"} & flags.keys():
        found["algo.betas"] = f"[{flags.get('adam-beta1', '0.9')},{flags.get('adam-beta2', '0.999')}]"
    if "eps-clip" in flags and "eps-clip-high" not in flags:
        found["algo.loss.clip_high"] = flags["eps-clip"]
    if flags.get("advantage-estimator") == "cispo":
        found |= {"algo": "grpo", "algo.loss": "cispo"}
    if "use-kl-loss" in flags and "kl-loss-type" not in flags:
        found["algo.kl_estimator"] = "k1"
    wanted, begun = number(flags, "rollout-batch-size"), number(flags, "over-sampling-batch-size")
    if wanted and begun and begun > wanted:
        found |= {"rollout.oversample": whole(begun / wanted - 1), "rollout.order": "ready"}
    if number(flags, "kl-coef"):
        found |= {"algo.kl_as": "reward", "algo.kl_coef": flags["kl-coef"]}
    return found


SLIME = Framework(
    "slime",
    {
        **{"env": "questions", "trainer": "megatron", "trainer.dtype": "bfloat16", "engine": "sglang"},
        **{"engine.dtype": "bfloat16", "engine.deterministic": "false", "cluster": "ray", "rollout.group_size": "1"},
        **{"algo.betas": "[0.9,0.999]", "algo.weight_decay": "0.01", "algo.kl_coef": "0"},
    },
    RULES,
    PREFIXES,
    derive_settings,
)
