"""Tokens that were drawn from a part of the vocabulary, with penalties and biases, against a slow, obvious reference.

The reference knows no forest, chunk or column: each path goes through the model alone, and each sampled token's
distribution is written out from the turn's sampling, its kept ids and the tokens before it.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from agentrl import attachments
from agentrl.attachments import support
from agentrl.errors import InvalidInput
from agentrl.sessions.tree import trainability, tree
from agentrl.sessions.tree.trainability import Untrainable
from agentrl.train.algorithms import algorithm_settings
from agentrl.train.algorithms.credit import Credit, NodeAdvantage, SequenceKind
from agentrl.train.algorithms.objective import add_sums, empty_sums, objective
from agentrl.train.algorithms.policy_losses import LOSSES
from agentrl.train.forest.forest import Forest, sequence_count
from agentrl.train.forest.packing import pack
from agentrl.train.trainers import head as heads
from agentrl.train.trainers.head import Logits, token_logps
from agentrl.train.trainers.ranks.balance import trees
from agentrl.train.trainers.torch_trainer.settings import TorchConfig
from agentrl.train.trainers.torch_trainer.trainer import TorchTrainer
from agentrl.types import Node, Sampling, Session
from tests.train.trees import VOCABULARY, as_group, linear_session, random_session

OPENING = 2
"""The tokens that open each turn of `random_session`, which nobody sampled."""

Kept = dict[tuple[str, int, int], set[int]]
"""By session, node and place in the node: what the token was drawn from."""


def narrowed(rng: random.Random, session: Session, kept: Kept) -> None:
    """Give the sampled turns random settings and supports."""
    for node in session.nodes:
        if node.sampling is None or rng.random() < 0.2:
            continue
        node.sampling = Sampling(
            temperature=rng.choice((1.0, 0.7)),
            top_p=0.9,
            repetition_penalty=rng.choice((1.0, 1.4)),
            presence_penalty=rng.choice((0.0, 0.5)),
            frequency_penalty=rng.choice((0.0, 0.3)),
            logit_bias=rng.choice(((), ((7, 1.5), (9, -2.0)))),
        )
        recorder = support.SupportRecorder(VOCABULARY, 1000, rng.choice((support.LOCAL, support.SGLANG)))
        for place in range(OPENING, len(node.token_ids)):
            size = rng.choice((1, 3, 20, 40, VOCABULARY))
            ids = {node.token_ids[place], *rng.sample(range(VOCABULARY), size)} if size > 1 else {node.token_ids[place]}
            kept[session.id, node.id, place] = ids
            recorder.add(np.array(sorted(ids)), node.token_ids[place])
        node.attachments[support.NAME] = recorder.data()


def one_logp(logits: Tensor, session: Session, node: Node, place: int, kept: Kept) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of a token's own distribution, from the model's logits before it."""
    own = node.sampling
    assert own is not None
    before = [*tree.path_ids(session, node.parent), *node.token_ids[:place]]
    turn = Counter(node.token_ids[OPENING:place])
    if support.NAME in node.attachments and support.unpack(node.attachments[support.NAME]).rule == support.SGLANG:
        before = list(turn)
    values = {}
    for token in sorted(kept.get((session.id, node.id, place), range(VOCABULARY))):
        logit = logits[token]
        if own.repetition_penalty != 1 and token in before:
            logit = logit / own.repetition_penalty if logit > 0 else logit * own.repetition_penalty
        logit = logit - own.frequency_penalty * turn[token] - own.presence_penalty * (token in turn)
        values[token] = (logit + dict(own.logit_bias).get(token, 0.0)) / own.temperature
    logps = torch.log_softmax(torch.stack(list(values.values())), 0)
    return logps[list(values).index(node.token_ids[place])], -(logps.exp() * logps).sum()


def drawn(forest: Forest, sessions: Sequence[Session]) -> Iterator[tuple[Session, Node, int]]:
    """Session, node and place in the node of the token that each of a forest's rows is about."""
    by_id = {session.id: session for session in sessions}
    for target in forest.rows().target.tolist():
        session = by_id[forest.sessions[int(forest.session_id[target])]]
        node = session.nodes[int(forest.node_id[target])]
        yield session, node, int(forest.position[target]) - len(tree.path_ids(session, node.parent))


