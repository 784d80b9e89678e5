"""Names of request fields that change the sampled text, in whichever protocol or server they are understood.

A field that a protocol's package doesn't know is ignored, unless it is one of these or spelt nearly like one:
passing that over would train on other text than was requested.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_SAME = (
    ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "num_predict", "max_length"),
    ("stop", "stop_sequences"),
    ("messages", "input", "prompt", "input_ids", "inputs"),
    ("system", "instructions", "system_prompt"),
    ("response_format", "text", "output_config", "output_format", "response_schema", "json_schema"),
    ("reasoning", "reasoning_effort", "thinking", "think", "enable_thinking", "thinking_budget"),
    ("seed", "random_seed"),
    ("temperature", "temp"),
    ("tools", "functions"),
    ("tool_choice", "function_call"),
)
"""Names that protocols and servers have for the same thing."""

_PROTOCOLS = (
    *("n", "top_p", "top_k", "logit_bias", "frequency_penalty", "presence_penalty", "logprobs", "top_logprobs"),
    *("previous_response_id", "conversation", "truncation", "suffix", "echo", "best_of", "prefill", "container"),
    *("context_management", "parallel_tool_calls", "web_search_options", "mcp_servers", "model", "stream"),
)
_SERVERS = (
    *("min_p", "top_a", "typical_p", "tfs_z", "mirostat", "mirostat_tau", "mirostat_eta", "do_sample", "num_beams"),
    *("repetition_penalty", "repeat_penalty", "length_penalty", "no_repeat_ngram_size", "early_stopping"),
    *("use_beam_search", "min_tokens", "min_new_tokens", "ignore_eos", "stop_token_ids", "stop_regex", "bad_words"),
    *("allowed_token_ids", "no_stop_trim", "include_stop_str_in_output", "skip_special_tokens", "watermark"),
    *("watermarking", "repetition_detection", "thinking_token_budget", "spaces_between_special_tokens"),
    *("add_special_tokens", "add_generation_prompt", "continue_final_message", "truncate_prompt_tokens"),
    *("truncation_side", "chat_template", "chat_template_kwargs", "documents", "structured_outputs", "regex", "ebnf"),
    *("grammar", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag", "lora_path"),
    *("lora_request", "logits_processors", "custom_logit_processor", "custom_params", "vllm_xargs", "safe_prompt"),
    *("generation_config", "sampling_params", "num_ctx", "options"),
)
"""Fields that vLLM, SGLang, TGI, llama.cpp, Ollama and Mistral understand beside OpenAI's."""

SAMPLING: Mapping[str, Any] = MappingProxyType(
    {
        **{"temperature": 1.0, "top_p": 1.0, "top_k": None, "min_p": 0.0, "logit_bias": {}},
        **{"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "repeat_penalty": 1.0},
        **{"seed": None, "random_seed": None},
    }
)
"""Sampling parameters, which in a run are the run's to decide, and the values that change nothing."""
CHANGE_TEXT = frozenset({*_PROTOCOLS, *_SERVERS, *(name for names in _SAME for name in names)})


def misspelt(name: str, known: frozenset[str] | set[str]) -> str | None:
    """The known name that `name` is nearly spelt like: another case, no underscores, a letter wrong."""
    plain = {_letters(one): one for one in sorted(known)}
    found = difflib.get_close_matches(_letters(name), plain, n=1, cutoff=0.85)
    return plain[found[0]] if found else None


def called_here(name: str, known: frozenset[str] | set[str]) -> str | None:
    """Return the name that a protocol with these names has for what another calls `name`."""
    for names in _SAME:
        if name in names:
            return next((one for one in names if one in known), None)
    return None


def _letters(name: str) -> str:
    return "".join(c for c in name[:64].lower() if c.isalnum())
