"""A random walk over the scheduler, checked at every turn against a runner that shares nothing with it.

Which rows are taken, moved, squeezed together and made longer depends on who arrives when, so on a machine's
load; driven by hand, with every arrival drawn from one seed, each order can be had again. What is checked is
what the rows hold rather than how: log-probabilities, keys and values, each to the last bit.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentrl.rollout.engines.local.arena import Arena
from agentrl.rollout.engines.local.request import Finished, Request
from agentrl.rollout.engines.local.runner import ModelRunner, RowSegment
from agentrl.rollout.engines.local.sampler import log_probs
from agentrl.rollout.engines.local.scheduler import Scheduler
from agentrl.rollout.engines.local.weights import load_weights
from agentrl.types import FinishReason, Sampling, Turn

CONTEXT = 900
_SIZE = 16
_STOPS = frozenset(range(0, 260, 26))


class Reference:
    """Everything about a path in one pass of its own, for each of the policies that take turns."""

    def __init__(self, runners: list[ModelRunner]) -> None:
        self.runners = runners

    def logits(self, ids: list[int], version: int) -> Tensor:
        """Logits after each token; the runner's first row then holds the path's keys and values."""
        runner = self.runners[version % len(self.runners)]
        segments = [RowSegment(0, at, ids[at : at + _SIZE]) for at in range(0, len(ids), _SIZE)]
        runner.arena.reserve(len(ids))
        return runner.step(0, [], segments, _SIZE, range(len(ids)))

    def logprobs(self, ids: list[int], version: int, temperature: float) -> list[float]:
        """Log-probability of each token but the first."""
        logp_TV = log_probs(self.logits(ids, version)[:-1], [temperature] * (len(ids) - 1))
        return logp_TV.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()

    def keys_and_values(self, ids: list[int], version: int) -> Tensor:
        """What an arena's row holds of the path."""
        self.logits(ids, version)
        return self.runners[version % len(self.runners)].arena.copy_out(0, len(ids))


@dataclass(eq=False)
class OpenSession:
    """A session: its tokens so far, and what of its next turn exists after an abort."""

    name: str
    ids: list[int]
    turn: int = 0
    request: Request | None = None


@dataclass
class EventRates:
    """How likely each kind of event is, for a while."""

    arrive: float
    cancel: float
    score: float
    disturb: float


