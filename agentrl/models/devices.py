"""The torch device of a setting."""

from __future__ import annotations

from agentrl.config import Device
from agentrl.errors import ConfigError


def torch_device(device: Device, setting: str) -> str:
    """The device's own name: `auto` is the GPU where there is one.

    Raises:
        ConfigError: a GPU is requested, and torch finds none.
    """
    if device == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if device == "cuda":
        raise ConfigError(
            f"{setting}=cuda: torch {torch.__version__} finds no CUDA device on this machine; use {setting}=cpu or auto"
        )
    return "cpu"
