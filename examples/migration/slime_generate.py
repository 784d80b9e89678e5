"""A custom generate function as slime's `--custom-generate-function-path` names it: a second look at the answer.

agentrl train env=prompts env.path=rows.jsonl agent="slime:slime_generate.py:generate rm=rewards.py:reward_func"
"""

from __future__ import annotations

from typing import Any

from slime.utils.http_utils import post
from slime.utils.types import Sample

AGAIN = "\nLook again: "
TURNS = 2


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Ask SGLang's router for an answer, and once more behind it."""
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    text, sample.loss_mask = sample.prompt, []
    for _ in range(TURNS):
        reply = await post(url, {"text": text, "sampling_params": sampling_params, "return_logprob": True})
        ids = [entry[1] for entry in reply["meta_info"]["output_token_logprobs"]]
        sample.tokens += ids
        sample.loss_mask += [1] * len(ids)
        text += reply["text"]
        sample.update_from_meta_info(args, reply["meta_info"])
        if sample.status == Sample.Status.TRUNCATED:
            break
        text += AGAIN
    sample.response = text[len(sample.prompt) :]
    sample.response_length = len(sample.tokens)
    return sample
