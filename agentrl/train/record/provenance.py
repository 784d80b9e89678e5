"""The origin of a run's trained tokens, `provenance.jsonl`: a JSON object for each publication and each step.

    {"step": 3, "published": {"version": 3, "incarnation": 0, "engine": "sglang", "caches": "dropped",
     "checksums": {"engine-0": "9f2c…"}, "probe": 2e-06, "probe_bound": 0.002, "reference": "9f2c…"}}
    {"step": 4, "trained": {"version": 3, "scores": {"train-6.0-0": 1.0}, "forests": "51ab…", "algorithm": {…},
     "credit": {"train-6.0-0": {"1": [[0.5, 0.01]]}}}}

The session store has the rest: the tokens of each turn with their versions, engines and sampling settings, and rewards
by name. So a trained token traces to the weights that drew it, as the engine itself digests them, and to the step that
trained it, with what credit. `agentrl verify` (`train.record.verify`) checks all of it against each other.

A resumed run drops the lines after the step that it continues after, as it does those of metrics and of the ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import orjson

from agentrl.config import WeightsConfig
from agentrl.errors import ConfigError, Unproven
from agentrl.rollout.engines.managed import as_managed
from agentrl.sessions.tree.codec import pack_floats
from agentrl.sessions.tree.incarnations import Loss, incarnation
from agentrl.train.record.files import append
from agentrl.types import MAIN, Engine, Group, Node, Session, Status

if TYPE_CHECKING:
    from agentrl.rollout.weights.buckets import Weights
    from agentrl.train.algorithms.credit import Credit, NodeAdvantage
    from agentrl.train.forest.forest import Forest

NAME = "provenance.jsonl"
Caches = Literal["dropped", "kept"]
Share = list[float | str]
"""A node's advantage and weight; with one advantage for each token their mean, the weight, and their hash."""


class SentPart(TypedDict):
    """A part of what a trainer hands out, as it was sent."""

    dtype: str
    digest: str
    bytes: int


def parts_of(weights: Weights) -> dict[str, SentPart]:
    """Return the smaller parts that engines took of weights, by their kind."""
    taken = {kind: weights.parts[kind] for kind in weights.moved if kind in weights.parts}
    return {kind: SentPart(dtype=part.dtype, digest=part.digest(), bytes=part.nbytes) for kind, part in taken.items()}


@dataclass(frozen=True, slots=True)
class Published:
    """Weights that engines generate with.

    Attributes:
        version: of the trained policy; with `incarnation` it names weights for good (`sessions.tree.incarnations`).
        incarnation: how often the run had lost weights of that version before.
        engine: the kind of engine.
        caches: whether engines dropped what older weights had computed; `kept` with weights.mode=in_place.
        checksums: each engine's own digest of its tensors, by the engine's name; '' where it has none.
        probe: the largest mean |log-probability difference| of an engine and the trainer; None without a probe.
        probe_bound: what it may be at most.
        reference: the checksum of an engine that loaded the same weights from a folder (`weights.prove_every`); ''
            where none did.
        parts: the smaller parts that engines took in the whole weights' place, by kind; not in the file where none is.
        policy: whose weights they are; not in the file where that is the main one. So it is for `Trained`.
    """

    version: int
    incarnation: int
    engine: str
    caches: Caches
    checksums: Mapping[str, str]
    probe: float | None = None
    probe_bound: float | None = None
    reference: str = ""
    parts: Mapping[str, SentPart] = field(default_factory=dict)
    policy: str = MAIN

    @property
    def undelivered(self) -> str:
        """The engine with other weights than the one that loaded them from a folder; '' where there is none."""
        odd = {name: found for name, found in self.checksums.items() if self.reference and found != self.reference}
        if not odd:
            return ""
        name, found = next(iter(odd.items()))
        return (
            f"{name} has the checksum {found[:40]} after version {self.version}, and an engine that loaded it from a "
            f"folder has {self.reference[:40]}: not all weights arrived"
        )

    @property
    def doubt(self) -> str:
        """The reason for which tokens of these weights are not proven; '' where they are."""
        if len(set(self.checksums.values())) > 1:
            return "the engines' checksums differ"
        if not any(self.checksums.values()):
            return "no engine has a checksum"
        return "" if self.caches == "dropped" else "caches that older weights computed were kept"


@dataclass(frozen=True, slots=True)
class Trained:
    """The data that a step trained on, and its credit.

    Attributes:
        version: the trainer's before the step.
        scores: of each session that counts in a baseline, as credit saw them, by id (`Session.by_agent`).
        credit: by session and node id, the shares of each node (`train.algorithms.credit`).
        forests: a hash of what the trainer got (`forest_hash`).
        algorithm: what the algorithm carried into the step (`Algorithm.snapshot`).
    """

    version: int
    scores: Mapping[str, float | None]
    credit: Mapping[str, Mapping[str, Sequence[Share]]]
    forests: str
    algorithm: Mapping[str, Any]
    policy: str = MAIN