def by_paths(model: nn.Module, forest: Forest, sessions: Sequence[Session], kept: Kept) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each of a forest's rows, where every node's path goes through the model alone."""
    logits: dict[tuple[str, int], Tensor] = {}
    found = []
    for session, node, place in drawn(forest, sessions):
        before = tree.path_ids(session, node.parent)
        if (session.id, node.id) not in logits:
            logits[session.id, node.id] = model(input_ids=torch.tensor([[*before, *node.token_ids]])).logits[0]
        found.append(one_logp(logits[session.id, node.id][len(before) + place - 1], session, node, place, kept))
    logps, entropies = zip(*found, strict=True)
    return torch.stack(logps), torch.stack(entropies)


def move(model: nn.Module) -> None:
    """Change a model, the same way each time."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


def made(seed: int) -> tuple[list[Session], Kept]:
    rng, kept = random.Random(seed), Kept()
    sessions = [random_session(rng, f"s{i}", [4, 5, 6, 7][: rng.randint(1, 4)], 3, 2) for i in range(3)]
    for session in sessions:
        narrowed(rng, session, kept)
        tree.check(session)
    return sessions, kept


def with_added(sessions: Sequence[Session], credit: Credit, kept: Kept) -> list[Session]:
    """The sessions and those that credit adds, whose completions were drawn from what they were drawn from elsewhere.

    A completion below another prompt has the tokens, the very list, of the turn that it is taken from.
    """
    turns = {id(node.token_ids): (session, node) for session in sessions for node in session.nodes}
    added = [session for group in credit.added for session in group.sessions]
    for other in added:
        for node in other.nodes:
            session, turn = turns[id(node.token_ids)]
            for place in range(len(node.token_ids)):
                if (session.id, turn.id, place) in kept:
                    kept[other.id, node.id, place] = kept[session.id, turn.id, place]
    return [*sessions, *added]


def credit_of(sessions: Sequence[Session]) -> Credit:
    rng = random.Random(1)
    return Credit(
        {
            (session.id, node.id): (NodeAdvantage(rng.choice((-1.0, 0.5, 1.0)), 0.25),)
            for session in sessions
            for node in session.nodes
            if node.sampled
        }
    )


def rows_of(sessions: Sequence[Session], budget: int = 10_000, sequence: SequenceKind | None = None) -> list[Forest]:
    return pack([as_group(sessions)], credit_of(sessions), budget, sequence=sequence)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("limit", [1 << 24, VOCABULARY * 5])
def test_value_and_gradient_of_log_probability_and_entropy_are_the_references(
    seed: int, cap: float | None, limit: int
) -> None:
    """The model is a table of vectors for the token before, so a path's logits need no attention."""
    sessions, kept = made(seed)
    torch.manual_seed(seed)
    table, head = torch.randn(VOCABULARY, 8), nn.Linear(8, VOCABULARY, bias=False)
    shape = Logits(cap=cap)
    for forest in rows_of(sessions):
        hidden = table[forest.token_ids].requires_grad_()
        rows = forest.rows()
        found = token_logps(head, hidden, rows, limit, shape)
        wanted = []
        for predictor, (session, node, place) in zip(rows.predictor.tolist(), drawn(forest, sessions), strict=True):
            wanted.append(one_logp(shape(head(hidden[predictor])), session, node, place, kept))
        expected = tuple(torch.stack(each) for each in zip(*wanted, strict=True))
        results = []
        for logp, entropy in (found, expected):
            loss = (logp * torch.linspace(-1, 1, len(rows)) - 0.3 * entropy).sum()
            results.append((logp, entropy, *torch.autograd.grad(loss, (hidden, head.weight), retain_graph=True)))
        for one, other in zip(*results, strict=True):
            assert torch.allclose(one, other, atol=3e-6)


