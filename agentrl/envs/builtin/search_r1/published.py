"""The seven data sets of Search-R1 and the exact match that the paper states, to print beside one's own.

The figures are those of arXiv:2503.09516v5, by PPO and by GRPO. They were compared with what other papers
and projects quote from it, not with the paper's own file.
"""

from __future__ import annotations

from collections.abc import Mapping

SETS: Mapping[str, tuple[str, int]] = {
    "nq": ("NQ", 1),
    "triviaqa": ("TriviaQA", 1),
    "popqa": ("PopQA", 1),
    "hotpotqa": ("HotpotQA", 2),
    "2wikimultihopqa": ("2Wiki", 2),
    "musique": ("MuSiQue", 2),
    "bamboogle": ("Bamboogle", 2),
}
"""By `data_source`: the set's name, and how many passages its questions need at least."""
RESULTS: Mapping[str, tuple[float, ...]] = {
    "Qwen2.5-7B, PPO": (0.480, 0.638, 0.457, 0.433, 0.382, 0.196, 0.432),
    "Qwen2.5-7B, GRPO": (0.395, 0.560, 0.388, 0.326, 0.297, 0.125, 0.360),
    "Qwen2.5-7B-Instruct, PPO": (0.393, 0.610, 0.397, 0.370, 0.414, 0.146, 0.368),
    "Qwen2.5-7B-Instruct, GRPO": (0.429, 0.623, 0.427, 0.386, 0.346, 0.162, 0.400),
    "Qwen2.5-3B, PPO": (0.406, 0.587, 0.435, 0.284, 0.273, 0.049, 0.088),
    "Qwen2.5-3B, GRPO": (0.421, 0.583, 0.413, 0.297, 0.274, 0.066, 0.128),
    "Qwen2.5-3B-Instruct, PPO": (0.341, 0.545, 0.378, 0.324, 0.319, 0.103, 0.264),
    "Qwen2.5-3B-Instruct, GRPO": (0.397, 0.565, 0.391, 0.331, 0.310, 0.124, 0.232),
}
"""By model and algorithm: exact match on the sets of `SETS`, in their order."""


def rows(metrics: Mapping[str, float]) -> list[tuple[str, ...]]:
    """A table: its head, the published rows, and last one of an evaluation.

    Args:
        metrics: of an evaluation's `result.json`; a set that it has no questions of is shown as a dash.
    """
    own = [metrics.get(f"reward/exact_{source}") for source in SETS]
    head = ("", *(name for name, _ in SETS.values()))
    published = [(model, *(f"{value:.3f}" for value in values)) for model, values in RESULTS.items()]
    return [head, *published, ("this evaluation", *("-" if value is None else f"{value:.3f}" for value in own))]
