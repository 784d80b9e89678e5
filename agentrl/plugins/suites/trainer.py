"""The conformance suite of trainers: on a small model, compared with transformers and with themselves."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.config import AlgoConfig, TrainerConfig
from agentrl.errors import ConfigError
from agentrl.models.loading import load_causal_lm
from agentrl.plugins.suites.findings import VOCABULARY, configure, expect, find_problems, sampled_groups
from agentrl.rollout.engines.contract import ContractFinding
from agentrl.train.algorithms import algorithm_settings, make_algorithm
from agentrl.train.forest.forest import Forest
from agentrl.train.forest.packing import pack_credited
from agentrl.train.trainers import TRAINERS, Trainer, TrainerPlugin
from agentrl.train.trainers.reference import compute_rows

TOLERANCE = 1e-3
"""By how much a log-probability may differ from what transformers computes, in nats."""


@dataclass
class _Subject:
    """A trainer's plug-in with its settings, and the model that it loads."""

    plugin: TrainerPlugin
    config: TrainerConfig
    algo: AlgoConfig
    path: Path

    @contextmanager
    def started(self) -> Iterator[Trainer]:
        trainer = self.plugin.make(self.path, self.config, self.algo, total_steps=4, seed=0)
        try:
            yield trainer
        finally:
            trainer.close()

    def forests(self, seed: int = 0) -> list[Forest]:
        """A batch: prompts are shared, so forests branch."""
        groups = sampled_groups(seed)
        return pack_credited(make_algorithm(self.algo), groups, None, self.config.token_budget, seed)[1]


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    """Copies of a trainer's weights by their names."""
    return {name: tensor.detach().float().cpu().clone() for name, tensor in trainer.weights()}


def _equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def it_has_the_protocol(subject: _Subject) -> None:
    """It has every method and attribute of `Trainer`, and begins with version 0."""
    with subject.started() as trainer:
        expect(isinstance(trainer, Trainer), f"{type(trainer).__name__} lacks a method or attribute of `Trainer`")
        expect(trainer.version == 0, f"its version is {trainer.version} before the first step")


def log_probabilities_are_those_of_the_model(subject: _Subject) -> None:
    """`logprobs` gives for each trained token what transformers computes on its path, and 0 elsewhere."""
    model = load_causal_lm(subject.path, torch.float32, "eager").eval()
    forests = subject.forests()
    with subject.started() as trainer:
        for forest, found in zip(forests, trainer.logprobs(forests), strict=True):
            expect(found.shape == (len(forest),), f"the shape is {tuple(found.shape)}, not ({len(forest)},)")
            expect(not bool(found[forest.weight == 0].any()), "a token that is not trained has a log-probability")
            worst = float((found.float().cpu() - compute_rows(model, forest, "cpu").logp).abs().max())
            expect(worst < TOLERANCE, f"a log-probability is {worst:.2g} away from transformers'")


def a_step_changes_weights_and_counts(subject: _Subject) -> None:
    """A step gives finite metrics, other weights, and the next version; one without tokens only the version."""
    with subject.started() as trainer:
        before = weights_of(trainer)
        metrics = trainer.step(subject.forests())
        wrong = [name for name, value in metrics.items() if not math.isfinite(value)]
        expect(not wrong, f"metrics that are not finite: {', '.join(wrong)}")
        expect({"loss", "grad_norm", "lr"} <= metrics.keys(), "loss, grad_norm or lr is not among the metrics")
        after = weights_of(trainer)
        expect(trainer.version == 1, f"its version is {trainer.version} after a step")
        expect(after.keys() == before.keys() and not _equal(after, before), "a step changed no weight")
        trainer.step([])
        expect(trainer.version == 2, "a step without forests does not count")
        expect(_equal(weights_of(trainer), after), "a step without forests changed weights")


def a_step_makes_good_actions_more_probable(subject: _Subject) -> None:
    """After some steps on one batch, tokens with a positive advantage gain on those with a negative one."""
    forests = subject.forests()

    def lead(trainer: Trainer) -> float:
        found = trainer.logprobs(forests)
        pairs = zip(forests, found, strict=True)
        return sum(float((f.weight * f.advantage * logp.float().cpu()).sum()) for f, logp in pairs)

    with subject.started() as trainer:
        before = lead(trainer)
        for _ in range(3):
            trainer.step(forests)
        expect(lead(trainer) > before, "tokens with a positive advantage did not gain on those with a negative one")


