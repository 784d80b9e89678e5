"""Runs `agentrl` in this process, as a shell would."""

from __future__ import annotations

import functools

import pytest
import typer

from agentrl.cli import main

typer.main.get_command = functools.cache(typer.main.get_command)
"""A process of a user's builds all commands once, in 0.04 s; this one would for each command that it runs."""


def run_agentrl(*words: object) -> int | str:
    """Run a command; returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code or 0
