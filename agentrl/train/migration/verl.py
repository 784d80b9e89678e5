"""verl's dotted settings: those of `verl/trainer/config/ppo_trainer.yaml` and what it includes (verl 0.9)."""

from __future__ import annotations

from agentrl.train.migration.rules import Counterpart, Framework, Settings, number, ratio, whole

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
BUILT_IN = "it is always so"
BUDGET = "forests are filled up to trainer.token_budget"
TOOLS = "tools are an environment's methods, or tools.NAME=mcp: docs/tools.md"
RULES = {
    "data.train_files": Counterpart("env.path", why="`agentrl convert data` checks its rows"),
    "data.val_files": Counterpart("env.eval_path"),
    "data.train_batch_size": Counterpart("rollout.groups_per_step"),
    "data.prompt_key": Counterpart("env.columns.question"),
    "data.max_prompt_length": Counterpart(why="prompts without room for a turn are left out (rollout.overlong=skip)"),
    "data.max_response_length": Counterpart(
        "rollout.turn_tokens", why="of one turn; of several it is rollout.session_tokens"
    ),
    "data.filter_overlong_prompts": Counterpart("rollout.overlong", {"True": "skip", "true": "skip"}),
    "data.shuffle": Counterpart(why="it is the default (rollout.sampler=shuffled)"),
    "data.seed": Counterpart("seed"),
    "data.return_raw_chat": Counterpart(why=BUILT_IN),
    "data.tool_config_path": Counterpart(why=TOOLS),
    "data.image_key": Counterpart(why="no run trains on images yet"),
    f"{MODEL}.path": Counterpart("model"),
    f"{MODEL}.trust_remote_code": Counterpart("model.trust_remote_code"),
    f"{MODEL}.lora_rank": Counterpart("lora.rank"),
    f"{MODEL}.lora_alpha": Counterpart("lora.alpha"),
    f"{MODEL}.enable_gradient_checkpointing": Counterpart("trainer.recompute", {"True": "full", "False": "none"}),
    f"{MODEL}.use_remove_padding": Counterpart(why=BUILT_IN),
    f"{ACTOR}.strategy": Counterpart("trainer", {"fsdp": "fsdp", "fsdp2": "fsdp", "megatron": "megatron"}),
    f"{ACTOR}.ppo_mini_batch_size": Counterpart(why="algo.minibatches follows from it and data.train_batch_size"),
    f"{ACTOR}.ppo_epochs": Counterpart("algo.epochs"),
    f"{ACTOR}.ppo_max_token_len_per_gpu": Counterpart("trainer.token_budget"),
    f"{ACTOR}.use_dynamic_bsz": Counterpart(why=BUILT_IN),
    f"{ACTOR}.ppo_micro_batch_size": Counterpart(why=BUDGET),
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": Counterpart(why=BUDGET),
    f"{ACTOR}.clip_ratio": Counterpart(why="algo.loss.clip_low and clip_high are both of it"),
    f"{ACTOR}.clip_ratio_low": Counterpart("algo.loss.clip_low"),
    f"{ACTOR}.clip_ratio_high": Counterpart("algo.loss.clip_high"),
    f"{ACTOR}.clip_ratio_c": Counterpart("algo.loss.dual_clip"),
    f"{ACTOR}.policy_loss.loss_mode": Counterpart(
        "algo.loss",
        {"vanilla": "clipped", "geo_mean": "gmpo", "gpg": "importance_sampling", "dppo_tv": "dppo"}
        | {name: name for name in ("gspo", "sapo", "clip_cov", "kl_cov", "dro", "cispo")},
    ),
    f"{ACTOR}.loss_agg_mode": Counterpart(
        "algo.normalize",
        {"token-mean": "token", "seq-mean-token-mean": "rollout", "seq-mean-token-sum-norm": "constant"},
        "docs/algorithms.md has the denominators side by side",
    ),
    f"{ACTOR}.entropy_coeff": Counterpart("algo.entropy_coef"),
    f"{ACTOR}.use_kl_loss": Counterpart("algo.kl_as", {"True": "loss", "true": "loss"}),
    f"{ACTOR}.kl_loss_type": Counterpart(
        "algo.kl_estimator", {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
    ),
    f"{ACTOR}.kl_loss_coef": Counterpart(why="algo.kl_coef, where use_kl_loss is true"),
    f"{ACTOR}.grad_clip": Counterpart("algo.max_grad_norm"),
    f"{ACTOR}.optim.lr": Counterpart("algo.lr"),
    f"{ACTOR}.optim.weight_decay": Counterpart("algo.weight_decay"),
    f"{ACTOR}.optim.lr_warmup_steps": Counterpart("algo.warmup_steps"),
    f"{ACTOR}.optim.lr_warmup_steps_ratio": Counterpart(why="algo.warmup_steps counts steps"),
    f"{ACTOR}.fsdp_config.optimizer_offload": Counterpart("trainer.offload_optimizer"),
    f"{ACTOR}.megatron.optimizer_offload": Counterpart("trainer.offload_optimizer"),
    f"{ACTOR}.fsdp_config.param_offload": Counterpart(why="weights stay on the device"),
    f"{ACTOR}.ulysses_sequence_parallel_size": Counterpart("trainer.context_parallel", why="of trainer=megatron"),
    f"{ACTOR}.megatron.tensor_model_parallel_size": Counterpart("trainer.tensor_parallel"),
    f"{ACTOR}.megatron.pipeline_model_parallel_size": Counterpart("trainer.pipeline_parallel"),
    f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size": Counterpart("trainer.virtual_pipeline"),
    f"{ACTOR}.megatron.context_parallel_size": Counterpart("trainer.context_parallel"),
    f"{ACTOR}.megatron.expert_model_parallel_size": Counterpart("trainer.expert_parallel"),
    f"{ROLLOUT}.name": Counterpart("engine", {"vllm": "vllm", "sglang": "sglang"}),
    f"{ROLLOUT}.mode": Counterpart(why="engines are always asked session by session"),
    f"{ROLLOUT}.n": Counterpart("rollout.group_size"),
    f"{ROLLOUT}.temperature": Counterpart("rollout.temperature"),
    f"{ROLLOUT}.top_p": Counterpart("rollout.top_p", why="below 1 it needs engine=local: docs/engines.md"),
    f"{ROLLOUT}.top_k": Counterpart("rollout.top_k", why="it needs engine=local: docs/engines.md"),
    f"{ROLLOUT}.dtype": Counterpart("engine.dtype"),
    f"{ROLLOUT}.max_num_seqs": Counterpart("engine.max_batch"),
    f"{ROLLOUT}.max_model_len": Counterpart("engine.max_context"),
    f"{ROLLOUT}.tensor_model_parallel_size": Counterpart(why="engine.server.tp_size, or tensor_parallel_size of vLLM"),
    f"{ROLLOUT}.gpu_memory_utilization": Counterpart(why="the server's own option by its own name: engine.server.*"),
    f"{ROLLOUT}.calculate_log_probs": Counterpart(why=BUILT_IN),
    f"{ROLLOUT}.enable_rollout_routing_replay": Counterpart("trainer.moe.routing_replay", {"True": "rollout"}),
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": Counterpart(why=BUDGET),
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu": Counterpart(why=BUDGET),
    f"{ROLLOUT}.multi_turn.enable": Counterpart(why="turns are an environment's: docs/environments.md"),
    f"{ROLLOUT}.multi_turn.max_assistant_turns": Counterpart("rollout.max_turns"),
    f"{ROLLOUT}.multi_turn.tool_config_path": Counterpart(why=TOOLS),
    f"{ROLLOUT}.agent.default_agent_loop": Counterpart(
        why="an agent of yours is agent=file.py:FUNCTION: docs/agents.md"
    ),
    f"{ROLLOUT}.agent.agent_loop_config_path": Counterpart(
        why="an agent of yours is agent=file.py:FUNCTION: docs/agents.md"
    ),
    f"{ROLLOUT}.val_kwargs.temperature": Counterpart("eval.temperature"),
    f"{ROLLOUT}.val_kwargs.top_p": Counterpart("eval.top_p"),
    f"{ROLLOUT}.val_kwargs.n": Counterpart("eval.n"),
    "algorithm.adv_estimator": Counterpart(
        "algo",
        {"gae": "ppo", "reinforce_plus_plus": "reinforce_pp", "reinforce_plus_plus_baseline": "reinforce_pp_baseline"}
        | {name: name for name in ("grpo", "rloo", "remax", "opo", "gdpo")}
        | {"grpo_vectorized": "grpo", "rloo_vectorized": "rloo"},
        "grpo_passk has another formula than algo=pass_at_k",
    ),
    "algorithm.norm_adv_by_std_in_grpo": Counterpart("algo.scale_by_std"),
    "algorithm.use_kl_in_reward": Counterpart("algo.kl_as", {"True": "reward", "true": "reward"}),
    "algorithm.kl_ctrl.kl_coef": Counterpart(why="algo.kl_coef, where use_kl_in_reward is true"),
    "algorithm.gamma": Counterpart("algo.gamma", why="of algo=ppo"),
    "algorithm.lam": Counterpart("algo.gae_lambda", why="of algo=ppo"),
    "algorithm.filter_groups.enable": Counterpart("rollout.filter", {"True": "signal", "true": "signal"}),
    "algorithm.rollout_correction.rollout_is": Counterpart(
        "algo.correction.weight", {"token": "token", "sequence": "session"}
    ),
    "algorithm.rollout_correction.rollout_is_threshold": Counterpart("algo.correction.weight_max"),
    "critic.optim.lr": Counterpart("algo.value_trunk_lr", why="with algo=ppo algo.value_trunk=own"),
    "critic.model.path": Counterpart(why="a critic begins as the policy: algo.value_trunk"),
    "trainer.total_training_steps": Counterpart("steps"),
    "trainer.total_epochs": Counterpart(why="a run counts steps"),
    "trainer.nnodes": Counterpart(why="trainer.ranks follows from nodes and GPUs"),
    "trainer.n_gpus_per_node": Counterpart(why="trainer.ranks follows from nodes and GPUs"),
    "trainer.save_freq": Counterpart("checkpoint_every"),
    "trainer.test_freq": Counterpart("eval.every"),
    "trainer.default_local_dir": Counterpart("run_dir"),
    "trainer.logger": Counterpart(why="metrics=[wandb], or another tracker: docs/metrics.md"),
    "trainer.project_name": Counterpart(why="a tracker's own variables name projects: docs/metrics.md"),
    "trainer.experiment_name": Counterpart(why="run_dir=runs/NAME names a run"),
    "trainer.val_before_train": Counterpart(why=BUILT_IN),
    "trainer.critic_warmup": Counterpart("algo.value_warmup", why="of algo=ppo"),
    "trainer.resume_mode": Counterpart(why="resume=runs/NAME goes on with a run"),
}
PREFIXES = {
    "custom_reward_function.": Counterpart(why="rewards.NAME=file.py:CLASS: docs/rewards.md"),
    "reward.": Counterpart(why="rewards.NAME=KIND or file.py:CLASS: docs/rewards.md"),
    "reward_model.": Counterpart(why="rewards.NAME=reward_model: docs/rewards.md"),
    "actor_rollout_ref.ref.": Counterpart(why="the reference is computed by the trainer's own ranks"),
    "critic.": Counterpart(why="a critic has settings of algo=ppo: algo.value_*"),
}


def derive_settings(settings: Settings) -> dict[str, str]:
    """The settings that follow from several of verl's."""
    found: dict[str, str] = {}
    if parts := ratio(settings, "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"):
        found["algo.minibatches"] = str(parts)
    prompt, reply = (
        number(settings, "data.max_prompt_length", 512.0),
        number(settings, "data.max_response_length", 512.0),
    )
    found["rollout.session_tokens"] = whole((prompt or 0) + (reply or 0))
    nodes, gpus = number(settings, "trainer.nnodes", 1.0) or 1, number(settings, "trainer.n_gpus_per_node", 8.0) or 8
    engine = settings.get(f"{ROLLOUT}.name", "vllm")
    each = number(settings, f"{ROLLOUT}.tensor_model_parallel_size", 2.0) or 2.0
    found["trainer.ranks"] = whole(nodes * gpus)
    found["fleet.engines"] = whole(max(nodes * gpus // each, 1))
    option = "tp_size" if engine == "sglang" else "tensor_parallel_size"
    found[f"engine.server.{option}"] = whole(each)
    if share := settings.get(f"{ROLLOUT}.gpu_memory_utilization"):
        found[f"engine.server.{'mem_fraction_static' if engine == 'sglang' else 'gpu_memory_utilization'}"] = share
    if clip := settings.get(f"{ACTOR}.clip_ratio"):
        found |= {"algo.loss.clip_low": clip, "algo.loss.clip_high": clip}
    for switch, coefficient in (
        (f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef"),
        ("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"),
    ):
        if settings.get(switch, "").lower() == "true":
            found["algo.kl_coef"] = settings.get(coefficient, "0.001")
    return found


VERL = Framework(
    "verl",
    {
        **{"env": "questions", "trainer": "fsdp", "trainer.dtype": "bfloat16", "engine": "vllm"},
        **{"engine.dtype": "bfloat16", "engine.deterministic": "false", "fleet.colocated": "true", "cluster": "ray"},
        **{"rollout.groups_per_step": "1024", "rollout.group_size": "1", "rollout.turn_tokens": "512"},
        **{"algo.loss": "clipped", "algo.loss.dual_clip": "3.0", "algo.normalize": "token"},
        **{"algo.betas": "[0.9,0.999]", "algo.weight_decay": "0.01", "algo.kl_coef": "0", "eval.temperature": "0"},
    },
    RULES,
    PREFIXES,
    derive_settings,
)
