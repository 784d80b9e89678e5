"""Computes logits with PEFT: `compute.py PACKAGES BASE ADAPTERS IDS OUT`; the packages are its folder."""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM


@torch.no_grad()
def main(packages: str, base: str, adapters: str, ids: str, out: str) -> None:
    sys.path.append(packages)
    from peft import PeftModel  # type: ignore[import-not-found]

    found = []
    for adapter in adapters.split(","):
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
        found.append(model(torch.tensor([[int(one) for one in ids.split(",")]])).logits[0])
    torch.save(found, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
