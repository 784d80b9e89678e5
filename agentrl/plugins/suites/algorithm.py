"""The conformance suite of algorithms."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from agentrl.plugins.suites.findings import configure, expect, find_problems, sampled_groups
from agentrl.rollout.engines.contract import ContractFinding
from agentrl.train.algorithms import ALGORITHMS, Algorithm, Choice
from agentrl.train.algorithms.credit import Credit, NodeKey, trainable_nodes
from agentrl.train.algorithms.objective import add_sums, empty_sums, objective
from agentrl.train.forest.packing import pack_credited
from agentrl.types import GREEDY, Group
from agentrl.types.session import COUNTERFACTUALS


@dataclass
class _Subject:
    """An algorithm's class and settings, and the groups that it gets."""

    kind: type[Algorithm]
    config: Any

    def make(self) -> Algorithm:
        return self.kind(self.config)

    def groups(self, algorithm: Algorithm, seed: int = 0) -> list[Group]:
        """Groups as the loop hands them over: with greedy sessions or continuations where the algorithm needs them."""
        groups = sampled_groups(seed, size=max(4, algorithm.needs.group_size))
        for group in groups if algorithm.needs.greedy else ():
            greedy = copy.deepcopy(group.sessions[0])
            greedy.id, greedy.phase = f"{greedy.id}-greedy", GREEDY
            group.sessions.append(greedy)
        for session in (each for group in groups for each in group.sessions if algorithm.needs.counterfactuals):
            again = {str(turn): [0.25] for turn in range(session.turns)}
            session.info[COUNTERFACTUALS] = {session.main_agent: again}
        if not algorithm.needs.engine:
            for node in (node for group in groups for session in group.sessions for node in session.nodes):
                node.sampling, node.versions, node.finish_reason = None, [], None
        return groups

    def values(self, algorithm: Algorithm, groups: Sequence[Group]) -> dict[NodeKey, list[float]] | None:
        """Values of a critic, rewards of a reward model, or a teacher's log-probabilities, where it needs them."""
        if not algorithm.needs.values:
            return None
        sessions = [session for group in groups for session in group.sessions]
        return {(s.id, node.id): [0.25] * len(node.token_ids) for s in sessions for node in s.nodes}

    def credit(self, algorithm: Algorithm, groups: Sequence[Group]) -> Credit:
        return algorithm.credit(groups, self.values(algorithm, groups))


def weights_and_advantages_are_numbers_of_trained_nodes(subject: _Subject) -> None:
    """Every share is of a node that can be trained, its weight at least 0, its advantages finite."""
    algorithm = subject.make()
    groups = subject.groups(algorithm)
    demonstrated = not algorithm.needs.engine
    credit = subject.credit(algorithm, groups)
    nodes = {
        (session.id, node.id): len(node.token_ids)
        for group in (*groups, *credit.added)
        for session in group.sessions
        for node in trainable_nodes(session, demonstrated=demonstrated)
    }
    expect(bool(credit.shares), "no node has credit, though rewards differ")
    for key, shares in credit.shares.items():
        expect(key in nodes, f"{key} is no node that can be trained")
        for share in shares:
            each = share.advantage if isinstance(share.advantage, Sequence) else [share.advantage]
            expect(math.isfinite(share.weight) and share.weight >= 0, f"{key} has the weight {share.weight}")
            expect(all(map(math.isfinite, each)), f"{key} has an advantage that is not finite")
    for name, value in credit.metrics.items():
        expect(math.isfinite(value), f"metric {name!r} is {value}")


def groups_may_come_in_any_order(subject: _Subject) -> None:
    """The order of groups changes no share."""
    algorithm, other = subject.make(), subject.make()
    groups = subject.groups(algorithm)
    forth, back = subject.credit(algorithm, groups).shares, subject.credit(other, groups[::-1]).shares
    expect(forth.keys() == back.keys(), "another order of groups gives other nodes credit")
    for key, shares in forth.items():
        weights = [(share.weight, turned.weight) for share, turned in zip(shares, back[key], strict=True)]
        expect(all(math.isclose(a, b, rel_tol=1e-6) for a, b in weights), f"{key} weighs something else")


