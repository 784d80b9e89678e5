"""Software tasks of `env=swe`: read, written and proven by a program; docs/swe-tasks.md says what one is.

A task is a folder in Harbor's format (`harbor`), or one of the built-in ones (`library`).

- Named by `env=swe env.path=FOLDER`.
- Proven by `prove`.
"""

from agentrl.envs.builtin.swe import library
from agentrl.envs.builtin.swe.formats import harbor
from agentrl.envs.builtin.swe.generation.proof import prove
from agentrl.envs.builtin.swe.task import SweTask

__all__ = ["SweTask", "harbor", "library", "prove"]
