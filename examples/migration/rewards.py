"""Reward functions as they are written for TRL, verl and slime; nothing of agentrl.

agentrl train env=prompts env.path=rows.jsonl rewards.short=trl rewards.short.function=rewards.py:short
agentrl train env=prompts env.path=rows.jsonl rewards.right=verl rewards.right.function=rewards.py:compute_score
agentrl train env=prompts env.path=rows.jsonl rewards.right=slime rewards.right.function=rewards.py:reward_func
"""

from __future__ import annotations

from typing import Any


def short(prompts: list[Any], completions: list[Any], limit: list[int], **kwargs: Any) -> list[float]:
    """TRL: 1 for each completion within its row's limit of characters."""
    return [float(len(text) <= most) for text, most in zip(completions, limit, strict=True)]


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, Any]:
    """verl: whether the answer is in the solution, and its length for the logs."""
    return {"score": float(ground_truth in solution_str), "length": len(solution_str)}


async def reward_func(args: Any, sample: Any, **kwargs: Any) -> float:
    """slime: the same, of a sample."""
    return float(sample.label in sample.response)
