"""A policy loss as a plug-in: a value for each trained token, of its log-probability and its advantage.

It is a subclass of `PolicyLoss` (`SequenceLoss` where ratios are over turns or sessions, `PairLoss` where pairs of
these are compared, which says how a sequence is scored and what two scores cost) whose call takes `Tokens` and
returns a tensor with an entry for each. Its attribute `settings` is the class of the section `algo.loss.*`, a subclass
of `LossConfig`.

- Named by `algo.loss=file.py:CLASS`, or an entry point in the group `agentrl.losses`.
- Proven by `check_loss`.
- Example: `examples/plugins/tempered.py`.
"""

from typing import TYPE_CHECKING

from agentrl.config import Fraction
from agentrl.plugins.later import import_later
from agentrl.train.algorithms.credit import SequenceKind
from agentrl.train.algorithms.fields import ForestField
from agentrl.train.algorithms.policy_losses import LOSSES, LossConfig, PolicyLoss, make_loss
from agentrl.train.algorithms.policy_losses.base import SequenceLoss, SequenceLossConfig
from agentrl.train.algorithms.policy_losses.pairs import PairLoss, PairLossConfig

if TYPE_CHECKING:
    from agentrl.plugins.suites.loss import check_loss
    from agentrl.train.algorithms.tokens import Summand, Tokens
    from agentrl.train.forest.forest import Forest
else:
    __getattr__ = import_later(
        __name__, "agentrl.train.algorithms.tokens", "agentrl.train.forest.forest", "agentrl.plugins.suites.loss"
    )

__all__ = [
    "LOSSES",
    "Forest",
    "ForestField",
    "Fraction",
    "LossConfig",
    "PairLoss",
    "PairLossConfig",
    "PolicyLoss",
    "SequenceKind",
    "SequenceLoss",
    "SequenceLossConfig",
    "Summand",
    "Tokens",
    "check_loss",
    "make_loss",
]
