"""A trainer as a plug-in: it computes log-probabilities of token trees, and learns from them.

It is an object with the protocol `Trainer`, made by a `TrainerPlugin` that says what is known before it starts: its
settings (`trainer.*`), how many ranks it has and how they share the model (`split`), what they keep on a device
(`numbers` or `memory`). A class that takes a folder, its settings and the algorithm's is a plug-in too, with one rank.

A batch is a sequence of `Forest`s. `Forest.rows` are its trained tokens; `objective` is the loss of a forest, whatever
the algorithm, and `Meter` gathers the numbers that a run logs. `paths_to_leaves` gives a forest's paths, for models
that compute rows. More protocols are for those who can do more: `Critic`, `Rewarder`, `Averager`, `MemoryReleasing`
(colocated engines), `ShareableTrainer` (on a cluster, sessions and forests then never pass the run's process).

- Named by `trainer=file.py:TRAINER`, or an entry point in the group `agentrl.trainers`.
- Proven by `check_trainer`.
- Example: `examples/plugins/row_trainer.py`.
"""

from typing import TYPE_CHECKING

from agentrl.config import AlgoConfig, Fraction, TrainerConfig
from agentrl.errors import ConfigError, InvalidInput, TrainerError
from agentrl.models.folders import export_folder, read_side_files
from agentrl.plugins.later import import_later
from agentrl.train.algorithms import Algorithm, make_algorithm
from agentrl.train.plan.memory import Numbers, Split, TrainerMemory
from agentrl.train.plan.shapes import Shape
from agentrl.train.trainers import (
    TRAINERS,
    Averager,
    Computing,
    Critic,
    JointCritic,
    MemoryReleasing,
    Rewarder,
    ShareableTrainer,
    Trainer,
    TrainerAccess,
    TrainerConnection,
    TrainerPlugin,
    make_trainer,
)

if TYPE_CHECKING:
    from agentrl.plugins.suites.trainer import check_trainer
    from agentrl.train.algorithms.objective import Meter, add_sums, empty_sums, objective
    from agentrl.train.algorithms.tokens import Tokens
    from agentrl.train.forest.forest import Forest, Membership, Rows, sequence_count, token_counts
    from agentrl.train.trainers.reference import paths_to_leaves
else:
    __getattr__ = import_later(
        __name__,
        "agentrl.train.algorithms.tokens",
        "agentrl.train.algorithms.objective",
        "agentrl.train.forest.forest",
        "agentrl.train.trainers.reference",
        "agentrl.plugins.suites.trainer",
    )

__all__ = [
    "TRAINERS",
    "AlgoConfig",
    "Algorithm",
    "Averager",
    "Computing",
    "ConfigError",
    "Critic",
    "Forest",
    "Fraction",
    "InvalidInput",
    "JointCritic",
    "ShareableTrainer",
    "Membership",
    "Meter",
    "Numbers",
    "Rewarder",
    "Rows",
    "Shape",
    "MemoryReleasing",
    "Split",
    "Tokens",
    "Trainer",
    "TrainerAccess",
    "TrainerConfig",
    "TrainerConnection",
    "TrainerError",
    "TrainerMemory",
    "TrainerPlugin",
    "add_sums",
    "check_trainer",
    "empty_sums",
    "export_folder",
    "make_algorithm",
    "make_trainer",
    "objective",
    "paths_to_leaves",
    "read_side_files",
    "sequence_count",
    "token_counts",
]
