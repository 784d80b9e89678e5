"""Bias and variance of each algorithm's gradient, by enumeration of a small decision process.

    python -m benchmarks.gradients [NAME …] [--sessions 3] [--normalize constant]

An episode has one to three turns: the agent asks, up to three times, or gives one of two answers, which ends the
episode; answering late costs, and asking a third time earns nothing. The policy has three logits for each turn. Every
group of `--sessions` episodes is enumerated with its probability, credited by the algorithm, packed, and
differentiated by the trainer's own objective before the first update (all ratios are 1). So expectation and variance
over groups are exact, and so is the policy gradient of the mean reward.

Where the denominator is a constant, it is 1 token for each session.

`vine` has one session a group, with one continuation from the state before each turn; both are enumerated. The values
of `ppo` are exact. The reward model of `prime` is the policy times exp(advantage / reward_beta), which is best where
that weighs the distance from the reference, the policy itself. What has no such gradient is named under the table.

`size` is the part of the expected gradient along the true one, over its norm. `bias` is the norm of the rest, and
`deviation` that of the standard deviation, both over the norm of the part along it: a scale is the learning rate's
business, a direction is not.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.train.algorithms import ALGORITHMS, Algorithm, algorithm_settings, make_algorithm
from agentrl.train.algorithms.credit import NodeKey
from agentrl.train.algorithms.objective import empty_sums, objective
from agentrl.train.algorithms.table import list_built_in
from agentrl.train.forest.forest import sequence_count
from agentrl.train.forest.packing import pack_credited
from agentrl.types import (
    GREEDY,
    Branch,
    FinishReason,
    Group,
    Message,
    Node,
    Sampling,
    Session,
    Status,
    Task,
    VersionSpan,
)

TURNS = 3
ACTIONS = ("ask", "wrong", "right")
FIRST = 10
"""Token of the first action of the first turn; those of a turn follow each other, and the turns."""
WORTH = (1.0, 0.8, 0.3)
"""The reward of the right answer by turn."""
WRONG = 0.2
LOGITS = ((0.2, -0.3, 0.1), (0.0, 0.4, -0.2), (0.5, -0.1, 0.3))
"""The policy, by turn and action."""

Episode = tuple[int, ...]
"""The action of each turn."""
EPISODES: tuple[Episode, ...] = (
    *(((0,) * asked + (answer,)) for asked in range(TURNS) for answer in (1, 2)),
    (0,) * TURNS,
)


@dataclass(frozen=True)
class Estimate:
    """An algorithm's gradient over all groups; see the module."""

    size: float
    bias: float
    deviation: float


def policy() -> Tensor:
    """The logits, [turns, actions], float64."""
    return torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)


def parts(episode: Episode) -> dict[str, float]:
    """An episode's rewards by name; their sum is what counts."""
    asked, last = len(episode) - 1, episode[-1]
    right = {0: 0.0, 1: WRONG, 2: 1.0}[last]
    return {"answer": right, "late": WORTH[asked] - 1.0 if last == 2 else 0.0}


def reward(episode: Episode) -> float:
    """An episode's reward."""
    return sum(parts(episode).values())


def logp(logits: Tensor, episode: Episode) -> Tensor:
    """The log-probability of each turn's action."""
    every = torch.log_softmax(logits, -1)
    return torch.stack([every[turn, action] for turn, action in enumerate(episode)])


@functools.cache
def probability(episode: Episode, start: int = 0) -> float:
    """That of an episode's turns from one on."""
    return float(logp(policy().detach(), episode)[start:].sum().exp())


def true_gradient() -> Tensor:
    """The gradient of the mean reward."""
    logits = policy()
    mean = torch.stack([logp(logits, episode).sum().exp() * reward(episode) for episode in EPISODES]).sum()
    (found,) = torch.autograd.grad(mean, logits)
    return found


def state_values() -> list[float]:
    """The expected reward before each turn: an exact critic."""
    found = []
    for turn in range(TURNS):
        ahead = [each for each in EPISODES if len(each) > turn]
        weights = [probability(each, turn) for each in ahead]
        found.append(math.fsum(w * reward(each) for w, each in zip(weights, ahead, strict=True)))
    return found


def process_rewards(beta: float) -> list[list[float]]:
    """What `prime` sees of each action of each turn; see the module."""
    values, every = [*state_values(), 0.0], torch.log_softmax(policy().detach(), -1)
    worth = [[values[turn + 1], WRONG, WORTH[turn]] for turn in range(TURNS)]
    best = torch.log_softmax(every + torch.tensor(worth, dtype=torch.float64) / beta, -1)
    found: list[list[float]] = (beta * (best - every)).tolist()
    return found


def session(name: str, episode: Episode) -> Session:
    """An episode as it would be stored."""
    made = Session(name, Task(id="t"), group="g", status=Status.COMPLETED, rewards=parts(episode))
    made.reward = reward(episode)
    _play(made, _node(made, None, [1, 2], sampled=False), episode, 0)
    return made


def forked(name: str, episode: Episode, continuations: Sequence[Episode]) -> Session:
    """An episode with a continuation from the state before each of its turns."""
    made = session(name, episode)
    made.branches = [Branch(None, 0, len(made.nodes), made.status, made.rewards, made.reward)]
    for turn, other in enumerate(continuations):
        head, start = 2 * turn, len(made.nodes)
        _play(made, head, other, turn)
        ended = (made.status, parts(other), reward(other))
        made.branches.append(Branch(head, start, len(made.nodes), *ended, trained=False))
    return made


