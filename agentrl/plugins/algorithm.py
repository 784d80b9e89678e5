"""A learning algorithm as a plug-in: credit for each trained turn, and a loss of it.

It is a subclass of `Algorithm`, or of `PolicyGradient` where only the advantage is new (`judge`, of one group)
and `algo.loss` names the loss.
Its attribute `settings` is the class of the section `algo.*`; `needs` says what it needs of the loop and the trainer.

- Named by `algo=file.py:CLASS`, `register`, or an entry point in the group `agentrl.algorithms`.
- Proven by `check_algorithm`.
- Examples: `examples/plugins/lite_ppo.py` (an advantage), `examples/plugins/slic.py` (pairs, with a loss of its own).
"""

from typing import TYPE_CHECKING

from agentrl.config import AlgoConfig, Fraction
from agentrl.plugins.later import import_later
from agentrl.rollout.stream.seeds import derive
from agentrl.train.algorithms import ALGORITHMS, Algorithm, Choice, Needs, make_algorithm, register
from agentrl.train.algorithms.base import CriticConfig, RewardModelConfig
from agentrl.train.algorithms.credit import (
    Advantage,
    Credit,
    Label,
    NodeAdvantage,
    NodeKey,
    Pair,
    SequenceKind,
    ids_by_group,
    trainable_nodes,
    weigh,
)
from agentrl.train.algorithms.fields import ForestField
from agentrl.train.algorithms.policy_gradient import PolicyGradient, PolicyGradientConfig
from agentrl.train.algorithms.policy_losses import preset
from agentrl.train.algorithms.returns import by_session, by_turn, change_advantages, credit_of, scores, step_returns
from agentrl.types import Branch, Group, Node, Session

if TYPE_CHECKING:
    from agentrl.plugins.suites.algorithm import check_algorithm
    from agentrl.train.algorithms.labels import label_credit
    from agentrl.train.algorithms.pairs import pair_credit, preference_group, sequence_keys
    from agentrl.train.algorithms.tokens import Tokens
    from agentrl.train.forest.packing import pack_credited
else:
    __getattr__ = import_later(
        __name__,
        "agentrl.train.algorithms.tokens",
        "agentrl.train.algorithms.pairs",
        "agentrl.train.algorithms.labels",
        "agentrl.train.forest.packing",
        "agentrl.plugins.suites.algorithm",
    )

__all__ = [
    "ALGORITHMS",
    "Advantage",
    "AlgoConfig",
    "Algorithm",
    "Branch",
    "Choice",
    "Credit",
    "CriticConfig",
    "ForestField",
    "Fraction",
    "Group",
    "Label",
    "Needs",
    "Node",
    "NodeAdvantage",
    "NodeKey",
    "Pair",
    "PolicyGradient",
    "PolicyGradientConfig",
    "RewardModelConfig",
    "SequenceKind",
    "Session",
    "Tokens",
    "by_session",
    "by_turn",
    "change_advantages",
    "check_algorithm",
    "credit_of",
    "derive",
    "ids_by_group",
    "label_credit",
    "make_algorithm",
    "pack_credited",
    "pair_credit",
    "preference_group",
    "preset",
    "register",
    "scores",
    "sequence_keys",
    "step_returns",
    "trainable_nodes",
    "weigh",
]