def test_a_head_with_a_bias_and_one_without_gradients_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd through masks, the backward of our own, and the columns that rows need are three ways to one number."""
    sessions, _ = made(5)
    [forest] = rows_of(sessions)
    rows = forest.rows()
    plain, biased = nn.Linear(8, VOCABULARY, bias=False), nn.Linear(8, VOCABULARY)
    with torch.no_grad():
        biased.weight.copy_(plain.weight)
        biased.bias.zero_()
    hidden = torch.randn(len(forest), 8)
    with torch.no_grad():
        scored = token_logps(plain, hidden, rows)
        monkeypatch.setattr(heads.Drawn, "part", lambda self, first, size: heads.VocabularyPart(first, size))
        whole = token_logps(plain, hidden, rows)
    learned = token_logps(biased, hidden, rows)
    for one, two, three in zip(scored, whole, learned, strict=True):
        assert torch.allclose(one, two, atol=1e-6)
        assert torch.allclose(one, three, atol=1e-6)


ALGORITHMS = {None: "reinforce", "pairs": "dpo", "labels": "kto"}
"""An algorithm for the losses of each kind (`compares`)."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LOSSES.available()))
def test_every_loss_with_kl_and_entropy_has_the_value_and_gradient_of_paths_by_themselves(
    name: str, tiny_llama: Path
) -> None:
    """KL compares policy and reference over the kept set; pairs and labels (kto) sum log-probabilities over it."""
    compares = LOSSES.available()[name].compares
    more = {"kl_coef": 0.2, "entropy_coef": 0.05} if compares is None else {}
    algo = algorithm_settings({"name": ALGORITHMS[compares], **more, "loss": {"name": name}})
    (sessions, kept), trainer = made(7), TorchTrainer(tiny_llama, TorchConfig(device="cpu", dtype="float32"), algo)
    plain, reference = (AutoModelForCausalLM.from_pretrained(tiny_llama, attn_implementation="eager") for _ in "ab")
    for model in (trainer.model, plain):
        move(model)
    algorithm, groups = trainer.algorithm, [as_group(sessions)]
    credit = algorithm.credit(groups) if compares else credit_of(sessions)
    sessions = with_added(sessions, credit, kept)
    assert len(sessions) > 3 or compares != "labels", "kto measures completions below other prompts"
    forests = pack(groups, credit, 24, sequence=algorithm.sequence, fields=algorithm.fields)
    assert len(forests) > 1
    algorithm.mark(forests)
    whole = [(forest, trainer.prepare(forest)) for forest in forests if len(forest.rows())]
    batches = [batch for _, batch in whole]
    if trainer.reference is not None:
        trainer.score_reference(batches)
    wanted, generator = [], torch.Generator().manual_seed(0)
    for forest, batch in whole:
        logp, entropy = by_paths(plain, forest, sessions, kept)
        batch.rows.old_logp = logp.detach() + 0.2 * torch.randn(len(logp), generator=generator)
        rows = batch.rows
        if rows.ref_logp is not None:
            with torch.no_grad():
                rows = replace(rows, ref_logp=by_paths(reference, forest, sessions, kept)[0])
            torch.testing.assert_close(batch.rows.ref_logp, rows.ref_logp, atol=1e-5, rtol=1e-5)
        wanted.append((logp, entropy, rows))
    sums = None
    if algorithm.sequence is not None:
        trainer.sums = empty_sums(algorithm, sequence_count(forests))
        trainer.sum_sequences(batches, trainer.sums)
        sums = empty_sums(algorithm, sequence_count(forests))
        for logp, _, rows in wanted:
            add_sums(algorithm, sums, logp.detach(), rows, 0)
    found = sum(trainer.backward(batch, first=False) for batch in batches)
    expected = torch.stack([objective(algorithm, *one, sums=sums)[0] for one in wanted]).sum()
    expected.backward()  # type: ignore[no-untyped-call]
    assert found == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    theirs = dict(plain.named_parameters())
    for each, parameter in trainer.model.named_parameters():
        apart = parameter.grad - theirs[each].grad
        assert float(apart.norm() / theirs[each].grad.norm().clamp(min=1e-4)) < 1e-5


def roots(forest: Forest) -> list[Forest]:
    """Each root's tree as a forest of its own."""
    starts = [at for at, place in enumerate(forest.position.tolist()) if place == 0]
    return [trees(forest, start, stop) for start, stop in itertools.pairwise([*starts, len(forest)])]


def test_a_forests_trees_and_padding_keep_what_their_tokens_were_drawn_from() -> None:
    sessions, _ = made(3)
    [forest] = rows_of(sessions)
    head, hidden = nn.Linear(8, VOCABULARY, bias=False), torch.randn(len(forest), 8)
    with torch.no_grad():
        whole = token_logps(head, hidden, forest.rows())[0]
        padded = forest.padded(len(forest) + 7)
        assert torch.equal(token_logps(head, hidden, padded.rows())[0], whole)
        pieces, at = [], 0
        for piece in roots(forest):
            pieces.append(token_logps(head, hidden[at : at + len(piece)], piece.rows())[0])
            at += len(piece)
    assert torch.allclose(torch.cat(pieces), whole, atol=1e-6)


