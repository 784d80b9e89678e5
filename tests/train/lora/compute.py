"""Computes logits with PEFT: `compute.py PACKAGES IDS OUT BASE ADAPTER …`; the packages are its folder."""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM


@torch.no_grad()
def main(packages: str, ids: str, out: str, *folders: str) -> None:
    sys.path.append(packages)
    from peft import PeftModel  # type: ignore[import-not-found]

    found = []
    for base, adapter in zip(folders[::2], folders[1::2], strict=True):
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
        found.append(model(torch.tensor([[int(one) for one in ids.split(",")]])).logits[0])
    torch.save(found, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