@dataclass
class Walk:
    """One scheduler, the sessions that use it, and dice."""

    runner: ModelRunner
    reference: Reference
    dice: random.Random
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        pick = self.dice.choice
        template = self.runner.arena
        layers, _, _, heads, _, width = template.kv.shape
        rows = pick([1, 2, 6, 24, 40, 64])
        self.runner.arena = Arena(
            layers=layers,
            heads=heads,
            width=width,
            rows=rows,
            budget_bytes=(rows + 1) * pick([256, 400, 1024]) * template.token_bytes,
            dtype=torch.float32,
            device=template.kv.device,
        )
        self.runner.arena.kv.fill_(1e3)  # whoever reads what he didn't write shall be told apart
        self.scheduler = Scheduler(
            self.runner,
            store_tokens=pick([0, 300, 3000, 1_000_000]),
            prefill_tokens=pick([16, 48, 512]),
            score_tokens=pick([16, 48, 4096]),
            decode=None,
        )
        self._swap(0)
        self.sessions: list[OpenSession] = []
        self.open: list[Request] = []
        for group in range(pick([1, 6, 12])):
            prompt = self._tokens(pick([1, 5, 20, 60, 200]))
            for member in range(pick([2, 8])):
                self.sessions.append(OpenSession(f"{group}-{member}", list(prompt)))

    def run(self, events: int) -> Counter[str]:
        """Let that many things happen, then bring everything to its end; returns what happened how often."""
        rates = self._rates()
        for at in range(events):
            if at % 40 == 0:
                rates = self._rates()
            self._event(rates)
        self._calm()
        steps = 0
        while self.scheduler.waiting or self.scheduler.running:
            self._step()
            assert self.scheduler.progress, "requests wait, and nothing moves"
            steps += 1
            assert steps < 100_000
        self._audit()
        assert not self.open
        return self.seen

    def _rates(self) -> EventRates:
        pick = self.dice.choice
        return EventRates(
            pick([0.0, 0.05, 0.3, 0.8]), pick([0.0, 0.0, 0.1]), pick([0.0, 0.02, 0.2]), pick([0.0, 0.0, 0.05])
        )

    def _event(self, rates: EventRates) -> None:
        roll = self.dice.random
        while roll() < rates.arrive and (idle := [session for session in self.sessions if session.request is None]):
            self._generate(self.dice.choice(idle))
        if roll() < rates.score:
            self._score()
        if self.open and roll() < rates.cancel:
            self._cancel(self.dice.choice(self.open))
        if roll() < rates.disturb:
            self.dice.choice([self._abort, self._publish, self._freeze, self._refuse, self._calm])()
        self._step()
        if roll() < 0.05:
            self._audit()

    # --- events

    def _tokens(self, count: int) -> list[int]:
        return [self.dice.randrange(self.runner.vocab_size) for _ in range(count)]

    def _generate(self, session: OpenSession) -> None:
        limit = self.dice.choice([1, 3, 12, 40, 150])
        if len(session.ids) + 150 + limit >= CONTEXT:
            session.ids = session.ids[: self.dice.randrange(1, 60)]  # branch off from an early point
        session.ids = session.ids + self._tokens(self.dice.choice([0, 1, 4, 12, 20, 90]))
        sampling = Sampling(max_new_tokens=limit, temperature=self.dice.choice([1.0, 0.7]))
        session.request = Request(
            f"{session.name}/{session.turn}",
            list(session.ids),
            sampling,
            self.dice.getrandbits(60),
            limit,
            stops=_STOPS,
        )
        session.turn += 1
        self._submit(session.request)

    def _score(self) -> None:
        ids = list(self.dice.choice(self.sessions).ids)
        ids += self._tokens(self.dice.choice([1, 16, self.dice.randrange(1, 200)]))
        self._submit(Request("score", ids, None, 0, 0, temperature=self.dice.choice([1.0, 0.7])))

    def _submit(self, request: Request) -> None:
        self.open.append(request)
        self.scheduler.submit(request)

    def _cancel(self, request: Request) -> None:
        self.seen["cancel"] += 1
        self.scheduler.cancel(request)
        self._forget(request)

    def _abort(self) -> None:
        self._check(self.scheduler.abort_running())

    def _publish(self) -> None:
        self._swap(self.scheduler.version + 1)
        self.scheduler.forget_computed()

    def _swap(self, version: int) -> None:
        runners = self.reference.runners
        load_weights(self.runner.model, runners[version % len(runners)].model.named_parameters())
        self.scheduler.version = version

    def _freeze(self) -> None:
        self.scheduler.admitting, self.scheduler.frozen = False, True

    def _refuse(self) -> None:
        self.scheduler.admitting = False

    def _calm(self) -> None:
        self.scheduler.admitting, self.scheduler.frozen = True, False

    # --- what must hold

    def _step(self) -> None:
        before = {id(r): r.row for r in self.scheduler.running.values()}
        length, rows = self.runner.arena.length, self.runner.arena.rows
        ended = self.scheduler.step()
        moved = [r for r in self.scheduler.running.values() if r.row != before.get(id(r), r.row)]
        self.seen["moved"] += bool(moved)
        self.seen["moved while prefilled"] += any(not r.logprobs for r in moved)
        self.seen["longer rows"] += self.runner.arena.length > length
        self.seen["fewer rows"] += self.runner.arena.rows < rows
        self._check(ended)
        for row, request in self.scheduler.running.items():
            assert row == request.row < self.runner.arena.rows
            assert request.prefix is None or (request.prefix.row, request.prefix.computed) == (row, request.computed)
        store = self.scheduler.prefixes
        assert store.tokens == sum(prefix.computed for prefix in store.stored.values()) <= store.capacity

    def _check(self, ended: list[Finished]) -> None:
        for done in ended:
            if isinstance(done.result, Turn):
                self._check_turn(done.request, done.result)
            else:
                assert isinstance(done.result, list)
                temperature = done.request.temperature
                expected = self.reference.logprobs(done.request.ids, self.scheduler.version, temperature)
                assert done.result == [0.0, *expected]
                self.seen["scoring"] += 1
            session = self._forget(done.request)
            if session is not None and isinstance(done.result, Turn):
                session.ids = session.ids + list(done.result.token_ids)

    def _check_turn(self, request: Request, turn: Turn) -> None:
        assert request.sampling is not None
        assert (turn.finish_reason is FinishReason.STOP) == bool(turn.token_ids and turn.token_ids[-1] in _STOPS)
        path = request.ids[: request.prompt] + list(turn.token_ids)
        assert sum(span.end - span.start for span in turn.versions) == len(turn.token_ids) == len(turn.logprobs)
        for span in turn.versions:
            expected = self.reference.logprobs(path, span.version, request.sampling.temperature)[request.prompt - 1 :]
            assert list(turn.logprobs[span.start : span.end]) == expected[span.start : span.end]
        self.seen["turn"] += 1
        self.seen["shared"] += turn.cached_tokens > 0
        self.seen["two versions"] += len(turn.versions) > 1

    def _forget(self, request: Request) -> OpenSession | None:
        self.open.remove(request)
        for session in self.sessions:
            if session.request is request:
                session.request = None
                return session
        return None

    def _audit(self) -> None:
        """Every key and value that somebody may yet read."""
        version = self.scheduler.version
        for row, request in self.scheduler.running.items():
            if request.computed:
                held = self.runner.arena.copy_out(row, request.computed)
                assert torch.equal(held, self.reference.keys_and_values(request.ids[: request.computed], version))
        stored = list(self.scheduler.prefixes.stored.values())
        for prefix in self.dice.sample(stored, min(len(stored), 2)):
            assert prefix.kv is not None
            expected = self.reference.keys_and_values(list(prefix.ids[: prefix.computed]), version)
            assert torch.equal(prefix.kv, expected)
        self.seen["audit"] += 1
