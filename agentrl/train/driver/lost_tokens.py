"""An account of a step's sampled tokens: trained, or lost to a cause; and when that ends a run.

Each sampled token counts once, so the trained ones and those of every cause add up to the sampled ones. A token is
trained where an advantage of it is not 0, or a critic learns its value; a KL penalty or an entropy bonus alone, which
`tokens/trained` counts as well, teaches nothing about rewards. Greedy sessions, which are baselines, are left out.

The counts are metrics (`signal/sampled`, `signal/trained`, `signal/CAUSE`), and all else is derived from these: a
resumed run counts its steps in a row from the rows on the disk.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agentrl.config import AlgoConfig
from agentrl.envs.base import Env, reward_methods
from agentrl.envs.data.mixture import list_mixed
from agentrl.envs.results import invalid
from agentrl.rollout.workers.held import sampled_tokens
from agentrl.sessions.tree import trainability
from agentrl.train.algorithms.credit import Credit, NodeAdvantage, trained_tokens
from agentrl.types import GREEDY, MAIN, Group, Node, Session, Status
from agentrl.types.branches import list_untrained

STEPS = 20
"""Steps in a row without a trained token, after which a run ends."""
SAMPLED, TRAINED = "signal/sampled", "signal/trained"
TOLERANCE = 1e-6
"""The distance of a mean reward from the top of its range that still counts as the top."""


class Cause(StrEnum):
    """A reason for sampled tokens not to be trained."""

    SAMPLING = "sampling"
    GREEDY = "greedy"
    GRAMMAR = "grammar"
    OVERSIZE = "oversize"
    OUTSIDE = "outside"
    SEED = "seed"
    MASKED = "masked"
    UNREWARDED = "unrewarded"
    FROZEN = "frozen"
    FLAT = "flat"
    TRUNCATED = "truncated"
    FAILED = "failed"
    UNUSED = "unused"
    EXCLUDED = "excluded"
    LEFT_OUT = "left_out"
    SKIPPED = "skipped"

    @property
    def metric(self) -> str:
        """The name of its count."""
        return f"signal/{self.value}"

    @property
    def words(self) -> str:
        """The cause in a few words."""
        return self.value.replace("_", " ")


STRUCTURAL = frozenset(
    {
        Cause.SAMPLING,
        Cause.GREEDY,
        Cause.GRAMMAR,
        Cause.OVERSIZE,
        Cause.SEED,
        Cause.MASKED,
        Cause.UNREWARDED,
        Cause.FROZEN,
        Cause.EXCLUDED,
    }
)
"""Causes that lie in the settings, the environment or the agent's program: another step does not change them."""
ADVICE: Mapping[Cause, str] = {
    Cause.SAMPLING: "turns were sampled with top-p, top-k, min-p, penalties or a logit bias where the engine does not "
    "record what was left of the vocabulary: leave these away (rollout.top_p=1), use engine=local, "
    "which does, or on vLLM leave under 512 tokens (rollout.top_k)",
    Cause.GREEDY: "turns were sampled at temperature 0, which leaves nothing to learn from: raise rollout.temperature",
    Cause.GRAMMAR: "turns were sampled under a schema on an engine that does not record what it left of the "
    "vocabulary: use engine=local, which does, or the agent's program must not ask for one (response_format)",
    Cause.OVERSIZE: "what was left of the vocabulary takes too many bytes: raise engine.support_bytes, or narrow less",
    Cause.OUTSIDE: "by rounding, tokens are outside of what was left of the vocabulary: nothing is to be done",
    Cause.SEED: "all sessions of a group were sampled with one seed, so they are alike: the agent's program must not "
    "set one",
    Cause.MASKED: "masks leave them out: widen algo.correction.mask_*, raise algo.helper_credit",
    Cause.UNREWARDED: "their sessions have no reward: let the environment, or the agent's program, give one",
    Cause.FROZEN: "policies that are not trained sampled them: agents.NAME=main plays with the trained one",
    Cause.FLAT: "no advantage is left where the sessions of a group score the same: choose tasks that are sometimes "
    "solved (rollout.sampler=difficulty), or reward partial success",
    Cause.TRUNCATED: "a limit cut their sessions off before there was a reward: raise rollout.session_tokens, "
    "rollout.turn_tokens or rollout.timeout",
    Cause.FAILED: "their sessions failed and have no reward: see their errors",
    Cause.UNUSED: "the agent's program used other samples, or they only estimate a value",
    Cause.EXCLUDED: "they are of helpers beside the task, such as titles: gateway.exclude says which",
    Cause.LEFT_OUT: "the algorithm or rollout.filter left their groups out",
    Cause.SKIPPED: "their gradient was not finite, so no weight was moved (skipped_updates): look for what is not "
    "finite in the model's weights, lower algo.lr, or compute with trainer.dtype=float32",
}
"""Each cause's meaning, and what to do."""


