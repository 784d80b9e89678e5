"""Computes logits with PEFT: `compute.py PACKAGES BASE ADAPTER IDS OUT`; the packages are its folder."""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM


@torch.no_grad()
def main(packages: str, base: str, adapter: str, ids: str, out: str) -> None:
    sys.path.append(packages)
    from peft import PeftModel  # type: ignore[import-not-found]

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    torch.save(model(torch.tensor([[int(one) for one in ids.split(",")]])).logits[0], out)


if __name__ == "__main__":
    main(*sys.argv[1:])
