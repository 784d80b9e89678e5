"""Makes adapters with PEFT, of random matrices: `make.py PACKAGES IDS OUT KINDS`.

KINDS is JSON: by name a base's folder and PEFT's settings. OUT gets a folder of each name, and `logits.pt`: those of
the model that PEFT loads from it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


@torch.no_grad()
def main(packages: str, ids: str, out: str, kinds: str) -> None:
    sys.path.append(packages)
    from peft import LoraConfig, PeftModel, get_peft_model  # type: ignore[import-not-found]

    found = {}
    for name, (base, settings) in json.loads(kinds).items():

        def load(folder: str = base) -> torch.nn.Module:
            return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # type: ignore[no-any-return]

        model = get_peft_model(load(), LoraConfig(task_type="CAUSAL_LM", **settings))
        for number, (key, parameter) in enumerate(model.named_parameters()):
            if parameter.requires_grad and "magnitude" not in key and "init_lora_weights" not in settings:
                parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) * 0.05
        model.save_pretrained(Path(out) / name)
        loaded = PeftModel.from_pretrained(load(), Path(out) / name)
        found[name] = loaded(torch.tensor([[int(one) for one in ids.split(",")]])).logits[0]
    torch.save(found, Path(out) / "logits.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