def a_checkpoint_goes_on_as_the_trainer_did(subject: _Subject) -> None:
    """A new trainer loads a checkpoint, and its next step is the same (`deterministic`: bit for bit)."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "deeper" / "trainer"
        with subject.started() as trainer:
            trainer.step(subject.forests())
            trainer.save(file)
            trainer.step(subject.forests(1))
            expected, exact = weights_of(trainer), trainer.deterministic
        with subject.started() as trainer:
            trainer.load(file)
            expect(trainer.version == 1, f"its version is {trainer.version}, and the checkpoint's 1")
            trainer.step(subject.forests(1))
            found = weights_of(trainer)
        if exact:
            expect(_equal(found, expected), "after `load` the next step gives other weights")
        else:
            worst = max(float((found[name] - expected[name]).abs().max()) for name in expected)
            expect(worst < TOLERANCE, f"after `load` the next step gives weights {worst:.2g} away")


def an_export_is_a_model(subject: _Subject) -> None:
    """`export` writes a folder that transformers loads, with the trainer's weights, also over an older one."""
    with tempfile.TemporaryDirectory() as folder, subject.started() as trainer:
        path = Path(folder) / "model"
        trainer.export(path)
        trainer.step(subject.forests())
        trainer.export(path)
        held = weights_of(trainer)
        model = load_causal_lm(path, torch.float32, "eager")
        stored = dict(model.named_parameters())
        for name in held.keys() & stored.keys():
            expect(torch.equal(held[name], stored[name].detach()), f"{name} is another one in the exported folder")
        there, source = ({file.name for file in each.glob("tokenizer*")} for each in (path, subject.path))
        expect(source <= there, f"the exported folder lacks {', '.join(sorted(source - there))}")


def weights_have_the_names_of_files(subject: _Subject) -> None:
    """`weights` yields every parameter once, by its Hugging Face name and in its shape."""
    model = load_causal_lm(subject.path, torch.float32, "eager")
    expected = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    with subject.started() as trainer:
        named = [(name, tuple(tensor.shape)) for name, tensor in trainer.weights()]
    expect(len(named) == len(dict(named)), "a name is yielded twice")
    expect(dict(named) == expected, f"other names or shapes: {sorted(dict(named).items() ^ expected.items())[:4]}")


def it_closes_twice(subject: _Subject) -> None:
    """`close` may be called again."""
    with subject.started() as trainer:
        trainer.close()


CHECKS: tuple[Callable[[_Subject], None], ...] = (
    it_has_the_protocol,
    log_probabilities_are_those_of_the_model,
    a_step_changes_weights_and_counts,
    a_step_makes_good_actions_more_probable,
    a_checkpoint_goes_on_as_the_trainer_did,
    an_export_is_a_model,
    weights_have_the_names_of_files,
    it_closes_twice,
)


def check_trainer(
    trainer: str | TrainerPlugin, path: str | Path, algo: AlgoConfig | None = None, **settings: Any
) -> list[ContractFinding]:
    """Find promises that a trainer does not keep.

    Args:
        trainer: a name, an import path, `file.py:TRAINER`, or the plug-in.
        path: a Hugging Face folder of a small model; its vocabulary has at least 64 tokens.
        algo: what it trains with; None is `reinforce` without a reference.
        settings: its own, as `trainer.*`.

    Returns:
        What is wrong; nothing, where the trainer keeps its contract.

    Raises:
        UnknownName: there is none of that name.
        ConfigError: it does not have these settings, or the model's vocabulary is too small.
    """
    plugin, config = configure(TRAINERS, trainer, settings)
    chosen = algo or algorithm_settings({"name": "reinforce", "lr": 1e-3, "kl_coef": 0.0})
    vocabulary = load_causal_lm(Path(path), torch.float32, "eager").config.vocab_size
    if vocabulary < VOCABULARY:
        raise ConfigError(f"{path} has {vocabulary} tokens, and the suite needs a model with {VOCABULARY}")
    return find_problems(CHECKS, _Subject(plugin, config, chosen, Path(path)))
