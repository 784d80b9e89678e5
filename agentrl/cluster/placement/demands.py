"""The demands on a cluster's nodes: units of roles, and how trainer and engines share GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from agentrl.errors import InvalidInput

Layout = Literal["disaggregated", "colocated", "mixed"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


@dataclass(frozen=True)
class Demand:
    """Equal units of one role, each on one node.

    Attributes:
        role: `trainer`, `engine`, `environments`, `rewards` or `gateway`.
        count: how many units.
        gpus: GPUs of a unit, all on its node.
        cpus: CPU cores of a unit.
        memory: GiB that it needs on each of its GPUs; 0 is not checked.
        custom: other resources of a unit, by name.
        node: the name of the only node that it may be on; '' is any.

    Raises:
        InvalidInput: a number is negative.
    """

    role: str
    count: int
    gpus: int = 0
    cpus: float = 0.0
    memory: float = 0.0
    custom: Mapping[str, float] = field(default_factory=dict)
    node: str = ""

    def __post_init__(self) -> None:
        for name in ("count", "gpus", "cpus", "memory"):
            if getattr(self, name) < 0:
                raise InvalidInput(f"{self.role}: {name}={getattr(self, name):g} must not be negative")
        for name, amount in self.custom.items():
            if amount < 0:
                raise InvalidInput(f"{self.role}: custom.{name}={amount:g} must not be negative")


@dataclass(frozen=True)
class Wanted:
    """All that a run needs.

    Attributes:
        trainer: the trainer's ranks; a unit is a tensor-parallel group.
        engines: the engines; a unit is one with all of its tensor x pipeline ranks.
        others: workers without a part in layouts.
        layout: how trainer and engines share GPUs.
        colocated_engines: with layout=mixed, how many engines are on the trainer's GPUs.

    Raises:
        InvalidInput: the parts contradict each other.
    """

    trainer: Demand
    engines: Demand
    others: tuple[Demand, ...] = ()
    layout: Layout = "disaggregated"
    colocated_engines: int | None = None

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise InvalidInput(f"layout={self.layout!r} is none of: {', '.join(LAYOUTS)}")
        if self.layout != "disaggregated" and not (self.trainer.gpus and self.engines.gpus):
            without = self.engines if self.trainer.gpus else self.trainer
            raise InvalidInput(f"layout={self.layout} shares GPUs, and {without.role} has none (gpus=0)")
        number = self.colocated_engines
        if self.layout == "mixed" and (number is None or not 0 < number < self.engines.count):
            raise InvalidInput(
                f"layout=mixed needs colocated_engines from 1 to {self.engines.count - 1} (of {self.engines.count} "
                f"engines), not {number}"
            )
        if self.layout != "mixed" and number is not None:
            raise InvalidInput(f"colocated_engines={number} is for layout=mixed; layout is {self.layout}")

    @property
    def shared(self) -> int:
        """The number of engines on the trainer's GPUs."""
        return {"disaggregated": 0, "colocated": self.engines.count}.get(self.layout, self.colocated_engines or 0)

    @property
    def demands(self) -> tuple[Demand, ...]:
        """All demands, trainer and engines first."""
        return (self.trainer, self.engines, *self.others)
