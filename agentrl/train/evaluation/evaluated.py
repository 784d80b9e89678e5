"""Evaluations that a run made earlier, from its sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import orjson

from agentrl.config import EvalConfig
from agentrl.config.secrets import public
from agentrl.envs.data import identity
from agentrl.envs.data.identity import Identities
from agentrl.errors import ConfigError
from agentrl.overrides import validate
from agentrl.rollout.stream.batch_metrics import Evaluation, evaluate_groups
from agentrl.train.driver.opening import OpenRun
from agentrl.train.record.data_identity import STARTS
from agentrl.types import Group, Session


def groups_of(sessions: Sequence[Session]) -> Iterator[Group]:
    """The groups of an evaluation, with the last attempt at each session."""
    newest = max((session.group_attempt for session in sessions), default=0)
    ordered = sorted(sessions, key=lambda session: (session.group_number or 0, session.attempt))
    for number, members in groupby(ordered, key=lambda session: session.group_number or 0):
        last = {session.sample: session for session in members if session.group_attempt == newest}
        kept = [last[sample] for sample in sorted(last)]
        if kept:
            yield Group(kept[0].group, kept[0].task, kept, number=number)


def before_training(run: OpenRun, data: Identities) -> Evaluation | None:
    """The evaluation before the first step of a run that goes on with this data, to compare the next one with.

    None where its sessions are gone, or what is evaluated, how, or on which tasks changed since.
    """
    measured, groups = run.config.eval, list(groups_of(list(run.store.sessions(phase="eval", step=0))))
    try:
        first = orjson.loads((run.folder.path / STARTS).read_bytes().splitlines()[0])
        then, same = first["settings"], not identity.differences(identity.read(first[identity.KEY]), data)
        same = same and validate(then["eval"], EvalConfig) == measured
        same = same and then["rewards"] == public(run.config)["rewards"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ConfigError):  # of an older agentrl
        return None
    return evaluate_groups(groups, measured) if same and any(group.scored for group in groups) else None
