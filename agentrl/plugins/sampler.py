"""A choice of tasks as a plug-in: which task each group gets.

It is a subclass of `Sampler` with `choose(number, count)`; `see`, `state` and `restore` where results count. Its
attribute `settings` is the class of the section `rollout.sampler.*`, a subclass of `SamplerConfig`. All randomness
follows from the seed and the number, so that a resumed run goes on with the same tasks; `derive` makes a seed of both.

- Named by `rollout.sampler=file.py:CLASS`, or an entry point in the group `agentrl.samplers`.
- Proven by `check_sampler`.
"""

from agentrl.config import Fraction, SamplerConfig
from agentrl.plugins.suites.sampler import check_sampler
from agentrl.rollout.stream.samplers import SAMPLERS, Sampler, make_sampler
from agentrl.rollout.stream.seeds import derive
from agentrl.types import Group

__all__ = ["SAMPLERS", "Fraction", "Group", "Sampler", "SamplerConfig", "check_sampler", "derive", "make_sampler"]
