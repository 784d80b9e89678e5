"""`agentrl convert settings`: its tables name settings that exist on both sides, and its command is one that runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.overrides import fields, parse_words
from agentrl.train.driver.setup import complete
from agentrl.train.migration.rules import Framework
from agentrl.train.migration.scripts import translate
from agentrl.train.migration.slime import SLIME
from agentrl.train.migration.verl import VERL
from tests.conftest import need

VERLS = Path(__file__).parents[3] / ".venv-verl" / "verl" / "trainer" / "config"
FREE = ("env.", "engine.server")
SCRIPT = """#!/bin/bash
set -ex
MODEL="/models/Qwen3-4B"
CKPT_ARGS=(
   --hf-checkpoint ${MODEL}
   # --save-interval 99
   --save runs/qwen3 --save-interval 20
)
ROLLOUT_ARGS=(--prompt-data d.jsonl --input-key prompt --rm-type deepscaler --num-rollout 300 --rollout-batch-size 32
   --n-samples-per-prompt 8 --rollout-max-response-len 8192 --global-batch-size 128)
EVAL_ARGS=( --eval-interval 20 --eval-prompt-data aime a.jsonl )
PERF_ARGS=( --tensor-model-parallel-size 2 --context-parallel-size 2 --max-tokens-per-gpu 9216 --colocate )
ALGO_ARGS=( --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.001 --kl-loss-type low_var_kl --eps-clip 0.2
   --gamma 1.0 --adam-beta2 0.98 --nobody-knows-it 3 --custom-rm-path my.reward )
ray job submit --address="http://127.0.0.1:8265" -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 \\
   --sglang-mem-fraction-static 0.7 ${CKPT_ARGS[@]} ${ROLLOUT_ARGS[@]}
"""
VERL_SCRIPT = """
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo data.train_files=$HOME/train.parquet \\
    data.train_batch_size=256 data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen3-4B \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.kl_loss_coef=0.002 actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.actor.clip_ratio=0.3 algorithm.lam=0.9 \\
    actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.tensor_model_parallel_size=4 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 'trainer.logger=["console"]' +data.mine=1 $@
"""


def run(tmp_path: Path, text: str) -> tuple[list[str], dict[str, Any]]:
    """The lines, and the settings of the command."""
    (script := tmp_path / "run.sh").write_text(text)
    lines = list(translate(script))
    (command,) = [line.removeprefix("command: ") for line in lines if line.startswith("command: ")]
    return lines, parse_words(shlex.split(command)[2:])


@pytest.mark.parametrize("framework", [SLIME, VERL], ids=lambda each: each.name)
@pytest.mark.slow
def test_every_setting_of_ours_in_a_table_exists_and_takes_its_values(framework: Framework) -> None:
    tree = {"env": "calculator", "algo": "ppo", "trainer": "megatron", "engine": "sglang"}
    known = {name for name, _, _ in fields(RunConfig, tree)} | {"algo.scale_by_std"}
    named = {rule.ours for rule in (*framework.rules.values(), *framework.prefixes.values()) if rule.ours}
    assert {name for name in {*named, *framework.always} - known if not name.startswith(FREE)} == set()
    for rule in framework.rules.values():
        assert rule.ours or rule.why
        for value in {*(rule.values or {}).values()} if not rule.ours.startswith("env.") else ():
            around = {"env": "calculator", "trainer": "megatron", "engine": "sglang", "algo.kl_coef": "0"}
            around[rule.ours] = value
            complete(parse_words([f"{name}={each}" for name, each in around.items()]))


@pytest.mark.slow
def test_every_setting_of_verls_in_the_table_is_one_of_verls() -> None:
    need(VERLS.exists(), "verl's package is not there: make .venv-verl/installed")
    names: set[str] = set()
    for file in VERLS.glob("_generated_ppo*trainer.yaml"):
        _leaves(yaml.safe_load(file.read_text()), "", names)
    assert {
        name for name in VERL.rules if not any(each == name or each.startswith(f"{name}.") for each in names)
    } == set()


def _leaves(tree: Any, prefix: str, found: set[str]) -> None:
    for name, value in tree.items() if isinstance(tree, dict) else ():
        found.add(f"{prefix}{name}")
        _leaves(value, f"{prefix}{name}.", found)


def test_a_script_of_slimes_becomes_a_command_that_is_valid(tmp_path: Path) -> None:
    lines, settings = run(tmp_path, SCRIPT)
    config = complete(settings)
    assert (config.model.name, config.run_dir, config.checkpoint_every) == ("/models/Qwen3-4B", "runs/qwen3", 20)
    assert config.env.kwargs == {"path": "d.jsonl", "eval_path": "a.jsonl", "grading": "math"}
    assert (config.rollout.groups_per_step, config.rollout.group_size, config.algo.minibatches) == (32, 8, 2)
    assert (config.trainer.name, config.trainer.token_budget, config.fleet.engines) == ("megatron", 2 * 9216, 8)
    assert (config.algo.betas, config.algo.kl_coef, config.algo.kl_estimator) == ((0.9, 0.98), 0.001, "k3")
    said = "\n".join(lines)
    assert "unknown: --nobody-knows-it 3" in said
    assert "no setting: --custom-rm-path my.reward: rewards.NAME=file.py:CLASS" in said
    assert "--address" not in said  # Ray's own
    assert "before it runs" not in said


def test_a_script_of_verls_becomes_a_command_that_is_valid(tmp_path: Path) -> None:
    lines, settings = run(tmp_path, VERL_SCRIPT)
    config = complete(settings)
    assert (config.algo.name, config.algo.minibatches, config.algo.kl_coef) == ("rloo", 4, 0.002)
    assert (config.fleet.engines, config.trainer.name, config.engine.name) == (2, "fsdp", "sglang")
    assert config.engine.server == {"tp_size": 4, "mem_fraction_static": 0.6}  # type: ignore[attr-defined]
    assert config.rollout.session_tokens == 512 + 1024
    assert any(re.match(r"no setting: trainer\.logger", line) for line in lines)
    assert "unknown: data.mine 1" in lines


def test_a_scripts_variables_are_the_shells_and_foreign_sections_are_named(tmp_path: Path) -> None:
    """A default was not put in, `$HOME` stood where no shell reads it, and sections of no table were left out."""
    script = "MODEL=${MODEL:-Qwen/Q}\npython3 -m verl.trainer.main_ppo data.train_files=$HOME/d.parquet "
    lines, _ = run(tmp_path, f"{script}actor_rollout_ref.model.path=$MODEL +global_profiler.tool=nsys\n")
    command = next(line for line in lines if line.startswith("command: "))
    assert "model=Qwen/Q " in command
    assert '"env.path=$HOME/d.parquet"' in command
    assert "unknown: global_profiler.tool nsys" in lines


def test_a_script_of_neither_is_refused(tmp_path: Path) -> None:
    (script := tmp_path / "run.sh").write_text("echo hello\n")
    with pytest.raises(ConfigError, match="no flags of slime"):
        list(translate(script))