def account(groups: Iterable[Group], credit: Credit, config: AlgoConfig) -> dict[str, float]:
    """A batch's sampled tokens: how many there are, how many are trained, and how many each cause took."""
    found: Counter[Cause | None] = Counter()
    for group in groups:
        members = [session for session in group.sessions if session.phase != GREEDY]
        flat = Cause.SEED if _one_seed(members) else Cause.FLAT
        for session in members:
            for node in _of_no_view(session):
                found.update(_count_lost(session, node) or {Cause.UNREWARDED: sampled_tokens(node)})
            for view in session.by_agent():
                _count(view, credit, flat, config.helper_credit, found)
    counts = {cause.metric: float(found[cause]) for cause in Cause}
    return {SAMPLED: float(found.total()), TRAINED: float(found[None]), **counts}


def account_demonstrated(groups: Iterable[Group], credit: Credit) -> dict[str, float]:
    """The same of tokens that nobody sampled, which are there to be imitated: those without credit are unused."""
    tokens = {(s.id, n.id): trained_tokens(n) for g in groups for s in g.sessions for n in s.nodes if not n.sampled}
    total, trained = sum(tokens.values()), sum(count for key, count in tokens.items() if key in credit.shares)
    counts = {cause.metric: 0.0 for cause in Cause}
    return {SAMPLED: float(total), TRAINED: float(trained), **counts, Cause.UNUSED.metric: float(total - trained)}


def _count(view: Session, credit: Credit, flat: Cause, helper_credit: float, found: Counter[Cause | None]) -> None:
    """Add the tokens of one agent's session to the counts; None counts those that are trained."""
    unused, ends = view.unused() | list_untrained(view), view.partly_used()
    excluded = view.excluded_nodes()
    for node in view.nodes:
        if not (tokens := sampled_tokens(node)):
            continue
        left_out = Cause.EXCLUDED if node.id in excluded else Cause.UNUSED if node.id in unused else None
        if lost := _count_lost(view, node) or (Counter({left_out: tokens}) if left_out else None):
            found.update(lost)
            continue
        used = trained_tokens(node, ends.get(node.id))
        unknown = Counter(map(Cause, trainability.list_lost(node)))
        found.update(unknown)
        found[Cause.UNUSED] += tokens - used - unknown.total()
        if any(map(_teaches, credit.shares.get((view.id, node.id), ()))):
            found[None] += used
        else:
            masked = helper_credit == 0 and node.agent != view.main_agent
            found[Cause.MASKED if masked else flat] += used


def _count_lost(session: Session, node: Node) -> Counter[Cause]:
    """The causes for which none of a turn's tokens can be trained, whatever its credit; empty where some can."""
    tokens = sampled_tokens(node)
    if node.policy not in (None, MAIN):
        return Counter({Cause.FROZEN: tokens})
    if not any(node.trainable):
        reasons = Counter(map(Cause, trainability.list_lost(node)))
        return reasons + Counter({Cause.MASKED: tokens - reasons.total()})
    if session.status is Status.INFRA_ERROR:
        return Counter({Cause.UNREWARDED if invalid(session) else Cause.FAILED: tokens})
    if session.score is not None:
        return Counter()
    ends = {Status.AGENT_ERROR: Cause.FAILED, Status.TRUNCATED: Cause.TRUNCATED}
    return Counter({ends.get(session.status, Cause.UNREWARDED): tokens})


def _of_no_view(session: Session) -> list[Node]:
    """The nodes of agents that have no reward of their own, where others have: those that other policies play."""
    own = tuple(session.agent_rewards)
    if not own:
        return []
    return [n for n in session.nodes if not any(n.agent == name or n.agent.startswith(f"{name}/") for name in own)]


def _teaches(share: NodeAdvantage) -> bool:
    advantages = share.advantage if isinstance(share.advantage, Sequence) else (share.advantage,)
    return share.returns is not None or any(advantages)


def _one_seed(sessions: Sequence[Session]) -> bool:
    """True where the first turns of all sessions, of which there are several, were sampled with the same seed."""
    sampling = [next((n.sampling for n in s.nodes if n.sampling is not None), None) for s in sessions]
    seeds = {each.seed if each is not None else None for each in sampling}
    return len(sessions) > 1 and len(seeds) == 1 and None not in seeds