def sessions_stay_as_they_are(subject: _Subject) -> None:
    """Neither `select` nor `credit` changes a session."""
    algorithm = subject.make()
    groups = subject.groups(algorithm)
    before = copy.deepcopy(groups)
    for group in groups:
        choice = algorithm.select(group)
        expect(isinstance(choice, Choice), f"select returned {choice!r}, which is no Choice")
    subject.credit(algorithm, groups)
    expect(groups == before, "sessions were changed")


def nothing_to_learn_from_is_no_error(subject: _Subject) -> None:
    """Without groups there is no credit."""
    algorithm = subject.make()
    expect(not subject.credit(algorithm, []).shares, "there is credit without sessions")


def state_is_json_and_comes_back(subject: _Subject) -> None:
    """An instance that took over a snapshot goes on as the one that gave it."""
    algorithm, other = subject.make(), subject.make()
    subject.credit(algorithm, subject.groups(algorithm))
    algorithm.learned({})
    other.load_snapshot(json.loads(json.dumps(algorithm.snapshot())))
    groups = subject.groups(algorithm, seed=1)
    same = subject.credit(algorithm, groups) == subject.credit(other, groups)
    expect(same, "after `load_snapshot` of a `snapshot` credit is another one")


def its_loss_is_learned_from(subject: _Subject) -> None:
    """The loss of a batch is finite, and so is its gradient, which is not 0 everywhere."""
    algorithm = subject.make()
    groups = subject.groups(algorithm)
    _, forests = pack_credited(algorithm, groups, subject.values(algorithm, groups), 1 << 16, 0)
    algorithm.mark(forests)
    [forest] = forests
    rows = forest.rows()
    logp = (rows.behaviour_logp - 0.1).requires_grad_(True)
    if algorithm.needs.reference:
        rows.ref_logp = rows.behaviour_logp - 0.2
    sums = None
    if rows.sequences is not None:
        sums = empty_sums(algorithm, len(rows.sequences.length))
        add_sums(algorithm, sums, logp, rows, 0)
    value, _ = objective(algorithm, logp, torch.ones_like(logp).detach(), rows, sums=sums)
    (slope,) = torch.autograd.grad(value, logp)
    expect(bool(torch.isfinite(value)) and bool(torch.isfinite(slope).all()), "loss or gradient is not finite")
    expect(bool(slope.any()), "no log-probability has a gradient: nothing is learned")


def its_settings_come_back_from_a_file(subject: _Subject) -> None:
    """Its settings are the same after they were written and read."""
    config = subject.make().config
    expect(type(config).model_validate(config.model_dump()) == config, "its settings change when written and read")


CHECKS: tuple[Callable[[_Subject], None], ...] = (
    weights_and_advantages_are_numbers_of_trained_nodes,
    groups_may_come_in_any_order,
    sessions_stay_as_they_are,
    nothing_to_learn_from_is_no_error,
    state_is_json_and_comes_back,
    its_loss_is_learned_from,
    its_settings_come_back_from_a_file,
)


def check_algorithm(algorithm: str | type[Algorithm], **settings: Any) -> list[ContractFinding]:
    """Find promises that an algorithm does not keep, on sessions of two turns without forks.

    Args:
        algorithm: a name, an import path, `file.py:CLASS`, or the class.
        settings: its own, as `algo.*`.

    Returns:
        What is wrong; nothing, where the algorithm keeps its contract.

    Raises:
        UnknownName: there is none of that name.
        ConfigError: it does not have these settings.
    """
    kind, config = configure(ALGORITHMS, algorithm, settings)
    return find_problems(CHECKS, _Subject(kind, config))
