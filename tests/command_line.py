"""Runs `agentrl` in this process, as a shell would."""

from __future__ import annotations

import pytest

from agentrl.cli import main


def run_agentrl(*words: object) -> int | str:
    """Run a command; returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code or 0
