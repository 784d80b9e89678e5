"""What all tests share: quiet threads, and real parts that are required in CI and optional elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # on two shared cores, spinning threads cost more than they give
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


HEAVY = ("rollout", "train")
"""Folders that start inference servers and trainers: one worker takes them, so that no two are in memory at once."""


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in a hook of the same name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what two workers (`make test`) share between them; what a folder's tests share is then made once."""
    for item in items:
        top = item.path.relative_to(Path(__file__).parent).parts[0]
        item.add_marker(pytest.mark.xdist_group("heavy" if top in HEAVY else "light"))


def need(available: bool, reason: str) -> None:
    """A real part that this test must have: missing, it fails in CI and skips elsewhere, with the reason."""
    if available:
        return
    if os.environ.get("CI"):
        pytest.fail(f"required in CI: {reason}")
    pytest.skip(reason)


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data beside the checkout; tests that want it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("../shared/data is absent")
    return SHARED