def test_tokens_are_shared_only_where_they_were_drawn_alike() -> None:
    sessions = []
    for index, (sizes, penalty) in enumerate((((5, 9), 1.0), ((5, 9), 1.0), ((5, 11), 1.0), ((5, 9), 1.2))):
        session = linear_session(f"s{index}", [4, 5], [[8, 9]])
        node = session.nodes[1]
        node.sampling = Sampling(top_p=0.9, repetition_penalty=penalty)
        recorder = support.SupportRecorder(VOCABULARY, 1000)
        for token, size in zip((8, 9), sizes, strict=True):
            recorder.add(np.arange(token, token + size), token)
        node.attachments[support.NAME] = recorder.data()
        sessions.append(session)
    [forest] = rows_of(sessions)
    assert forest.trained == 2 + 1 + 2, "the first two share both tokens, the third the first one, the last none"


def test_what_is_recorded_is_read_and_attempts_follow_one_another() -> None:
    rng = np.random.default_rng(0)
    for vocabulary in (2, 9, 300, 70_000):
        sets, recorder = [], support.SupportRecorder(vocabulary, 1 << 20)
        for _ in range(12):
            ids = np.flatnonzero(rng.random(vocabulary) < rng.choice((0.001, 0.3, 0.5, 0.9, 0.9999)))
            ids = ids if len(ids) else np.array([0])
            sets.append(ids)
            recorder.add(ids, int(rng.choice(ids)))
        data = recorder.data()
        found = support.unpack(data)
        assert found.pack() == data
        for code, ids in zip(found.codes, sets, strict=True):
            assert (code == support.FULL) == (len(ids) == vocabulary)
            assert (code == support.ONE) == (len(ids) == 1 < vocabulary)
            if code >= support.SETS:
                read = found.ids(code)
                kept = read if read[0] >= 0 else np.setdiff1d(np.arange(vocabulary), -1 - read)
                assert np.array_equal(kept, ids)
    kind, parts = support.KIND, []
    for tokens in ((0, 1), (0, 1, 2), (1, 4)):
        recorder = support.SupportRecorder(9, 100)
        for token in tokens:
            recorder.add(np.array((0, 1, 2, 4)), token)
        parts.append(recorder.data())
    joined = kind.join(kind.join(parts[0], parts[1], 3), None, 2)
    joined = kind.join(joined, parts[2], 2)
    assert joined is not None
    whole = support.unpack(joined)
    assert whole.codes == (support.SETS,) * 5 + (support.UNKNOWN,) * 2 + (support.SETS,) * 2
    assert len(whole.sets) == 1
    record = ((support.NAME, 21),)
    assert attachments.list_unrecorded(record, {support.NAME: joined}, 30) == record, "where the turn began"
    with pytest.raises(InvalidInput, match="9 tokens; the path"):
        kind.check(joined, 8)
    for wrong in (b"", b"x", joined[:6], joined + b"\x7f\x01"):
        with pytest.raises(InvalidInput):
            kind.check(wrong, 100)


def test_each_reason_for_which_a_token_is_not_trained_is_named() -> None:
    recorder = support.SupportRecorder(50_000, 8)
    recorder.add(np.array([3]), 3)
    recorder.add(np.arange(0, 9000, 7), 0)
    recorder.add(np.array([5, 6]), 7)
    recorder.add(np.array([5, 6]), 6)
    attached = {support.NAME: recorder.data()}
    own = Sampling(top_k=3)
    assert trainability.reasons(own, attached, 5) == [
        Untrainable.UNRECORDED, None, Untrainable.OVERSIZE, Untrainable.OUTSIDE, None
    ]  # fmt: skip
    assert trainability.reasons(own, {}, 1) == [Untrainable.UNRECORDED]
    assert trainability.reasons(Sampling(json_schema="{}"), {}, 1) == [Untrainable.GRAMMAR]
    assert trainability.reasons(Sampling(temperature=0.0), attached, 1) == [Untrainable.GREEDY]
    assert trainability.reasons(Sampling(), {}, 1, trained=False) == [Untrainable.FROZEN]
    assert trainability.reasons(Sampling(), {}, 2) == [None, None]
    node = linear_session("s", [4], [[8, 9]]).nodes[1]
    assert trainability.list_reasons(node) == [None, None]
    node.trainable = [False] * len(node.trainable)
    assert trainability.list_reasons(node) == [Untrainable.FROZEN] * 2
    kept_to = support.Support(f"{support.LOCAL}+llguidance-1.9.1", 9, (), (support.FULL,))
    assert trainability.reasons(Sampling(regex="a"), {support.NAME: kept_to.pack()}, 1) == [None]
    unknown = support.Support("another-7", 9, (), (support.FULL,))
    assert trainability.reasons(own, {support.NAME: unknown.pack()}, 1) == [Untrainable.UNRECORDED]
