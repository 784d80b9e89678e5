"""Checkpoints of every layout, gone on from under every layout: `python -m tests.train.backends.megatron.resuming`.

Layouts x distributed optimizer or not x tied embeddings or not x widths that fill buffers' padding or don't. A run
takes a step, saves, and takes another; whoever goes on from the checkpoint has to arrive at the same weights: to the
bit in the same layout, and otherwise as near as sums in another order allow, where Adam's moments of another parameter,
or of none, would lie a learning rate away.

The command tries every pair of the layouts that it is given, or with `--pairwise` only some (`covering`), in which
every two of those choices meet, and every two layouts in one direction. Tests do so with the layouts of `TESTED`.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentrl.config import AlgoConfig
from agentrl.train.trainers.megatron.layout import layout_of
from agentrl.train.trainers.megatron.settings import MegatronConfig
from tests.train.backends.megatron import zoo
from tests.train.backends.megatron.batches import WORK, random_forests, sizes
from tests.train.backends.megatron.world import World, open_world

ALGO = AlgoConfig(lr=1e-2, weight_decay=0.1)
NEAR = 0.05
"""Of a learning rate: how far a weight may lie from where it went without a stop, in another layout."""

ONE: dict[str, Any] = {}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": ONE,
    "TP2": {"tensor_parallel": 2},
    "PP2": {"pipeline_parallel": 2},
    "PP2 in 4 chunks": {"pipeline_parallel": 2, "virtual_pipeline": 2},
    "DP2": {"ranks": 2},
    "DP3": {"ranks": 3},
    "CP2": {"context_parallel": 2},
    "TP2 x PP2": {"tensor_parallel": 2, "pipeline_parallel": 2},
    "PP2 x DP2": {"pipeline_parallel": 2, "ranks": 4},
    "TP2 x CP2": {"tensor_parallel": 2, "context_parallel": 2},
}
TESTED = ("one rank", "PP2", "DP3", "CP2", "TP2 x PP2", "PP2 x DP2")
"""Of those, what tests try: each way to share weights and state, alone and with another."""
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
    def config(self) -> MegatronConfig:
        """The trainer's settings."""
        settings = {"name": "megatron", "distributed_optimizer": self.distributed, **LAYOUTS[self.layout]}
        return MegatronConfig.model_validate(settings)


Pair = tuple[Kind, Kind]
"""Who saved, and who goes on."""


def all_pairs(layouts: Sequence[str] = tuple(LAYOUTS)) -> Iterator[Pair]:
    """Every kind under every layout, with and without the distributed optimizer."""
    for tied, width in itertools.product((True, False), WIDTHS):
        kinds = [Kind(layout, on, tied, width) for layout in layouts for on in (True, False)]
        yield from itertools.product(kinds, kinds)


def covering(layouts: Sequence[str] = tuple(LAYOUTS)) -> list[Pair]:
    """Some of all pairs, so that every two choices meet in one: on either side, and of either side.

    Whoever goes on is the same layout as who saved, or a later one of the list, so that one pass over the layouts does.
    """
    places = {name: i for i, name in enumerate(layouts)}
    left = {pair: _meetings(pair) for pair in all_pairs(layouts) if places[pair[0].layout] <= places[pair[1].layout]}
    wanted = set[Any]().union(*left.values())
    chosen: list[Pair] = []
    while wanted:
        saved = {one for one, _ in chosen}
        best = max(left, key=lambda pair: (len(left[pair] & wanted), pair[0] in saved))
        wanted -= left.pop(best)
        chosen.append(best)
    return chosen


def _meetings(pair: Pair) -> set[Any]:
    """Every two choices that a pair makes."""
    one, other = pair
    choices = {"one": one.layout, "other": other.layout, "sharing": one.distributed, "then sharing": other.distributed}
    return set(itertools.combinations((choices | {"tied": one.tied, "width": one.width}).items(), 2))


def try_pairs(world: World, pairs: Iterable[Pair], folder: Path, tell: Callable[[str], None] = print) -> list[str]:
    """Save and go on; what differs, in words. Pairs of one layout share a world."""
    pairs = list(pairs)
    batches = [random_forests(seed, trees=2, budget=200, old=False) for seed in range(2)]
    names = {kind: str(folder / f"state-{i}") for i, kind in enumerate(dict.fromkeys(one for one, _ in pairs))}
    models = {(k.tied, k.width): _model(folder, k) for k in names}
    ends: dict[Kind, Any] = {}
    wrong: list[str] = []
    while pairs:
        layout = _next(pairs, ends)
        kinds = [kind for kind in names if kind.layout == layout and kind not in ends]
        mine = [pair for pair in pairs if pair[1].layout == layout and (pair[0] in ends or pair[0] in kinds)]
        pairs = [pair for pair in pairs if pair not in mine]
        jobs = [(models[k.tied, k.width], None, names[k], k.config) for k in kinds]
        jobs += [(models[k.tied, k.width], names[one], None, k.config) for one, k in mine]
        results = _run(world, (kinds or [mine[0][1]])[0], models, jobs, batches)
        ends |= dict(zip(kinds, results, strict=False))
        for (one, other), weights in zip(mine, results[len(kinds) :], strict=True):
            problem = _difference(ends[one], weights, exact=one == other)
            tell(f"{one} -> {other.under}: {problem or 'the same'}")
            wrong += [f"{one} -> {other.under}: {problem}"] if problem else []
    return wrong


def _next(pairs: Sequence[Pair], ends: Mapping[Kind, Any]) -> str:
    """The first layout that has something to save; else the first that has a pair left."""
    layouts = {one.layout for one, _ in pairs if one not in ends} or {other.layout for _, other in pairs}
    return next(name for name in LAYOUTS if name in layouts)


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
    from transformers.utils import logging

    hidden, inner = WIDTHS[kind.width]
    path = folder / f"model-{kind.tied}-{kind.width}"
    settings = {"hidden_size": hidden, "intermediate_size": inner, "tie_word_embeddings": kind.tied}
    logging.disable_progress_bar()
    zoo.random_model("llama", {**zoo.CASES["smollm2"][1], **settings}).save_pretrained(path)
    return str(path)


def main() -> None:
    """Try every pair of the layouts that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT", help=f"of {', '.join(LAYOUTS)}; all, if none")
    parser.add_argument("--pairwise", action="store_true", help="try fewer pairs, in which every two choices meet")
    arguments = parser.parse_args()
    chosen = arguments.layouts or list(LAYOUTS)
    if unknown := [name for name in chosen if name not in LAYOUTS]:
        parser.error(f"no layout {unknown[0]!r}: there are {', '.join(LAYOUTS)}")
    with open_world() as world, tempfile.TemporaryDirectory(prefix="resuming-") as folder:
        pairs = list((covering if arguments.pairwise else all_pairs)(chosen))
        wrong = try_pairs(world, pairs, Path(folder))
    print(f"{len(wrong)} of {len(pairs)} pairs differ")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