def take_away(counts: Mapping[str, float], cause: Cause, share: float) -> dict[str, float]:
    """The counts where the trainer lost a share of the trained tokens to a cause."""
    lost = float(round(share * counts[TRAINED]))
    return {**counts, TRAINED: counts[TRAINED] - lost, cause.metric: counts[cause.metric] + lost}


def add_left_out(counts: Mapping[str, float], tokens: float) -> dict[str, float]:
    """The counts with sampled tokens of groups that were generated and not trained on; a policy may count none."""
    if SAMPLED not in counts:  # it did not learn in this step
        return dict(counts)
    more = counts[Cause.LEFT_OUT.metric] + tokens
    return {**counts, SAMPLED: counts[SAMPLED] + tokens, Cause.LEFT_OUT.metric: more}


def by_cause(rows: Sequence[Mapping[str, float]]) -> dict[Cause, float]:
    """The lost tokens of the causes that took any, the most first."""
    found = {cause: sum(row.get(cause.metric, 0.0) for row in rows) for cause in Cause}
    return {cause: found[cause] for cause in sorted(Cause, key=lambda cause: -found[cause]) if found[cause]}


def describe_lost(rows: Sequence[Mapping[str, float]], kind: str = "sampled") -> str:
    """Say how many of the sampled tokens were trained, and what took the others; '' where the rows don't say.

    Args:
        rows: of metrics.
        kind: the word for the tokens, where they were not sampled by this run.
    """
    if not any(SAMPLED in row for row in rows):
        return ""
    trained, sampled = (sum(row.get(name, 0.0) for row in rows) for name in (TRAINED, SAMPLED))
    lost = ", ".join(f"{cause.words} {count:,.0f}" for cause, count in by_cause(rows).items())
    return f"{trained:,.0f} of {sampled:,.0f} {kind} tokens were trained" + (f" (lost: {lost})" if lost else "")


def advice(rows: Sequence[Mapping[str, float]]) -> str:
    """Say what the cause that took most means, and what to do."""
    return next((ADVICE[cause] for cause in by_cause(rows)), "no token was sampled: see why sessions have no turns")


@dataclass(frozen=True, slots=True)
class Ending:
    """A reason for a run to end early.

    Attributes:
        reason: a sentence.
        learned: whether the reward is at the top of its range.
    """

    reason: str
    learned: bool = False


def top_scores(env: Env) -> frozenset[float]:
    """The mean rewards that are the top of an environment's range, with step rewards and without.

    There are none for a mixture whose parts have other tops.
    """
    if "" not in (parts := list_mixed(env)):
        tops = {top_scores(part) for part in parts.values()}
        return tops.pop() if len(tops) == 1 else frozenset()
    most = [max(mark.weight * end for end in mark.range) for mark, _ in reward_methods(env)]
    by_steps = env.return_range[1]
    return frozenset({sum(most), sum(most) + by_steps}) if most else frozenset({by_steps})


def keep_metrics(row: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a row that `ending` needs."""
    return {name: row[name] for name in row if name.startswith("signal/") or name in ("reward/mean", "pack/signal")}


def ending(rows: Sequence[Mapping[str, float]], tops: Collection[float]) -> Ending | None:
    """Return a reason to end a run after its last row, or None.

    It does where structural causes took all of that step's tokens, and where no token was trained for `STEPS` steps in
    a row, and again after as many more: one that was resumed nevertheless gets another try.

    Args:
        rows: of all steps so far.
        tops: mean rewards that can't be surpassed (`top_scores`).
    """
    last = rows[-1:]
    sampled = sum(row.get(SAMPLED, 0.0) for row in last)
    if sampled and sampled == sum(count for cause, count in by_cause(last).items() if cause in STRUCTURAL):
        return Ending(f"no token of the step can be trained: {describe_lost(last)}: {advice(last)}")
    streak = 0
    for row in reversed(rows):
        if row.get(TRAINED, row.get("pack/signal", 1.0)):
            break
        streak += 1
    if not streak or streak % STEPS:
        return None
    spell = rows[-STEPS:]
    rewards = [row["reward/mean"] for row in spell if "reward/mean" in row]
    mean = math.fsum(rewards) / len(rewards) if rewards else None
    if mean is not None and any(abs(mean - top) <= TOLERANCE for top in tops):
        return Ending(f"nothing left to learn: the mean reward of the last {streak} steps is {mean:g}", learned=True)
    reward = "" if mean is None else f", at a mean reward of {mean:g}"
    return Ending(f"no token was trained for {streak} steps in a row{reward}: {describe_lost(spell)}: {advice(spell)}")