def _play(made: Session, parent: int, episode: Episode, start: int) -> None:
    known = logp(policy().detach(), episode).tolist()
    for turn, action in list(enumerate(episode))[start:]:
        parent = _node(made, parent, [FIRST + turn * len(ACTIONS) + action], sampled=True, logprob=known[turn])
        parent = _node(made, parent, [3], sampled=False)


def _node(made: Session, parent: int | None, ids: list[int], *, sampled: bool, logprob: float = 0.0) -> int:
    role = "assistant" if sampled else "user" if parent is None else "tool"
    message = Message(role=role, content=".")
    node = Node(len(made.nodes), parent, message, ids, [sampled] * len(ids), [logprob] * len(ids))
    if sampled:
        node.sampling, node.versions = Sampling(temperature=1.0), [VersionSpan(0, 0, len(ids))]
        node.finish_reason = FinishReason.STOP
    made.nodes.append(node)
    return node.id


def groups(sessions: int) -> Iterator[tuple[tuple[Episode, ...], float]]:
    """Every group, whatever the order of its sessions, with its probability."""
    for chosen in itertools.combinations_with_replacement(EPISODES, sessions):
        orders = math.factorial(sessions) / math.prod(map(math.factorial, Counter(chosen).values()))
        yield chosen, orders * math.prod(map(probability, chosen))


def samples(algorithm: Algorithm, sessions: int) -> Iterator[tuple[list[Session], float]]:
    """Every group that an algorithm may get, with its probability."""
    if not algorithm.needs.branches:
        for episodes, chance in groups(sessions):
            yield [session(f"s{i}", episode) for i, episode in enumerate(episodes)], chance
        return
    for episode in EPISODES:
        ahead = [[each for each in EPISODES if len(each) > turn] for turn in range(len(episode))]
        for others in itertools.product(*ahead):
            chance = math.prod(probability(each, turn) for turn, each in enumerate(others))
            yield [forked("s0", episode, others)], probability(episode) * chance


def values_of(algorithm: Algorithm, members: Sequence[Session]) -> dict[NodeKey, list[float]] | None:
    """What a critic or a reward model says of the sessions' tokens, where the algorithm has one."""
    nodes = [((s.id, n.id), n) for s in members for n in s.nodes]
    if algorithm.needs.critic:
        known = state_values()
        return {key: [known[(n.id - 1) // 2]] * len(n.token_ids) for key, n in nodes}
    if algorithm.needs.reward_model:
        every = [each for turn in process_rewards(algorithm.reward_config.reward_beta) for each in turn]
        return {key: [every[i - FIRST] if n.sampled else 0.0 for i in n.token_ids] for key, n in nodes}
    return None


def gradient(algorithm: Algorithm, members: list[Session]) -> Tensor:
    """The direction in which a step with one group moves the logits: less the gradient of its loss."""
    if algorithm.needs.greedy:
        likeliest = [int(row.argmax()) for row in policy()]
        length = next((turn + 1 for turn, action in enumerate(likeliest) if action), TURNS)
        members.append(session("greedy", tuple(likeliest[:length])))
        members[-1].phase = GREEDY
    values = values_of(algorithm, members)
    _, forests = pack_credited(algorithm, [Group("g", Task(id="t"), members)], values, 1000, 0)
    logits, total = policy(), torch.zeros((), dtype=torch.float64)
    every = torch.log_softmax(logits, -1).flatten()
    sums = empty_sums(algorithm, sequence_count(forests))
    for forest in forests:
        rows = forest.rows()
        now = every[rows.token_ids - FIRST]
        total = total + objective(algorithm, now, torch.zeros_like(now), rows, sums=sums)[0]
    if not total.requires_grad:
        return torch.zeros_like(logits)
    (found,) = torch.autograd.grad(total, logits)
    return -found


def measure(settings: dict[str, Any], sessions: int) -> Estimate:
    """An algorithm's gradient over all groups, which have so many sessions; each is the run's first step."""
    truth, config = true_gradient(), algorithm_settings(settings)
    mean, square = torch.zeros_like(truth), 0.0
    for members, chance in samples(make_algorithm(config), sessions):
        found = gradient(make_algorithm(config), members)
        mean += chance * found
        square += chance * float(found.square().sum())
    along = float((mean * truth).sum() / truth.square().sum())
    part = abs(along) * float(truth.norm())
    spread = math.sqrt(max(square - float(mean.square().sum()), 0.0))
    return Estimate(along, float((mean - along * truth).norm()) / part, spread / part)


def names() -> list[str]:
    """The algorithms that follow the gradient of a reward."""
    return [name for name in sorted(list_built_in(ALGORITHMS, "agentrl.")) if rewarded(name)]


def rewarded(name: str) -> bool:
    """Whether an algorithm follows the gradient of a reward of one agent.

    Others have demonstrations, a teacher, or continuations of joint turns, which episodes of one agent have not.
    """
    needs = make_algorithm(algorithm_settings({"name": name})).needs
    return needs.engine and not needs.teacher and not needs.counterfactuals


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--normalize", default=None, help="in place of each algorithm's own")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| `algo` | `normalize` | size | bias | deviation |\n|---|---|---|---|---|")
    for name in filter(rewarded, asked.names or names()):
        own = {"name": name, "constant_tokens": 1} | ({"normalize": asked.normalize} if asked.normalize else {})
        found, normalize = measure(own, asked.sessions), algorithm_settings(own).normalize
        print(f"| `{name}` | `{normalize}` | {found.size:.3f} | {found.bias:.3f} | {found.deviation:.2f} |")
    for name in itertools.filterfalse(rewarded, asked.names or list_built_in(ALGORITHMS, "agentrl.")):
        print(f"\n`{name}` is left out: it follows demonstrations or a teacher, and no reward.")


if __name__ == "__main__":
    main()
