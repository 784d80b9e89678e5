"""Which loggers have handlers is known without a look at all of them."""

from __future__ import annotations

import logging

import pytest

from agentrl.envs.check.loggers import LogHandlers


def test_handlers_are_known_of_loggers_that_have_some_and_that_get_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at every logger, before and after each call, took two thirds of a check beside thousands of them."""
    monkeypatch.setattr(logging.Logger, "addHandler", logging.Logger.addHandler)
    early, late, never = (logging.getLogger(f"{__name__}.{name}") for name in ("early", "late", "never"))
    one, other = logging.NullHandler(), logging.NullHandler()
    early.addHandler(one)
    handlers = LogHandlers()
    handlers.install()
    assert handlers.now()[early.name] == (one,)
    assert not {late.name, never.name} & handlers.now().keys()
    late.addHandler(other)
    early.handlers.append(other)
    assert handlers.now()[late.name] == (other,)
    assert handlers.now()[early.name] == (one, other)
    late.removeHandler(other)
    early.handlers.clear()
    assert not {early.name, late.name} & handlers.now().keys()
    assert handlers.now().get("root", ()) == tuple(logging.root.handlers)
