"""The engine of a session that is replayed: recorded turns up to one of them, generated ones from there on."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from agentrl.attachments import support
from agentrl.errors import Diverged
from agentrl.rollout.rerun.divergence import same_prompt
from agentrl.rollout.rerun.engine import DelegatingEngine
from agentrl.rollout.stream.seeds import derive
from agentrl.sessions.tree.generation import aclose
from agentrl.types import MAIN, Chunk, Engine, Placed, Sampling, Session, Turn, begin_turn


class ReplayEngine(DelegatingEngine):
    """Gives each session the recorded turns before one of them, then generates.

    The turn itself is generated with its recorded sampling settings; it and later ones with the seeds that they had,
    or with others.

    Args:
        engine: generates; has the weights that the turn was generated under.
        recorded: the session.
        turn: from 1, the first that is generated.
        version: what the generated tokens' policy version is.

    Attributes:
        seeds: by a replayed session's id, what its seeds are derived with; absent or None: they are the recorded ones.
        differences: by session, where its environment answered otherwise than in the recording.
    """

    def __init__(self, engine: Engine, recorded: Session, turn: int, version: int) -> None:
        super().__init__(engine)
        self.recorded, self.turn, self._version = recorded, turn, version
        self.seeds: dict[str, int | None] = {}
        self.differences: dict[str, list[str]] = defaultdict(list)
        self._turns = [node for node in recorded.nodes if node.sampled and node.policy == MAIN]
        self._places: dict[str, dict[str, int]] = defaultdict(dict)

    async def generate(
        self,
        request_id: str,
        input_ids: Sequence[int],
        sampling: Sampling,
        deadline: float | None = None,
        attached: Sequence[Placed] = (),
    ) -> AsyncIterator[Chunk | Turn]:
        name = request_id.partition("/")[0]
        places = self._places[name]  # by request: turns of agents that move at once are requested together, in order
        free = next(place for place in itertools.count() if place not in places.values())
        place, ended = places.setdefault(request_id, free), False
        if place < self.turn:
            node = self._turns[place]
            try:
                same_prompt(self.recorded, node, input_ids)
            except Diverged as error:
                self.differences[name].append(str(error))
            if place < self.turn - 1:
                kept = {name: data for name, data in node.attachments.items() if name == support.NAME}
                yield replace(node.turn(), attachments=kept)
                return
            sampling = replace(node.drawn_with, record=sampling.record, top_logprobs=sampling.top_logprobs)
        elif place < len(self._turns):  # those of a branch are not what follows from the session's seed alone
            recorded = self._turns[place].sampling
            sampling = replace(sampling, seed=recorded.seed if recorded else None)
        if (seed := self.seeds.get(name)) is not None:
            sampling = replace(sampling, seed=derive(sampling.seed or 0, "replay", seed))
        stream = begin_turn(self.inner, request_id, input_ids, sampling, deadline, attached)
        try:
            async for item in stream:
                if isinstance(item, Turn):
                    ended = True
                    spans = tuple(replace(span, version=self._version) for span in item.versions)
                    item = replace(item, versions=spans)
                yield item
        finally:
            await aclose(stream)
            if not ended:  # a program may ask for that turn once more
                places.pop(request_id, None)

    def version(self) -> int:
        return self._version
