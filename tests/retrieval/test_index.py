"""Indexes: what they rank, that shards don't matter, and that what changed is refused."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from agentrl.errors import ConfigError
from agentrl.retrieval.bm25 import BLOCK, BM25Shard
from agentrl.retrieval.dense import DenseShard
from agentrl.retrieval.index import DenseOptions, build, open_index
from tests.retrieval.conftest import write


class Reference:
    """BM25 as in the formula, one passage and term after the other."""

    def __init__(self, passages: list[str], k1: float = 0.9, b: float = 0.4) -> None:
        self.counts = [Counter(self.words(text)) for text in passages]
        lengths = [sum(count.values()) for count in self.counts]
        average = sum(lengths) / len(lengths)
        self.norms = [k1 * (1 - b + b * length / average) for length in lengths]
        self.containing = Counter(word for count in self.counts for word in count)

    @staticmethod
    def words(text: str) -> list[str]:
        return re.findall(r"\b\w\w+\b", text.lower())

    def scores(self, query: str) -> list[float]:
        total = [0.0] * len(self.counts)
        for word in self.words(query):
            n = self.containing[word]
            idf = math.log(1 + (len(self.counts) - n + 0.5) / (n + 0.5))
            for place, count in enumerate(self.counts):
                if count[word]:
                    total[place] += idf * count[word] / (count[word] + self.norms[place])
        return total


@pytest.mark.slow
def test_bm25_ranks_a_thousand_queries_as_the_formula_does(
    tmp_path: Path, squad: tuple[list[str], list[tuple[str, str]]]
) -> None:
    passages, questions = squad
    queries = [question for question, _ in questions]
    queries += [" ".join(text.split()[5:12]) for text in passages[: 1000 - len(queries)]]
    assert len(queries) == 1000
    corpus = write(tmp_path / "corpus.jsonl", passages)
    build(corpus, tmp_path / "whole")
    build(corpus, tmp_path / "shards", shard=50)
    reference = Reference(passages)
    for folder in ("whole", "shards"):
        index = open_index(tmp_path / folder)
        for query, found in zip(queries, index.search(queries, 10), strict=True):
            scores = reference.scores(query)
            best = sorted((place for place in range(len(scores)) if scores[place] > 0), key=lambda p: -scores[p])[:10]
            places = [int(hit.id[1:]) for hit in found]
            for place, expected, hit in zip(places, best, found, strict=True):
                assert hit.score == pytest.approx(scores[place], rel=1e-5)
                assert place == expected or scores[place] == pytest.approx(scores[expected], rel=1e-5)


def test_the_right_paragraph_is_among_the_first(tmp_path: Path, squad: tuple[list[str], list[tuple[str, str]]]) -> None:
    passages, questions = squad
    build(write(tmp_path / "corpus.jsonl", passages), tmp_path / "index")
    found = open_index(tmp_path / "index").search([question for question, _ in questions], 10)
    for k, least in ((1, 0.72), (3, 0.86), (10, 0.94)):
        right = [
            any(hit.contents == text for hit in hits[:k]) for hits, (_, text) in zip(found, questions, strict=True)
        ]
        assert sum(right) / len(right) >= least


def test_equal_scores_keep_the_corpus_order_and_passages_without_a_term_are_left_out(tmp_path: Path) -> None:
    build(write(tmp_path / "c.jsonl", ["one two", "three", "one two", "one two"]), tmp_path / "index")
    index = open_index(tmp_path / "index")
    assert [hit.id for hit in index.search(["one"], 2)[0]] == ["p0", "p2"]
    assert [hit.id for hit in index.search(["one"], 10)[0]] == ["p0", "p2", "p3"]
    assert index.search(["nowhere"], 3) == [[]]


def test_the_best_are_those_of_a_whole_sort_whatever_block_they_are_in(tmp_path: Path) -> None:
    rng, words = random.Random(0), [f"w{n}" for n in range(40)]
    passages = [" ".join(rng.choices(words, k=rng.randint(1, 4))) for _ in range(5 * BLOCK + 7)]
    build(write(tmp_path / "c.jsonl", passages), tmp_path / "index")
    shard = BM25Shard(tmp_path / "index" / "shard-000", len(passages))
    for query in ("w0", "w1 w2 w3", "w0 nowhere w39 w0", "nowhere"):
        scores = shard.scores(query).tolist()
        ranked = sorted((place for place, score in enumerate(scores) if score > 0), key=lambda place: -scores[place])
        for topk in (1, 3, 5, 6, 100, len(passages), 2 * len(passages)):
            assert shard.search([query], topk) == [[(scores[place], place) for place in ranked[:topk]]]


def test_empty_lines_missing_titles_equal_ids_and_any_script_are_passages_as_well(tmp_path: Path) -> None:
    rows = [
        "\ufeff" + json.dumps({"contents": "first with a mark"}),
        "",
        '{"id": "x", "contents": "T\\nüber 日本"}',
        "  ",
    ]
    rows += ['{"id": "x", "contents": "T\\nsame id"}', '{"id": 7, "contents": "\\nuntitled"}\r']
    rows += [json.dumps({"contents": "huge\n" + "word " * 100_000}), '{"contents": "no end of line"}']
    (tmp_path / "c.jsonl").write_bytes("\n".join(rows).encode())
    build(tmp_path / "c.jsonl", tmp_path / "index")
    index = open_index(tmp_path / "index")
    found = {
        query: index.search([query], 2)[0] for query in ("mark", "日本", "ÜBER", "same", "untitled", "huge", "end")
    }
    assert {query: [hit.id for hit in hits] for query, hits in found.items()} == {
        "mark": ["0"], "日本": ["x"], "ÜBER": ["x"], "same": ["x"], "untitled": ["7"], "huge": ["4"], "end": ["5"]
    }  # fmt: skip
    assert [(found[query][0].title, found[query][0].body[:8]) for query in ("untitled", "same", "end")] == [
        ("", "untitled"),
        ("T", "same id"),
        ("no end of line", ""),
    ]


def test_a_passage_without_any_term_has_a_place_too(tmp_path: Path) -> None:
    build(write(tmp_path / "c.jsonl", ["!", "?", "word here"]), tmp_path / "index", shard=2)
    assert [hit.id for hit in open_index(tmp_path / "index").search(["here"], 3)[0]] == ["p2"]


def test_a_changed_corpus_or_index_is_refused_by_name(tmp_path: Path, small: Path) -> None:
    build(small, tmp_path / "index")
    open_index(tmp_path / "index", verify=True)
    text = small.read_text()
    small.write_text(text.replace("warm", "cold"))  # as long as before
    with pytest.raises(ConfigError, match=r"corpus\.jsonl is not the file"):
        open_index(tmp_path / "index")
    small.write_text(text)
    open_index(tmp_path / "index")  # another time, the same content
    terms = tmp_path / "index" / "shard-000" / "terms.json"
    terms.write_text(terms.read_text() + " ")
    with pytest.raises(ConfigError, match=r"terms\.json"):
        open_index(tmp_path / "index")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{}", "line 1"),
        ("[1]", "line 1"),
        ('{"contents": " "}', "not empty"),
        ("", "no passages"),
        ('{"contents": "half a \\ud800 pair"}', "line 1.*surrogate"),  # no answer with it could be written
    ],
)
def test_a_corpus_that_is_none_is_refused(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "c.jsonl").write_text(line)
    with pytest.raises(ConfigError, match=words):
        build(tmp_path / "c.jsonl", tmp_path / "index")


def test_a_folder_that_is_no_index_is_not_replaced(tmp_path: Path, small: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("text")
    with pytest.raises(ConfigError, match="something else"):
        build(small, tmp_path / "mine")
    with pytest.raises(ConfigError, match="there is none"):
        open_index(tmp_path / "mine")


@pytest.mark.slow
@pytest.mark.parametrize("faiss", ["flat", "hnsw", "ivf"])
def test_dense_search_finds_what_brute_force_finds(tmp_path: Path, encoder: Path, faiss: str) -> None:
    passages = [f"{a}+{b} is {a * b}" for a in range(20) for b in range(6)]
    options = DenseOptions(str(encoder), faiss, prefixes=False)  # type: ignore[arg-type]
    build(write(tmp_path / "c.jsonl", passages), tmp_path / "index", options, shard=70 if faiss == "flat" else 1000)
    index, model = open_index(tmp_path / "index"), options.load()
    queries = [f"{n}+{n}" for n in range(10)]
    scores = model.encode(queries, query=True) @ model.encode(passages, query=False).T
    for hits, row in zip(index.search(queries, 5), scores, strict=True):
        best = sorted(row, reverse=True)[:5]
        assert [hit.score for hit in hits] == pytest.approx(best, abs=1e-5) if faiss == "flat" else hits
        assert all(hit.score == pytest.approx(row[int(hit.id[1:])], abs=1e-5) for hit in hits)
    assert len(index.search([""], 5)[0]) == 5, "a query without a token is a query"


@pytest.mark.slow
def test_flat_search_ranks_as_brute_force_does(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((3000, 24), dtype=np.float32)
    queries = rng.standard_normal((200, 24), dtype=np.float32)
    index = faiss.IndexFlatIP(24)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "vectors.faiss"))
    scores = queries @ vectors.T
    for hits, row in zip(DenseShard(tmp_path, 3000).search(queries, 10), scores, strict=True):
        assert [place for _, place in hits] == np.argsort(-row, kind="stable")[:10].tolist()
        assert [score for score, _ in hits] == pytest.approx(np.sort(row)[::-1][:10].tolist(), rel=1e-4)


@pytest.mark.slow
def test_vectors_keep_the_texts_order_whatever_their_lengths(encoder: Path) -> None:
    """Texts are encoded in batches of similar length."""
    model = DenseOptions(str(encoder), prefixes=False).load()
    rng = random.Random(0)
    texts = [" ".join("abcdefghij"[rng.randrange(10)] for _ in range(rng.randint(1, 40))) for _ in range(150)]
    alone = [model.encode([text], query=False)[0] for text in texts]
    for vector, expected in zip(model.encode(texts, query=False), alone, strict=True):
        assert vector == pytest.approx(expected, abs=1e-5)
