"""Adapters that PEFT made: each is loaded as PEFT loads it, or refused by the setting that is not computed here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.errors import AgentRLError
from agentrl.models.adapter_merge import merge_adapter
from tests.conftest import need
from tests.train.backends.megatron import zoo
from tests.train.lora.test_lora import ALGO, IDS, PACKAGES, logits, trainer_on

EVERY = ["q_proj", "v_proj", "down_proj"]
LOADED: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("smollm2", {"target_modules": EVERY, "lora_dropout": 0.1}),
    "all": ("smollm2", {"target_modules": "all-linear", "use_rslora": True, "r": 4}),
    "pattern": ("smollm2", {"target_modules": r".*\.layers\.[02]\..*(q|k)_proj", "init_lora_weights": "gaussian"}),
    "some_layers": ("smollm2", {"target_modules": EVERY, "layers_to_transform": [1], "layers_pattern": "layers"}),
    "excluded": ("smollm2", {"target_modules": EVERY, "exclude_modules": ["down_proj"]}),
    "norms": ("smollm2", {"target_modules": EVERY, "modules_to_save": ["norm", "input_layernorm"]}),
    "head": ("moonlight", {"target_modules": ["o_proj"], "modules_to_save": ["lm_head"]}),
    "experts_gates": ("moonlight", {"target_modules": ["gate_proj", "up_proj"]}),  # PEFT patterns their rank and scale
    "experts": ("moonlight", {"target_modules": ["o_proj"], "target_parameters": ["experts.down_proj"]}),
    "fused": ("phi3", {"target_modules": ["qkv_proj"]}),
}
"""By name: the base, and PEFT's settings."""
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "ranks": ("smollm2", {"target_modules": EVERY, "rank_pattern": {"q_proj": 3}}, "rank_pattern"),
    "some_experts": ("moonlight", {"target_modules": ["gate_proj", "up_proj", "o_proj"]}, "rank_pattern"),
    "alphas": ("smollm2", {"target_modules": EVERY, "alpha_pattern": {"q_proj": 3}}, "alpha_pattern"),
    "dora": ("smollm2", {"target_modules": EVERY, "use_dora": True}, "use_dora"),
    "biases": ("qwen2", {"target_modules": EVERY, "bias": "all"}, "bias='all'"),
    "bias_of_lora": ("smollm2", {"target_modules": EVERY, "lora_bias": True}, "lora_bias"),
    "pissa": ("smollm2", {"target_modules": EVERY, "init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
    "olora": ("smollm2", {"target_modules": EVERY, "init_lora_weights": "olora"}, "init_lora_weights='olora'"),
    "tokens": ("smollm2", {"target_modules": EVERY, "trainable_token_indices": [1, 2]}, "trainable_token_indices"),
    "half_tied": ("smollm2", {"target_modules": EVERY, "modules_to_save": ["lm_head"]}, "its base ties them"),
    "router": ("moonlight", {"target_modules": ["o_proj"], "target_parameters": ["gate.weight"]}, "target_parameters"),
    "embedding": ("smollm2", {"target_modules": ["embed_tokens", "q_proj"]}, "embed_tokens"),
    "head_matrices": ("moonlight", {"target_modules": ["lm_head", "o_proj"]}, "lm_head"),
}
"""Likewise, and words of the refusal."""


@pytest.mark.slow
def test_an_adapter_of_peft_has_its_logits_or_is_refused_by_the_setting_that_is_not_computed(tmp_path: Path) -> None:
    need((PACKAGES / "installed").exists(), "PEFT is not there: make .venv-peft/installed")
    kinds = LOADED | {name: (case, settings) for name, (case, settings, _) in REFUSED.items()}
    bases = {case: zoo.write(case, tmp_path / case) for case in {case for case, _ in kinds.values()}}
    given = {name: (str(bases[case]), {"r": 2, **settings}) for name, (case, settings) in kinds.items()}
    command = [sys.executable, str(Path(__file__).with_name("make.py")), str(PACKAGES), ",".join(map(str, IDS))]
    subprocess.run([*command, str(tmp_path / "made"), json.dumps(given)], check=True, timeout=600)
    theirs = torch.load(tmp_path / "made" / "logits.pt")
    for name, (case, _) in LOADED.items():
        adapter, out = tmp_path / "made" / name, tmp_path / "merged" / name
        merge_adapter(bases[case], adapter, out)
        assert (logits(out) - theirs[name]).abs().max() < 1e-5, name
        if name != "pattern":  # its matrices add nothing yet
            assert (logits(bases[case]) - theirs[name]).abs().max() > 1e-3, name
        trainer_on(bases[case], ALGO, adapter=str(adapter)).export(tmp_path / "trained" / name)
        assert (logits(tmp_path / "trained" / name) - theirs[name]).abs().max() < 1e-5, name
    for name, (case, _, words) in REFUSED.items():
        with pytest.raises(AgentRLError) as error:
            trainer_on(bases[case], ALGO, adapter=str(tmp_path / "made" / name))
        assert words in str(error.value), (name, str(error.value))
