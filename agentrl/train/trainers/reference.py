"""A small random forest in plain transformers: every path as a row of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agentrl.attachments import images
from agentrl.attachments.images import ImageInputs
from agentrl.models.vision import of_vision
from agentrl.models.vision_trials import RandomImages, own_inputs
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.pictures import FIRST, Pictures, images_along
from agentrl.types import Message, Node

IMAGE_SHARE = 0.4
"""The share of branches that have images."""
BEHIND = 1
"""A token that is behind each image, as in all families: two side by side would be one to some of them."""


def random_forest(
    rng: random.Random,
    vocabulary: int,
    levels: Sequence[int] = (1, 3, 0),
    context: int | None = None,
    seen: RandomImages | None = None,
) -> Forest:
    """Trees of random tokens, with branches, shorter and longer than NEAR; all but roots and images are trained.

    Args:
        rng: the random generator.
        vocabulary: token ids are below it.
        levels: of branching, for each tree.
        context: the last tree ends at this position; by default it begins at 0, like the others.
        seen: draws the images that are in every root and in some branches; None: there are none.
    """
    tokens, position, end, parents = list[int](), list[int](), list[int](), list[int]()
    pictures = Pictures()

    def grow(parent: int, depth: int, branchings: int) -> None:
        first = len(tokens)
        drawn = [rng.randrange(1, vocabulary) for _ in range(rng.randint(3, 8))]
        if seen is not None:
            drawn = [token - (token == seen.token) for token in drawn]
            if parent < 0 or rng.random() < IMAGE_SHARE:
                drawn[1:1] = _name_images(pictures, seen.draw(rng))
        last = first + len(drawn)
        tokens.extend(drawn)
        for place in range(first, last):
            position.append(depth + place - first)
            parents.append(parent if place == first else place - 1)
        end.extend([0] * (last - first))
        for _ in range(rng.randint(2, 3) if branchings else 0):
            grow(last - 1, depth + last - first, branchings - 1)
        end[first:last] = [len(tokens)] * (last - first)

    for branchings in levels:
        last_tree = len(tokens)
        grow(-1, 0, branchings)
    if context is not None:
        away = max(0, context - 1 - max(position))  # so that every path ends within the context
        position[last_tree:] = [place + away for place in position[last_tree:]]
    parent = torch.tensor(parents)
    forest = bare_forest(
        torch.tensor(tokens),
        torch.tensor(position),
        torch.tensor(end),
        parent,
        weight=torch.where(parent >= 0, 1.0 / len(tokens), 0.0),
        advantage=torch.tensor([rng.choice((-1.0, 1.0)) for _ in tokens]),
        version=0,
    )
    forest.weight[forest.token_ids >= FIRST] = 0.0
    forest.token_ids, forest.fields = pictures.restore(forest.token_ids, forest.position, forest.path_sum)
    return forest


def bare_forest(
    token_ids: Tensor,
    position: Tensor,
    end: Tensor,
    parent: Tensor,
    *,
    weight: Tensor | None = None,
    advantage: Tensor | None = None,
    version: int = -1,
) -> Forest:
    """A forest without nodes, its temperatures 1; `parent` has the token before each along its path, -1 at roots."""
    count = len(token_ids)
    target = torch.nonzero(parent >= 0)[:, 0]
    target = target[torch.argsort(parent[target], stable=True)]
    return Forest(
        token_ids=token_ids,
        position=position,
        end=end,
        node_id=torch.zeros_like(token_ids),
        session_id=torch.zeros_like(token_ids),
        agent_id=torch.zeros_like(token_ids),
        weight=torch.zeros(count) if weight is None else weight,
        advantage=torch.zeros(count) if advantage is None else advantage,
        temperature=torch.ones(count),
        behaviour_logp=torch.zeros(count),
        version=torch.full_like(token_ids, version),
        predictor=parent[target],
        target=target,
        sessions=("",),
        agents=("",),
    )


def _name_images(pictures: Pictures, shown: ImageInputs) -> list[int]:
    """The keys of a node that is images, each with a token behind it."""
    ids = [token for rows, columns in shown.grids for token in (*[shown.token] * (rows * columns), BEHIND)]
    node = Node(0, None, Message(role="user", content=""), ids, [False] * len(ids), [0.0] * len(ids))
    node.attachments[images.NAME] = shown.pack()
    named: list[int] = pictures.key(np.array(ids), node).tolist()
    return named


@dataclass(frozen=True, slots=True)
class RowResults:
    """A forest computed as rows: log-probabilities [T], 0 at untrained tokens, and gradients by parameter."""

    logp: Tensor
    gradients: dict[str, Tensor]


def paths_to_leaves(forest: Forest) -> list[Tensor]:
    """Return every path from a root to a leaf, as indices."""
    index = torch.arange(len(forest))
    return [index[(index <= leaf) & (forest.end > leaf)] for leaf in index[forest.end == index + 1].tolist()]


def compute_rows(model: Any, forest: Forest, device: str, autocast: bool = False) -> RowResults:
    """Compute every path by itself with a plain model; a token is taken from the first path that contains it.

    The loss is that of a first update: minus weight times advantage times log-probability.
    """
    trained = (forest.weight > 0) & torch.isin(torch.arange(len(forest)), forest.target)
    seen = torch.zeros(len(forest), dtype=torch.bool)
    logp = torch.zeros(len(forest))
    model.zero_grad()
    for path in paths_to_leaves(forest):
        fresh = (trained & ~seen)[path]
        fresh[0] = False
        seen[path] = True
        if not fresh.any():
            continue
        tokens = forest.token_ids[path].to(device)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            given = own_inputs(model, tokens[None], images_along(forest.fields, forest.token_ids, path))
            logits = model(**given, use_cache=False).logits[0, :-1]
        logits = logits.float() / forest.temperature[path][1:, None].to(device)
        along = torch.log_softmax(logits, -1).gather(1, tokens[1:, None])[:, 0][fresh[1:].to(device)]
        places = path[fresh]
        (-(forest.weight * forest.advantage)[places].to(device) * along).sum().backward()  # type: ignore[no-untyped-call]
        logp[places] = along.detach().cpu()
    return RowResults(logp, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})


def gradient_distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The norm of the gradients' difference over the norm of theirs; a parameter missing in ours counts as 0."""
    difference = whole = 0.0
    for name, value in theirs.items():
        whole += float(value.double().square().sum())
        difference += float((ours[name].double() - value.double() if name in ours else value.double()).square().sum())
    return float((difference / whole) ** 0.5)


