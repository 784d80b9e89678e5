"""Multi-agent actor-critic: a turn's advantage is the critic's one-step error.

Liu et al., Learning Decentralized LLM Collaboration with Multi-Agent Actor Critic (arXiv:2601.21972):

    delta = r + gamma V(h') - V(h)          h: the joint history; V beyond the last turn is 0

Its loss is -delta Σ log π over a turn's tokens, and the critic learns r + gamma V(h'). With `value_path=joint` the
critic is central: it reads what all agents were told and said, and each agent acts on its own path alone. With
`value_view` it reads what the environment tells of all (`Env.critic_view`) besides the agent's own path. Without either
there is a critic for each agent's own history, the paper's other variant.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import SerializeAsAny

from agentrl.config import Fraction
from agentrl.train.algorithms.about import About
from agentrl.train.algorithms.advantages.ppo import Ppo, PpoConfig
from agentrl.train.algorithms.policy_losses import VALIDATED, LossConfig, preset


class MaacConfig(PpoConfig):
    """Settings of `maac`."""

    name: str = "maac"
    gae_step: Literal["token", "turn"] = "turn"
    gae_lambda: Fraction = 0.0
    """As in `CriticConfig`; 0 is the paper's one-step error."""
    gamma: Fraction = 0.9
    """Discount factor per turn."""
    scale_by_std: bool = False
    loss: Annotated[SerializeAsAny[LossConfig], preset("importance_sampling"), VALIDATED] = LossConfig(
        name="importance_sampling"
    )


class Maac(Ppo):
    """Multi-agent actor-critic."""

    name = "maac"
    settings = MaacConfig
    about = About(
        "MAAC, arXiv:2601.21972",
        "r + gamma V(s') - V(s) by turn, V of a critic that may see all agents",
        "teams with rewards on the way; a critic of all agents with `value_path=joint`",
    )
    config: MaacConfig
