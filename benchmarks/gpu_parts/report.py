"""What all parts share: where figures go, how time and memory are taken, models of random weights.

torch is imported where it is needed: what tests the parts' processes themselves would pay seconds for it.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMOLLM2 = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "tie_word_embeddings": True,
}
QWEN3_06B = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "tie_word_embeddings": True,
}
QWEN3_4B = {
    **QWEN3_06B,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
}
SMALL = {"vocab_size": 512, "intermediate_size": 96, "num_hidden_layers": 2}
"""What `--small` makes of any of them; heads and their groups stay, with 16 for a head's width."""


@dataclass(frozen=True, slots=True)
class Report:
    """Takes a part's figures.

    Attributes:
        file: JSON, a figure a line.
        device: what to run on.
        small: small shapes are requested.
    """

    file: Path
    device: str
    small: bool

    def add(self, what: str, value: float | str, wanted: str = "", ok: bool | None = None) -> None:
        """Keep a figure, at once."""
        shown = value if isinstance(value, str) else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
        with self.file.open("a") as file:
            file.write(json.dumps({"what": what, "value": shown, "wanted": wanted, "ok": ok}) + "\n")
        print(f"{what}: {shown} {wanted}", flush=True)

    def below(self, what: str, value: float, bound: float, *, judged: bool = True) -> None:
        """Keep a figure that should be at most `bound`; one that is not judged here has its bound beside it."""
        self.add(what, value, f"at most {bound:g}", value <= bound if judged else None)

    def above(self, what: str, value: float, bound: float, *, judged: bool = True) -> None:
        """Keep a figure that should be at least `bound`; see `below`."""
        self.add(what, value, f"at least {bound:g}", value >= bound if judged else None)

    def attempt(self, what: str, work: Callable[[], None]) -> None:
        """Do one of several things; that it fails is a figure, and the others are still done."""
        began = time.monotonic()
        try:
            work()
        except Exception as error:
            import traceback

            traceback.print_exc()
            self.add(what, f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}", "no error", False)
        print(f"[{what}: {time.monotonic() - began:.1f} s]", flush=True)
        gc.collect()
        if self.device == "cuda":
            import torch

            torch.cuda.empty_cache()

    def config(self, shape: dict[str, Any], **changes: Any) -> Any:
        """A transformers configuration of a shape, small if that is requested."""
        from transformers import AutoConfig

        fields = {**shape, **(SMALL if self.small else {}), **changes}
        if self.small:
            fields |= {"head_dim": 16, "hidden_size": 16 * fields["num_attention_heads"]}
        return AutoConfig.for_model(fields.pop("model_type"), **fields)

    def folder(self, shape: dict[str, Any], **changes: Any) -> Path:
        """A Hugging Face folder of random weights in that shape, beside the figures; no tokenizer."""
        import torch
        from transformers import AutoModelForCausalLM

        torch.manual_seed(0)
        path = self.file.parent / "model"
        model = AutoModelForCausalLM.from_config(self.config(shape, **changes))
        model.save_pretrained(path)
        return path

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object], repeats: int = 5, warm: int = 2) -> float:
        """The median time of some work, after a warm-up."""
        times = []
        for i in range(warm + repeats):
            self.synchronize()
            began = time.perf_counter()
            work()
            self.synchronize()
            if i >= warm:
                times.append(time.perf_counter() - began)
        return statistics.median(times)

    def peak(self, work: Callable[[], object]) -> float:
        """Bytes that some work takes at most beyond what was taken before; 0 on a CPU, which does not count them."""
        if self.device != "cuda":
            work()
            return 0.0
        import torch

        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated() - before)


def ids(rng: random.Random, count: int, vocabulary: int) -> list[int]:
    """Random tokens."""
    return [rng.randrange(vocabulary) for _ in range(count)]
