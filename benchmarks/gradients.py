"""Bias and variance of each algorithm's gradient, by enumeration of a small decision process.

    python -m benchmarks.gradients [NAME …] [--sessions 3] [--normalize constant]

An episode has one to three turns: the agent asks, up to three times, or gives one of two answers, which ends the
episode; answering late costs, and asking a third time earns nothing. The policy has three logits for each turn. Every
group of `--sessions` episodes is enumerated with its probability, credited by the algorithm, packed, and
differentiated by the trainer's own objective before the first update (all ratios are 1). So expectation and variance
over groups are exact, and so is the policy gradient of the mean reward.

Where the denominator is a constant, it is 1 token for each session.

`size` is the part of the expected gradient along the true one, over its norm. `bias` is the norm of the rest, and
`deviation` that of the standard deviation, both over the norm of the part along it: a scale is the learning rate's
business, a direction is not.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentrl.train.algorithms import ALGORITHMS, Algorithm, algorithm_settings, make_algorithm
from agentrl.train.algorithms.table import built_in
from agentrl.train.credit import NodeKey
from agentrl.train.forest import sequence_count
from agentrl.train.objective import empty_sums, objective
from agentrl.train.packing import pack_credited
from agentrl.types import GREEDY, FinishReason, Group, Message, Node, Sampling, Session, Status, Task, VersionSpan

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


def true_gradient() -> Tensor:
    """The gradient of the mean reward."""
    logits = policy()
    mean = torch.stack([logp(logits, episode).sum().exp() * reward(episode) for episode in EPISODES]).sum()
    (found,) = torch.autograd.grad(mean, logits)
    return found


def state_values() -> list[float]:
    """The expected reward before each turn: an exact critic."""
    logits = policy().detach()
    found = []
    for turn in range(TURNS):
        ahead = [each for each in EPISODES if len(each) > turn]
        weights = [float(logp(logits, each)[turn:].sum().exp()) for each in ahead]
        found.append(math.fsum(w * reward(each) for w, each in zip(weights, ahead, strict=True)))
    return found


def session(name: str, episode: Episode) -> Session:
    """An episode as it would be stored."""
    made = Session(name, Task(id="t"), group="g", status=Status.COMPLETED, rewards=parts(episode))
    made.reward = reward(episode)
    known = logp(policy().detach(), episode).tolist()
    parent = _node(made, None, [1, 2], sampled=False)
    for turn, action in enumerate(episode):
        parent = _node(made, parent, [FIRST + turn * len(ACTIONS) + action], sampled=True, logprob=known[turn])
        parent = _node(made, parent, [3], sampled=False)
    return made


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
    chance = {each: float(logp(policy().detach(), each).sum().exp()) for each in EPISODES}
    for chosen in itertools.combinations_with_replacement(EPISODES, sessions):
        orders = math.factorial(sessions) / math.prod(map(math.factorial, Counter(chosen).values()))
        yield chosen, orders * math.prod(chance[each] for each in chosen)


def gradient(algorithm: Algorithm, episodes: Sequence[Episode]) -> Tensor:
    """The direction in which a step with one group moves the logits: less the gradient of its loss."""
    members = [session(f"s{i}", episode) for i, episode in enumerate(episodes)]
    if algorithm.needs.greedy:
        likeliest = [int(row.argmax()) for row in policy()]
        length = next((turn + 1 for turn, action in enumerate(likeliest) if action), TURNS)
        members.append(session("greedy", tuple(likeliest[:length])))
        members[-1].phase = GREEDY
    values: dict[NodeKey, list[float]] | None = None
    if algorithm.needs.critic:
        known = state_values()
        values = {(s.id, n.id): [known[(n.id - 1) // 2]] * len(n.token_ids) for s in members for n in s.nodes}
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
    """An algorithm's gradient over all groups of so many sessions; each is the run's first step."""
    truth = true_gradient()
    mean, square = torch.zeros_like(truth), 0.0
    for episodes, chance in groups(sessions):
        found = gradient(make_algorithm(algorithm_settings(settings)), episodes)
        mean += chance * found
        square += chance * float(found.square().sum())
    along = float((mean * truth).sum() / truth.square().sum())
    part = abs(along) * float(truth.norm())
    spread = math.sqrt(max(square - float(mean.square().sum()), 0.0))
    return Estimate(along, float((mean - along * truth).norm()) / part, spread / part)


def names() -> list[str]:
    """The algorithms that need no forks, no second model and no demonstrations."""
    found = []
    for name in sorted(built_in(ALGORITHMS, "agentrl.")):
        needs = make_algorithm(algorithm_settings({"name": name})).needs
        if needs.engine and not (needs.branches or needs.reward_model):
            found.append(name)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--normalize", default=None, help="in place of each algorithm's own")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| `algo` | `normalize` | size | bias | deviation |\n|---|---|---|---|---|")
    for name in asked.names or names():
        own = {"name": name, "constant_tokens": 1} | ({"normalize": asked.normalize} if asked.normalize else {})
        found, normalize = measure(own, asked.sessions), algorithm_settings(own).normalize
        print(f"| `{name}` | `{normalize}` | {found.size:.3f} | {found.bias:.3f} | {found.deviation:.2f} |")


if __name__ == "__main__":
    main()
