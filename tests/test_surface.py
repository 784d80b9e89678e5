"""`import agentrl`: what it offers, and what it spares its users."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agentrl

HEAVY = (
    *("torch", "transformers", "numpy", "pyarrow", "docker", "openai", "anthropic", "httpx"),
    *("fastapi", "ray", "sglang", "megatron"),
)
WRITTEN = """
import sys, agentrl
def heavy(what): print(what, *[name for name in {heavy!r} if name in sys.modules])
class Shop(agentrl.Env):
    @agentrl.tool
    def search(self, query: str) -> str:
        'Find.'
    @agentrl.reward
    def sold(self, session): return 1.0
agentrl.register("shop", Shop)
agentrl.make("shop").tools.schemas()
heavy("agentrl")
import agentrl.envs; heavy("agentrl.envs")
import agentrl.envs.check; heavy("agentrl.envs.check")
import agentrl.tools; heavy("agentrl.tools")
import agentrl.envs.builtin.gsm8k; heavy("agentrl.envs.builtin.gsm8k")
"""
"""What an author writes and imports, one after another; after each, what heavy modules there are."""


@pytest.mark.slow
def test_an_environments_author_pays_for_nothing_heavy():
    code = WRITTEN.format(heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    modules = ["agentrl", "agentrl.envs", "agentrl.envs.check", "agentrl.tools", "agentrl.envs.builtin.gsm8k"]
    assert done.stdout.split() == modules


def test_every_public_name_is_there_and_nothing_else_is():
    for name in agentrl.__all__:
        assert callable(getattr(agentrl, name)), name
        assert name in dir(agentrl)
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        _ = agentrl.trane  # type: ignore[attr-defined]


@pytest.mark.slow
def test_train_can_be_called_whatever_was_imported_before():
    code = (
        "import agentrl.train; from agentrl.train.driver import api; assert callable(agentrl.train); print(api.train)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("<function train"), done.stderr


@pytest.mark.slow
def test_an_environment_is_named_first_or_by_keyword_and_its_settings_stand_beside_it():
    from agentrl.train.driver.api import configure

    for first, settings in (
        ("gsm8k", {"env": {"path": "p"}}),
        ("gsm8k", {"env.path": "p"}),
        (None, {"env": {"name": "gsm8k", "path": "p"}}),
        (None, {"env": "gsm8k", "env.path": "p"}),
    ):
        config = configure(first, settings)
        assert (config.env.name, config.env.kwargs) == ("gsm8k", {"path": "p"})
    with pytest.raises(agentrl.errors.ConfigError, match="env is given twice, as 'gsm8k' and as env='calculator'"):
        configure("gsm8k", {"env": "calculator"})
    with pytest.raises(agentrl.errors.ConfigError, match="'env' is required"):
        configure(None, {"steps": 3})
    for given in (lambda: None, agentrl.make("calculator")):
        with pytest.raises(agentrl.errors.ConfigError, match=r"^env is <.*allowed are a name, .* and a class"):
            configure(given, {})  # type: ignore[arg-type]
