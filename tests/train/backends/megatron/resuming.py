"""Checkpoints of every layout, gone on from under every layout: `python -m tests.train.backends.megatron.resuming`.

Layouts x distributed optimizer or not x tied embeddings or not x widths that fill buffers' padding or don't. A run
takes a step, saves, and takes another; whoever goes on from the checkpoint has to arrive at the same weights: to the
bit in the same layout, and otherwise as near as sums in another order allow, where Adam's moments of another parameter,
or of none, would lie a learning rate away.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentrl.config import AlgoConfig, TrainerConfig
from agentrl.train.backends.megatron.layout import layout_of
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import WORK, random_forests, sizes
from tests.train.backends.megatron.world import World, open_world

ALGO = AlgoConfig(lr=1e-2, weight_decay=0.1)
NEAR = 0.05
"""Of a learning rate: how far a weight may lie from where it went without a stop, in another layout."""

ONE: dict[str, Any] = {}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": ONE,
    "TP2": {"tensor": 2},
    "PP2": {"pipeline": 2},
    "PP2 in 4 chunks": {"pipeline": 2, "interleave": 2},
    "DP2": {"ranks": 2},
    "CP2": {"context": 2},
    "DP3": {"ranks": 3},
    "TP2 x PP2": {"tensor": 2, "pipeline": 2},
    "PP2 x DP2": {"pipeline": 2, "ranks": 4},
}
WIDTHS = {"odd": (36, 52), "round": (128, 128)}
"""Of the model and of its MLP: a bucket is padded to lcm(data, 128) elements, a parameter to 64."""


@dataclass(frozen=True)
class Kind:
    """What is saved, and how."""

    layout: str
    distributed: bool
    tied: bool
    width: str

    def __str__(self) -> str:
        tied = "tied" if self.tied else "untied"
        return f"{self.under}, {tied}, {self.width} width"

    @property
    def under(self) -> str:
        """Of the layout and the optimizer."""
        return f"{self.layout} with{'' if self.distributed else 'out'} distributed optimizer"

    @property
    def config(self) -> TrainerConfig:
        """The trainer's settings."""
        settings = {"name": "megatron", "distributed_optimizer": self.distributed, **LAYOUTS[self.layout]}
        return TrainerConfig.model_validate(settings)


Pair = tuple[Kind, Kind]
"""Who saved, and who goes on."""


def all_pairs(layouts: Sequence[str] = tuple(LAYOUTS)) -> Iterator[Pair]:
    """Every kind under every layout, with and without the distributed optimizer."""
    for tied, width in itertools.product((True, False), WIDTHS):
        kinds = [Kind(layout, on, tied, width) for layout in layouts for on in (True, False)]
        yield from itertools.product(kinds, kinds)


def try_pairs(world: World, pairs: Iterable[Pair], folder: Path, tell: Callable[[str], None] = print) -> list[str]:
    """Save and go on; what differs, in words. Pairs of one layout share a world."""
    pairs = list(pairs)
    batches = [random_forests(seed, trees=3, budget=60, old=False) for seed in range(2)]
    names = {kind: str(folder / f"state-{i}") for i, kind in enumerate(dict.fromkeys(one for one, _ in pairs))}
    models = {(k.tied, k.width): _model(folder, k) for k in names}
    ends: dict[Kind, Any] = {}
    for layout in dict.fromkeys(kind.layout for kind in names):
        kinds = [kind for kind in names if kind.layout == layout]
        jobs = [(models[k.tied, k.width], None, names[k], k.config) for k in kinds]
        ends |= dict(zip(kinds, _run(world, kinds[0], models, jobs, batches), strict=True))
    wrong: list[str] = []
    for layout in dict.fromkeys(other.layout for _, other in pairs):
        mine = [pair for pair in pairs if pair[1].layout == layout]
        jobs = [(models[k.tied, k.width], names[one], None, k.config) for one, k in mine]
        for (one, other), weights in zip(mine, _run(world, mine[0][1], models, jobs, batches), strict=True):
            problem = _difference(ends[one], weights, exact=one == other)
            tell(f"{one} -> {other.under}: {problem or 'the same'}")
            wrong += [f"{one} -> {other.under}: {problem}"] if problem else []
    return wrong


def _run(world: World, kind: Kind, models: dict[Any, str], jobs: list[Any], batches: list[Any]) -> Any:
    from transformers import AutoConfig

    layout = layout_of(kind.config, AutoConfig.from_pretrained(models[kind.tied, kind.width]))
    return world.run(f"{WORK}:resumptions", jobs, batches, layout, ALGO, size=layout.ranks, **sizes(layout))[0]


def _difference(want: Any, got: Any, *, exact: bool) -> str | None:
    """What is wrong with weights, or with why there are none."""
    if isinstance(want, str) or isinstance(got, str):
        return want if isinstance(want, str) else got
    far = max(float((want[name] - got[name]).abs().max()) for name in want)
    if exact and any(not torch.equal(want[name], got[name]) for name in want):
        return f"not the same bits in the same layout, at most {far:.1e} apart"
    return f"weights lie {far:.1e} apart" if far > NEAR * ALGO.lr else None


def _model(folder: Path, kind: Kind) -> str:
    hidden, inner = WIDTHS[kind.width]
    path = folder / f"model-{kind.tied}-{kind.width}"
    settings = {"hidden_size": hidden, "intermediate_size": inner, "tie_word_embeddings": kind.tied}
    zoo.random_model("llama", {**zoo.CASES["smollm2"][1], **settings}).save_pretrained(path)
    return str(path)


def main() -> None:
    """Try every pair of the layouts that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT", help=f"of {', '.join(LAYOUTS)}; all, if none")
    chosen = parser.parse_args().layouts or list(LAYOUTS)
    if unknown := [name for name in chosen if name not in LAYOUTS]:
        parser.error(f"no layout {unknown[0]!r}: there are {', '.join(LAYOUTS)}")
    with open_world() as world, tempfile.TemporaryDirectory(prefix="resuming-") as folder:
        wrong = try_pairs(world, all_pairs(chosen), Path(folder))
    print(f"{len(wrong)} pairs differ")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
