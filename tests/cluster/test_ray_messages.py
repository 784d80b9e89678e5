"""What Ray says at length is said in a line."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import pytest

from agentrl.cluster.ray.joining import in_a_line, say_briefly
from tests.conftest import need

DIED = """The actor died unexpectedly before finishing this task.
\tclass_name: Starter
\tactor_id: 4bdedc486c46a0298406d1bf01000000
\tpid: 1888
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. Some common causes include: (1) the OOM killer, (2) ray stop."""
RAISED = """The actor died because of an error raised in its creation task, ray::Starter.__init__() (pid=7)
  File "ray.py", line 66, in __init__
    self.process = LocalProcess(role)
agentrl.errors.EngineError: environments can't be started: no such folder"""


def test_an_error_of_rays_is_a_line_which_has_what_was_raised() -> None:
    assert in_a_line(DIED) == "The actor died unexpectedly before finishing this task."
    assert in_a_line(RAISED) == "agentrl.errors.EngineError: environments can't be started: no such folder"
    assert in_a_line(TimeoutError()) == "TimeoutError"


def test_a_death_that_nodes_tell_of_is_left_to_who_waits_and_all_else_is_a_line(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """A killed worker printed a page of possible causes, in the midst of the run's lines."""
    with caplog.at_level(logging.WARNING, "agentrl.cluster"):
        say_briefly({"lines": ["A worker died or was killed while executing a task. To troubleshoot …"]})
        say_briefly({"lines": ["The node is short of disk.\n  df: 99 %\n  Some common causes include: …"]})
    assert caplog.messages == ["Ray: The node is short of disk."]
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_ray_prints_what_nodes_say_by_the_function_that_is_replaced() -> None:
    need(find_spec("ray") is not None, "Ray's messages need Ray (the extra `ray`)")
    from ray._private import worker

    assert "print_to_stdstream" in worker.listen_error_messages.__code__.co_names