@dataclass(slots=True)
class Evidence:
    """The record's lines of the step under way, and the weights that are known from before.

    Attributes:
        known: the weights that engines had in this run, by version and incarnation.
        published: those that are not in the file yet.
        algorithm: what the algorithm carried into the step.
        trained: what the step trains on; it is set anew where a step is trained again.
        policy: whose record it is.
    """

    known: dict[tuple[int, int], Published] = field(default_factory=dict)
    published: list[Published] = field(default_factory=list)
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    trained: Trained | None = None
    policy: str = MAIN

    def add(self, published: Published) -> None:
        """Add a publication of new weights."""
        self.known[published.version, published.incarnation] = published
        self.published.append(published)

    def begin(self, algorithm: Mapping[str, Any]) -> None:
        """A step begins, with this snapshot of the algorithm."""
        self.algorithm = deepcopy(algorithm)

    def train(
        self, groups: Sequence[Group], credit: Credit, forests: Sequence[Forest], version: int, *, require: bool
    ) -> None:
        """The step trains on `forests`.

        Args:
            groups: of one agent each, with rewards as credit saw them.
            credit: theirs.
            forests: what the trainer gets.
            version: the trainer's before the step.
            require: refuse credit for a token whose weights are not proven.

        Raises:
            Unproven: `require`; names the first such token's session and turn, and what is missing.
        """
        shares = shares_of(credit)
        scores = {session.id: session.score for session in list_counted(groups)}
        self.trained = Trained(version, scores, shares, forest_hash(forests), self.algorithm, self.policy)
        for session in (session for group in groups if require for session in group.sessions):
            for node in (session.nodes[int(number)] for number in shares.get(session.id, ())):
                if why := self._doubt(session, node):
                    raise Unproven(
                        f"session {session.id}, turn {node.id} can't be trained on: {why} (require_provenance=true)"
                    )

    def take_published(self) -> list[Published]:
        """Return the publications since the last call."""
        found, self.published = self.published, []
        return found

    def take(self) -> list[Published | Trained]:
        """Return what was added since the last call."""
        trained, self.trained = self.trained, None
        return [*([trained] if trained else []), *self.take_published()]

    def _doubt(self, session: Session, node: Node) -> str:
        if session.status is Status.INFRA_ERROR:
            return "its session ended in an infrastructure error"
        if node.sampled and (node.policy != MAIN or not node.versions):
            return "no version of the trained policy generated it"
        for span in node.versions:
            weights = self.known.get((span.version, span.incarnation))
            if why := weights.doubt if weights else "it was never published":
                return f"version {span.version} generated tokens of it, and {why}"
        return ""


def list_counted(groups: Iterable[Group]) -> list[Session]:
    """The sessions that credit counts: those with a score, greedy ones included."""
    return [session for group in groups for session in (*group.scored, *group.greedy)]


def shares_of(credit: Credit) -> dict[str, dict[str, list[Share]]]:
    """A batch's credit by session and node id; none of sessions that a loss only measures, which follow from it."""
    shares: dict[str, dict[str, list[Share]]] = {}
    added = {session.id for group in credit.added for session in group.sessions}
    for (session, node), each in ((key, each) for key, each in credit.shares.items() if key[0] not in added):
        shares.setdefault(session, {})[str(node)] = [_share(share) for share in each]
    return shares


def _share(share: NodeAdvantage) -> Share:
    if isinstance(share.advantage, Sequence):
        data = pack_floats(share.advantage) or b""
        return [fmean(share.advantage), share.weight, hashlib.blake2b(data, digest_size=8).hexdigest()]
    return [float(share.advantage), share.weight]


def forest_hash(forests: Sequence[Forest]) -> str:
    """A digest of what forests say about their tokens, 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for forest in forests:
        updates = [list(map(list, forest.updates))] if forest.updates else []
        digest.update(orjson.dumps([len(forest), forest.sessions, *updates]))
        for tensor in (
            *(forest.token_ids, forest.position, forest.end, forest.weight, forest.advantage, forest.advantage_minus),
            *(forest.temperature, forest.behaviour_logp, forest.version, forest.predictor, forest.target),
        ):
            digest.update(b"" if tensor is None else tensor.contiguous().numpy().data)
        for name, column in sorted(forest.fields.items()):
            digest.update(name.encode())
            for tensor in column.tensors:
                digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


async def confirm_weights(
    engine: Engine,
    kind: str,
    weights: WeightsConfig,
    losses: Sequence[Loss],
    probed: float | None = None,
    bound: float | None = None,
    reference: str = "",
    policy: str = MAIN,
) -> Published:
    """The weights that an engine has, by its own account."""
    version = engine.version()
    checksums = await as_managed(engine).checksums() if weights.verify else {}
    caches: Caches = "kept" if weights.mode == "in_place" else "dropped"
    number = incarnation(version, losses, policy)
    return Published(version, number, kind, caches, checksums, probed, bound, reference, policy=policy)


# ------------------------------------------------------------------------------------------- the file


def write(run: Path, step: int, found: Iterable[Published | Trained]) -> None:
    """Add lines of a step, and flush them to the disk."""
    append(run / NAME, lines(step, found))


def lines(step: int, found: Iterable[Published | Trained]) -> bytes:
    """The lines of a step."""
    return b"".join(_line(step, each) for each in found)


def _line(step: int, found: Published | Trained) -> bytes:
    kind = "published" if isinstance(found, Published) else "trained"
    row = asdict(found)
    if not row.get("parts", True):
        del row["parts"]
    if found.policy == MAIN:
        del row["policy"]
    return orjson.dumps({"step": step, kind: row}) + b"\n"


def read(run: Path) -> Iterator[tuple[int, Published | Trained]]:
    """A run's record with the steps, one line at a time; a torn last line is left out."""
    file = run / NAME
    if not file.exists():
        return
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = orjson.loads(line)
                found = Published(**row["published"]) if "published" in row else Trained(**row["trained"])
                step = int(row["step"])
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{file}, line {number} is damaged: {error}") from None
            yield step, found


def read_published(run: Path, policy: str = MAIN) -> dict[tuple[int, int], Published]:
    """The weights that a policy's engines had so far in a run, by version and incarnation."""
    found = (each for _, each in read(run) if isinstance(each, Published))
    return {(each.version, each.incarnation): each for each in found if each.policy == policy}
