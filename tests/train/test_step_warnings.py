from __future__ import annotations

from agentrl.rollout.workers.held import ToolCalls
from agentrl.train.display.step_warnings import ENOUGH, describe_unread_calls


def test_a_step_without_a_single_readable_call_says_so_with_the_renderers_name() -> None:
    turns = [ToolCalls(1, 0, 1)] * (ENOUGH - 1)
    assert describe_unread_calls("hermes", turns) is None
    warning = describe_unread_calls("hermes", [*turns, ToolCalls(1, 0, 0)]) or ""
    assert "'hermes' may not fit" in warning
    assert f"{ENOUGH - 1} malformed" in warning


def test_one_good_call_or_no_tools_on_offer_keep_it_quiet() -> None:
    assert describe_unread_calls("hermes", [ToolCalls(0, 0, 0)] * 2 * ENOUGH) is None
    silent = [ToolCalls(ENOUGH, 0, 0)]
    assert "nothing that looks like one" in (describe_unread_calls("hermes", silent) or "")
    assert describe_unread_calls("hermes", [*silent, ToolCalls(1, 1, 0)]) is None
