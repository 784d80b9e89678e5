"""Our settings in SGLang's words: its command line, by device, and a request's sampling parameters."""

from __future__ import annotations

import os
from typing import Any

from agentrl.common import custom_code
from agentrl.errors import ConfigError
from agentrl.rollout.engines.folder import ModelFacts
from agentrl.rollout.engines.servers import options
from agentrl.rollout.engines.servers.adapters import TOGETHER, target_modules
from agentrl.rollout.engines.servers.images import ServedVision
from agentrl.rollout.engines.servers.options import Platform, option, shared_params
from agentrl.rollout.engines.servers.server_settings import OptionValue, ServerConfig
from agentrl.types import Sampling

SUPPORTED = ((0, 5, 23), (0, 6))
"""The versions that this was read against: from the first on, below the second."""
KEPT = 6
"""Places of the context that the server does not give to a prompt."""
GRAMMARS = "llguidance"
"""The library of its grammars, as `engine.server.grammar_backend` names it: local engines have the same."""
PATCH_VALUES = 1176
"""The numbers of a Qwen2.5-VL's patch by which SGLang knows pixels."""
_KV_BYTES = 2 << 30  # of a CPU's memory, at most; an eighth of it where that is less
OWNED = options.OWNED | {
    "model_path": "model",
    "device": "engine.device",
    "context_length": "engine.max_context",
    "weight_version": "agentrl itself",
    "incremental_streaming_output": "agentrl itself",
    "enable_deterministic_inference": "engine.deterministic",
    "skip_tokenizer_init": "agentrl itself",
}
"""Options that belong to a setting of ours, and which."""


def keeps_to_lark(config: ServerConfig) -> bool:
    """Return whether a server has llguidance's grammars: one of ours unless told otherwise, others where told so."""
    return option(config, "grammar_backend", None if config.url else GRAMMARS) == GRAMMARS


def counts_exactly(config: ServerConfig) -> bool:
    """Return whether a server counts a turn's tokens for penalties as they were drawn.

    Where it overlaps steps it is a token behind, and where it retracts a request it begins anew. One of ours that
    does not overlap counts again (`sglang_extension`).
    """
    return config.url is None and option(config, "disable_overlap_schedule") is True


def refuse_images(config: ServerConfig, vision: ServedVision | None) -> str:
    """Return why a server takes no images of a model in our form (`sglang_extension`); '' where it does."""
    if config.url is not None or option(config, "enable_multimodal") is False:
        return "agentrl did not start the server, or engine.server.enable_multimodal=false"
    if vision is None:
        return ""
    if vision.family == "qwen2_5_vl" and vision.values != PATCH_VALUES:
        return f"SGLang takes patches of {vision.values} numbers for features; of a qwen2_5_vl they have {PATCH_VALUES}"
    return vision.refusal


def sampling_params(sampling: Sampling, limit: int, interval: int) -> dict[str, Any]:
    """Our sampling in SGLang's words.

    Stop tokens are ignored altogether where none were given, since its own end token would stop it otherwise.
    """
    ignores = not sampling.stop_token_ids and not sampling.grammar
    found = shared_params(sampling, interval) | {"max_new_tokens": limit, "ignore_eos": ignores, "no_stop_trim": True}
    if sampling.seed is not None:
        found["sampling_seed"] = sampling.seed & (2**63 - 1)
    if sampling.json_schema is not None:
        found["json_schema"] = sampling.json_schema
    elif sampling.regex is not None:
        found["regex"] = sampling.regex
    elif sampling.lark is not None:
        found["ebnf"] = sampling.lark  # llguidance's backend takes Lark as well
    return found


def refuse_preferred(preferred: object, url: str) -> None:
    """Refuse a server's own sampling parameters where requests don't name them: they change the draws unseen."""
    named = sampling_params(Sampling(), 1, 1).keys()
    if isinstance(preferred, dict) and (unseen := {key: preferred[key] for key in sorted(preferred.keys() - named)}):
        raise ConfigError(
            f"the server at {url} runs with --preferred-sampling-params, whose {unseen} would change what is drawn "
            "without any turn that says so: start it without"
        )


def _adapters(config: ServerConfig, facts: ModelFacts, platform: Platform) -> dict[str, OptionValue]:
    if not config.adapter_rank:
        return {}
    found: dict[str, OptionValue] = {
        "enable_lora": True,
        "max_lora_rank": config.adapter_rank,
        "max_loras_per_batch": TOGETHER,
        "lora_target_modules": target_modules(facts.path),
    }
    return found | ({"lora_backend": "torch_native"} if platform == "cpu" else {})


def launch_options(config: ServerConfig, facts: ModelFacts, platform: Platform) -> dict[str, OptionValue]:
    """Return the options of a server of ours, by device; `engine.server.*` goes above them."""
    seen = ServedVision.read(facts.path)
    found: dict[str, OptionValue] = {
        "model_path": str(facts.path),
        "dtype": config.dtype,
        "weight_version": "0",
        "incremental_streaming_output": True,
        "max_running_requests": config.max_batch,
        "log_level_http": "warning",
        "api_key": config.api_key,
        "enable_return_routed_experts": config.routed_experts or None,
        "grammar_backend": GRAMMARS,
        "sampling_mask_max_tokens": facts.vocab_size if config.support_bytes else None,
        "enable_multimodal": True if seen and not refuse_images(config, seen) else None,
        "trust_remote_code": custom_code.is_allowed(facts.path) or None,
        **_adapters(config, facts, platform),
    }
    context = facts.context
    if config.max_context is not None and config.max_context + KEPT < context:
        context = found["context_length"] = config.max_context + KEPT
    if platform == "cpu":
        memory = min(_KV_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8)
        kv_tokens = memory // max(1, facts.kv_bytes(config.dtype))
        found |= {
            "device": "cpu",
            "attention_backend": "torch_native",
            "sampling_backend": "pytorch",
            "disable_cuda_graph": True,
            "sleep_on_idle": True,  # its scheduler turns a core otherwise, which a trainer could use
            "max_total_tokens": max(context + 1, min(kv_tokens, config.max_batch * context)),
        }
        return found
    found["device"] = "cuda"  # ROCm's torch goes by that name, too
    if config.deterministic:
        found["enable_deterministic_inference"] = True
        if platform == "rocm":
            found["attention_backend"] = "triton"  # the one that is deterministic there
    return found
