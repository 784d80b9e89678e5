"""Our settings in vLLM's words: its command line, and a request's sampling parameters."""

from __future__ import annotations

from typing import Any

from agentrl.common import custom_code
from agentrl.errors import ConfigError
from agentrl.rollout.engines.folder import ModelFacts
from agentrl.rollout.engines.servers import options
from agentrl.rollout.engines.servers.adapters import TOGETHER, target_modules
from agentrl.rollout.engines.servers.images import ServedVision
from agentrl.rollout.engines.servers.options import Platform, option, shared_params
from agentrl.rollout.engines.servers.server_settings import OptionValue, ServerConfig
from agentrl.types import MOST_PROBABLE, Sampling

SUPPORTED = ((0, 32), (0, 33))
"""The versions that this was read against: from the first on, below the second."""
ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values of its option for the largest rank."""
HELD = 16
"""Adapters that it holds; the least recently used go for others."""
OWNED = options.OWNED | {
    "max_model_len": "engine.max_context",
    "logprobs_mode": "agentrl itself",
    "max_logprobs": "agentrl itself",
    "enable_scale_out": "agentrl itself",
    "enable_prompt_tokens_details": "agentrl itself",
}
"""Options that belong to a setting of ours, and which."""


GRAMMARS: dict[str, Any] = {"backend": "guidance"}
"""`engine.server.structured_outputs_config` of servers whose grammars are llguidance's, as those of local engines."""
PIXELS_AS_THEY_ARE = "no_mm_device_do_normalize"
"""The option without which its towers normalise pixels, which ours are already."""
LISTED = 512
"""Tokens that a server of ours gives log-probabilities of, at most: what a token was drawn from is read off them."""


def count_listed(sampling: Sampling, most: int) -> int:
    """Return of how many tokens log-probabilities are needed, so that what is left of the vocabulary can be told.

    One more than can be left, since equally probable tokens are all left; the server gives `most`.
    """
    return min(most, LISTED if sampling.top_k is None else sampling.top_k + 1)


def keeps_to_lark(config: ServerConfig) -> bool:
    """Return whether a server has llguidance's grammars: one of ours unless told otherwise, others where told so."""
    return option(config, "structured_outputs_config", None if config.url else GRAMMARS) == GRAMMARS


def refuse_images(config: ServerConfig, vision: ServedVision | None) -> str:
    """Return why a server takes no images of a model; '' where it does."""
    limits = option(config, "limit_mm_per_prompt")
    if option(config, "language_model_only") is True or (isinstance(limits, dict) and limits.get("image") == 0):
        return "engine.server.language_model_only=true, or engine.server.limit_mm_per_prompt allows none"
    if option(config, PIXELS_AS_THEY_ARE, config.url is None) is not True:
        said = f"engine.server.{PIXELS_AS_THEY_ARE}=true has to say so"
        return f"it normalises pixels again unless started with --no-mm-device-do-normalize, and {said}"
    return "" if vision is None else vision.refusal


def keeps_images(config: ServerConfig) -> bool:
    """Return whether a server keeps images' numbers under their digests, as one of ours with its own settings does."""
    others = ("mm_processor_cache", "data_parallel", "api_server_count")
    return config.url is None and not any(name.replace("-", "_").startswith(others) for name in config.server)


def sampling_params(sampling: Sampling, limit: int, interval: int) -> dict[str, Any]:
    """Our sampling in vLLM's words."""
    found = shared_params(sampling, interval) | {
        "max_tokens": limit,
        "ignore_eos": not sampling.grammar,
        "logprobs": sampling.top_logprobs + 1 if sampling.top_logprobs else 0,  # the sampled token is one of them
        "include_stop_str_in_output": True,
        "detokenize": bool(sampling.stop),
    }
    if sampling.seed is not None:
        found["seed"] = sampling.seed & (2**63 - 1)
    if sampling.json_schema is not None:
        found["structured_outputs"] = {"json": sampling.json_schema}
    elif sampling.regex is not None:
        found["structured_outputs"] = {"regex": sampling.regex}
    elif sampling.lark is not None:
        found["structured_outputs"] = {"grammar": sampling.lark}
    return found


def launch_options(config: ServerConfig, facts: ModelFacts, platform: Platform) -> dict[str, OptionValue]:
    """Return the options of a server of ours; `engine.server.*` goes above them."""
    return {
        "dtype": config.dtype,
        "max_model_len": facts.context if config.max_context is None else config.max_context,
        "max_num_seqs": config.max_batch,
        "logprobs_mode": "processed_logprobs",
        "structured_outputs_config": GRAMMARS,
        "max_logprobs": LISTED if config.support_bytes else MOST_PROBABLE + 1,
        "enable_scale_out": True,
        "enable_prompt_tokens_details": True,
        "disable_uvicorn_access_log": True,
        "api_key": config.api_key,
        "enable_return_routed_experts": config.routed_experts or None,
        "trust_remote_code": custom_code.is_allowed(facts.path) or None,
        "enforce_eager": True if platform == "cpu" else None,
        **({"limit_mm_per_prompt": {"video": 0}, PIXELS_AS_THEY_ARE: True} if ServedVision.read(facts.path) else {}),
        "worker_extension_cls": "agentrl_vllm.WorkerExtension" if platform == "cpu" else None,
        **_adapters(config.adapter_rank, facts),
    }


def _adapters(rank: int, facts: ModelFacts) -> dict[str, OptionValue]:
    if not rank:
        return {}
    least = next((each for each in ADAPTER_RANKS if each >= rank), None)
    if least is None:
        raise ConfigError(f"engine.adapter_rank={rank}: vllm computes ranks up to {ADAPTER_RANKS[-1]}")
    return {
        "enable_lora": True,
        "max_lora_rank": least,
        "max_loras": TOGETHER,
        "max_cpu_loras": HELD,
        "lora_target_modules": target_modules(facts.path),
    }