def root_mean_square(ours: Tensor, theirs: Tensor, forest: Forest) -> float:
    """The root mean square difference of a forest's trained log-probabilities, [T] each, in nats."""
    return float((ours - theirs)[forest.weight > 0].double().square().mean().sqrt())


@dataclass(frozen=True, slots=True)
class LayerOutputs:
    """A forest's log-probabilities [T], and each layer's output, [T, d] each."""

    logp: Tensor
    layers: list[Tensor]


@torch.no_grad()
def compute_layer_outputs(model: Any, forest: Forest, device: str) -> LayerOutputs:
    """Compute all paths as one batch of padded rows with a plain model: each layer runs once.

    Paths with images are computed one by one.
    """
    paths = paths_to_leaves(forest)
    if forest.fields:
        return _compute_one_by_one(model, forest, paths, device)
    longest = max(map(len, paths))
    tokens = torch.zeros(len(paths), longest, dtype=torch.long)
    position = torch.zeros_like(tokens)
    for row, path in enumerate(paths):
        tokens[row, : len(path)] = forest.token_ids[path]
        position[row] = forest.position[path[0]] + torch.arange(longest)  # causal: padding after a path changes nothing
    with record_layer_outputs(model) as layers:
        logits = model(input_ids=tokens.to(device), position_ids=position.to(device), use_cache=False).logits
    logp = torch.zeros(len(forest))
    for row, path in enumerate(paths):
        along = torch.log_softmax(logits[row, : len(path) - 1].float(), -1).cpu()
        logp[path[1:]] = along.gather(1, forest.token_ids[path][1:, None])[:, 0]
    logp[forest.weight == 0] = 0.0
    return LayerOutputs(logp, [_by_token(layer, paths, len(forest)) for layer in layers])


def _compute_one_by_one(model: Any, forest: Forest, paths: Sequence[Tensor], device: str) -> LayerOutputs:
    logp, layers = torch.zeros(len(forest)), list[Tensor]()
    for path in paths:
        shown = images_along(forest.fields, forest.token_ids, path)
        ids = forest.token_ids[path].to(device)
        with record_layer_outputs(model) as outputs:
            logits = model(**own_inputs(model, ids[None], shown), use_cache=False).logits[0, :-1]
        layers = layers or [torch.zeros(len(forest), output.shape[-1]) for output in outputs]
        for layer, output in zip(layers, outputs, strict=True):
            layer[path] = output[0]
        logp[path[1:]] = torch.log_softmax(logits.float(), -1).gather(1, ids[1:, None])[:, 0].cpu()
    logp[forest.weight == 0] = 0.0
    return LayerOutputs(logp, layers)


def _by_token(rows: Tensor, paths: Sequence[Tensor], count: int) -> Tensor:
    """[rows, length, d] as [T, d]; a token that several paths share has the same output in all."""
    found = torch.zeros(count, rows.shape[-1])
    for row, path in zip(rows, paths, strict=True):
        found[path] = row[: len(path)]
    return found


@contextmanager
def record_layer_outputs(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the layers' outputs of the last call, in float32 in the CPU's memory."""
    layers = [layer for _, layer in named_layers(model)]
    kept = list[Tensor]([torch.empty(0)] * len(layers))

    def keep(place: int) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            kept[place] = hidden.detach().float().cpu()

        return hook

    hooks = [layer.register_forward_hook(keep(place)) for place, layer in enumerate(layers)]
    try:
        yield kept
    finally:
        for one in hooks:
            one.remove()


def named_layers(model: Any) -> list[tuple[str, nn.Module]]:
    """The decoder layers with their names in the model."""
    count = model.config.get_text_config().num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and not of_vision(name):
            return [(f"{name}.{number}", layer) for number, layer in enumerate(module)]
    return []
