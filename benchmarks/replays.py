"""Whether random turns of finished runs come again from their seeds, to the last bit.

    python -m benchmarks.replays runs/ONE runs/OTHER [--turns 200] [--seed 0] [--difference]

Each run gets an equal part of the turns, drawn from its training sessions; each is replayed as by `agentrl replay`.
A turn is expected to be equal where the run's engine is deterministic (engine=local on a CPU in float32), and its
environment's answers with it; the exit code is 1 where one is not. Of other engines the share is printed that is.

`--difference` says how far an engine that promises nothing (SGLang, vLLM) is from its own recording. One engine of
the run's kind generates all of the turns, since a server takes minutes to start: it gets the weights of each turn's
version, whose checksum must be the recorded one, the recorded prompt, and the recorded sampling settings with their
seed. Printed is which share of turns and tokens is equal, tokens up to the first that differs in a turn; how far the
log-probabilities of these are apart; and the same for all recorded tokens as the engine scores them, which depends on
no draw.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from agentrl.errors import ConfigError
from agentrl.rollout.engines import make_engine
from agentrl.rollout.engines.managed import as_managed
from agentrl.rollout.weights.snapshot import read_snapshot
from agentrl.sessions.store.store import Store
from agentrl.sessions.tree import tree
from agentrl.train.record.replay import ReplayConfig, replay
from agentrl.train.record.replay.replaying import weights_of
from agentrl.train.record.verify.recorded import Recorded
from agentrl.types import MAIN, Engine, Node, Turn, VersionSpan
from benchmarks.machine import machine


def turns(run: Path) -> list[tuple[str, int]]:
    """The turns of a run's training sessions: the session, and the turn's number from 1."""
    with Store(run / "sessions.db", read_only=True) as store:
        sampled = [
            (session.id, sum(node.sampled and node.policy == MAIN for node in session.nodes))
            for session in store.sessions(phase="train")
        ]
    return [(session, turn) for session, count in sampled for turn in range(1, count + 1)]


def compare(run: Path, chosen: list[tuple[str, int]]) -> bool:
    """Replay the turns and print what came; whether all that had to be equal are."""
    equal = promised = refused = 0
    broken: list[str] = []
    for session, turn in chosen:
        try:
            result = asyncio.run(replay(run, session, ReplayConfig(turn=turn)))
        except ConfigError as error:
            refused += 1
            print(f"  refused: {error}")
            continue
        (again,) = result.replays
        equal += again.reproduced
        promised += result.exact
        if result.exact and not (again.reproduced and not again.differences):
            broken.append(f"{session}, turn {turn}")
    print(f"{run}: {equal} of {len(chosen) - refused} turns equal to the last bit, {promised} were promised", *broken)
    return not broken


@dataclass(frozen=True)
class Recording:
    """A recorded turn, which one version generated whole: what the engine was sent and what it gave."""

    prompt: list[int]
    ids: list[int]
    logprobs: list[float]
    node: Node


@dataclass(frozen=True)
class Again:
    """The turn as it was generated again, and the log-probabilities of the recorded tokens as they were scored."""

    recording: Recording
    turn: Turn
    scored: list[float]

    @property
    def equal(self) -> int:
        """Tokens before the first that differs."""
        pairs = zip(self.recording.ids, self.turn.token_ids, strict=False)
        return next(
            (at for at, (one, other) in enumerate(pairs) if one != other),
            min(len(self.recording.ids), len(self.turn.token_ids)),
        )


def recorded_turns(store: Store, chosen: list[tuple[str, int]]) -> dict[VersionSpan, list[Recording]]:
    """The turns by the weights that generated them; those that a publication cut are left out."""
    found = defaultdict[VersionSpan, list[Recording]](list)
    for name, number in chosen:
        session = store.load(name)
        node = [each for each in session.nodes if each.sampled and each.policy == MAIN][number - 1]
        if len(node.versions) == 1:
            span = node.versions[0]
            prompt = [*tree.path_ids(session, node.parent), *node.token_ids[: span.start]]
            weights = replace(span, start=0, end=0)
            found[weights].append(Recording(prompt, node.token_ids[span.start :], node.logprobs[span.start :], node))
    return found


async def generated(run: Path, chosen: list[tuple[str, int]]) -> list[Again]:
    """The turns again, by one engine."""
    record, found = Recorded.read(run), list[Again]()
    with Store(run / "sessions.db", read_only=True) as store, tempfile.TemporaryDirectory() as scratch:
        engine = make_engine(record.settings(1).engine, run / "model")
        try:
            await as_managed(engine).start()
            for number, (weights, recordings) in enumerate(recorded_turns(store, chosen).items()):
                folder, how = weights_of(record, store, weights, Path(scratch) / str(number))
                await engine.publish(read_snapshot(folder), weights.version)
                (checksum,) = (await as_managed(engine).checksums()).values()
                had = set(record.weights[weights.version, weights.incarnation].checksums.values())
                print(f"{how}, checksum {checksum[:12]}, {'as recorded' if had == {checksum} else f'NOT {had}'}")
                found += [await again(engine, each, number) for number, each in enumerate(recordings)]
        finally:
            await engine.close()
    return found


async def again(engine: Engine, recording: Recording, number: int) -> Again:
    """One turn again."""
    sampling = recording.node.sampling
    assert sampling is not None
    name = f"again/{recording.node.versions[0].version}/{number}"
    items = [item async for item in engine.generate(name, recording.prompt, replace(sampling, record=()))]
    turn = items[-1]
    assert isinstance(turn, Turn)
    scored = await engine.score([*recording.prompt, *recording.ids], sampling.temperature)
    return Again(recording, turn, scored[len(recording.prompt) :])


def report(found: list[Again]) -> None:
    """Print the differences."""
    tokens, equal = sum(len(each.recording.ids) for each in found), sum(each.equal for each in found)
    whole = sum(list(each.turn.token_ids) == each.recording.ids for each in found)
    bits = sum(
        list(each.turn.token_ids) == each.recording.ids and list(each.turn.logprobs) == each.recording.logprobs
        for each in found
    )
    drawn = [
        abs(a - b)
        for each in found
        for a, b in zip(each.recording.logprobs[: each.equal], each.turn.logprobs, strict=False)
    ]
    scored = [abs(a - b) for each in found for a, b in zip(each.recording.logprobs, each.scored, strict=True)]
    surprise = -fmean(value for each in found for value in each.recording.logprobs)
    print(f"{len(found)} turns of {tokens} tokens, recorded at {surprise:.3g} nats a token")
    print(f"turns with equal tokens: {whole} ({whole / len(found):.0%}), equal to the last bit: {bits}")
    print(f"tokens before the first that differs: {equal} ({equal / tokens:.0%})")
    print(f"|Δ log-probability| of those: mean {fmean(drawn or [0.0]):.2g}, largest {max(drawn, default=0.0):.2g}")
    print(f"of all recorded tokens, scored again: mean {fmean(scored):.2g}, largest {max(scored):.2g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--difference", action="store_true")
    options = parser.parse_args()
    print(machine())
    rng, each = random.Random(options.seed), -(-options.turns // len(options.runs))
    held = []
    for run in options.runs:
        every = turns(run)
        chosen = rng.sample(every, min(each, len(every)))
        if options.difference:
            report(asyncio.run(generated(run, chosen)))
        else:
            held.append(compare(run, chosen))
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
