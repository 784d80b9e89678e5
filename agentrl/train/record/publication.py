"""The state of the trainer's weights on their way to an engine: begun to be sent, or recorded.

A version's number says neither: an engine may have it of a trainer that died before the version was compared and
recorded, and another trainer learns a version of the same number. So a publication is done when it is recorded, and
until then it begins anew with whatever trainer there is.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.rollout.engines.managed import as_managed
from agentrl.types import Engine

NEVER = -1
"""`Publication.sent` of an engine that is started with other weights than the trainer begins with."""


@dataclass
class Publication:
    """An engine's last version, as part of a run's state (`train.record.state`).

    Attributes:
        sent: the last version that was begun to be sent; None: the engine has what it was started with.
        recorded: the last version that the engine has for certain.
    """

    sent: int | None = None
    recorded: int | None = None

    def begin(self, engine: Engine, version: int) -> bool:
        """Begin to send a version where it is to be sent; False where the engine was started with it, or has it.

        A server that ran before may have a version of the same number from elsewhere: another run, another policy.
        """
        started_with = self.sent is None and not as_managed(engine).attached and engine.version() == version
        if self.recorded == version or started_with:
            return False
        self.sent = version
        return True

    def lose(self) -> None:
        """A trainer has learned the versions anew, as others than they were."""
        self.recorded = None
