"""Publication of a policy's weights, and a check after it that the engines compute what the trainer does.

Checksums compare engines with each other, but not with the trainer, which holds other tensors (sharded, unfused,
in float32). So both score one prompt. A wrong name mapping, a partly loaded layer or a missing scale changes the
log-probabilities by far more than two implementations of the same model differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentrl import faults
from agentrl.config.learners import LearnerConfig
from agentrl.errors import EngineError
from agentrl.rollout.episodes.policies import Policy
from agentrl.rollout.fleet.reference import ReferenceEngine
from agentrl.rollout.weights.buckets import Weights
from agentrl.sessions.tree.incarnations import Loss
from agentrl.train.display.console import Display
from agentrl.train.driver.engine_check import probe_engine
from agentrl.train.driver.learning import Clock, Learner
from agentrl.train.record import provenance
from agentrl.train.record.state import LearnedPolicy
from agentrl.types import MAIN


@dataclass(frozen=True)
class InTraining:
    """A policy that a run trains.

    Attributes:
        config: the sections by which it is trained.
        policy: renderer and engine; without an engine nothing is published.
        learner: learns from its batches.
        probe_bound: of the probe's mean |log-probability difference|.
        reference: an engine that loads what was published from a folder, where weights are proved.
    """

    config: LearnerConfig
    policy: Policy
    learner: Learner
    probe_bound: float = math.inf
    reference: ReferenceEngine | None = None


def name_metrics(policy: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return a policy's metrics as the run's: those of policies besides the main one begin with their name."""
    return dict(metrics) if policy == MAIN else {f"{policy}/{name}": value for name, value in metrics.items()}


async def publish(
    each: InTraining, learned: LearnedPolicy, losses: Sequence[Loss], clock: Clock, display: Display
) -> dict[str, float]:
    """Send a policy's new weights to its engine, compare it with the trainer, and record what it has.

    Where the trainer dies before all of that is done, the next one's weights are sent.

    Raises:
        EngineError: an engine has other weights, or is over the probe's bound.
    """
    published, trainer, engine = learned.published, learned.trainer, each.policy.engine
    version = trainer.version
    if engine is None or published.recorded == version:
        return {}
    found, reference, parts = dict[str, float](), "", dict[str, provenance.SentPart]()
    if published.begin(engine, version):
        with clock("publish"), display.part("publishing weights"):
            await faults.async_point("weights.publish")
            weights = Weights.of(trainer)
            if each.reference is not None:  # it loads whole weights, and has their bits on the same device only
                weights.parts.clear()
            await engine.publish(weights, version)
            parts = provenance.parts_of(weights)
            found = await probe_engine(engine, trainer, each.config.weights.probe_tokens, each.probe_bound)
        if each.reference is not None:
            with clock("prove"), display.part("proving that weights arrived"):
                reference = await each.reference.checksum(Weights(trainer.weights), version)
    probed = found.get("probe/abs_mean")
    bound = None if probed is None else each.probe_bound
    kind, weighing = each.config.engine.name, each.config.weights
    policy = learned.evidence.policy
    had = await provenance.confirm_weights(engine, kind, weighing, losses, probed, bound, reference, policy)
    if wrong := had.undelivered:
        raise EngineError(f"{wrong} (weights.prove_every)")
    learned.evidence.add(replace(had, parts=parts))
    published.recorded = version
    return found
