"""BM25 with bm25s (Lù, arXiv:2407.03618), over any number of shards, with the scores of a single index.

bm25s computes every score when the index is built, with the statistics of the documents that it is given. A shard must
count with the whole corpus's statistics instead, else its scores can't be compared with another's. Two facts give that
without touching the library: a term's scores are proportional to its inverse document frequency, so they are scaled
afterwards; and another average length is the same formula with other `k1` and `b` (see `_for_average`).

The scores are Lucene's, with the parameters of Pyserini's default (k1 = 0.9, b = 0.4), which Search-R1's BM25 uses.
Words are runs of two or more letters and digits in lower case; no stemming, and no stop words, whose scores are small.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from agentrl.errors import require_extra

K1, B = 0.9, 0.4
BLOCK = 256
"""Passages of a block, of which only the highest score is compared at first."""
_WORD = re.compile(r"\b\w\w+\b")


def words(text: str) -> list[str]:
    """The terms of a text."""
    return _WORD.findall(text.lower())


def idf(documents: int, containing: int) -> float:
    """Lucene's inverse document frequency: ln(1 + (N - n + 0.5) / (n + 0.5))."""
    return math.log(1 + (documents - containing + 0.5) / (containing + 0.5))


class Statistics:
    """Numbers about the whole corpus that scores need: passages that hold each term, and their lengths.

    Attributes:
        documents: passages.
        containing: for each term, the passages with it.
        length: terms of all passages together.
    """

    def __init__(self) -> None:
        self.documents, self.length = 0, 0
        self.containing: Counter[str] = Counter()

    def add(self, text: str) -> None:
        terms = words(text)
        self.documents += 1
        self.length += len(terms)
        self.containing.update(set(terms))

    @property
    def average(self) -> float:
        """The average length in terms."""
        return self.length / self.documents


def _for_average(own: float, whole: float) -> tuple[float, float]:
    """Parameters k1, b that give, with a shard's own average length, the scores of the whole corpus's average.

    BM25 divides by tf + k1 (1 - b + b l / whole). With s = b own / whole and c = 1 - b + s that is
    tf + (k1 c) (1 - s/c + (s/c) l / own).
    """
    scaled = B * own / whole
    factor = 1 - B + scaled
    return K1 * factor, scaled / factor


def build_shard(folder: Path, texts: Iterable[str], statistics: Statistics) -> None:
    """Write the index of one shard's passages into a folder."""
    bm25s, np = _libraries()
    vocabulary: dict[str, int] = {}
    ids = [[vocabulary.setdefault(word, len(vocabulary)) for word in words(text)] for text in texts]
    if not vocabulary:
        vocabulary[""] = 0
    average = sum(map(len, ids)) / len(ids)
    k1, b = _for_average(average, statistics.average) if average else (K1, B)
    model = bm25s.BM25(k1=k1, b=b, method="lucene")
    if average:
        model.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    else:
        model.scores = {"data": np.zeros(0, "float32"), "indices": np.zeros(0, "int32"), "num_docs": len(ids)}
        model.scores["indptr"] = np.zeros(2, "int64")
        model.vocab_dict = vocabulary
    own = np.diff(model.scores["indptr"])
    terms = sorted(vocabulary, key=vocabulary.__getitem__)
    ratio = [
        idf(statistics.documents, statistics.containing[term]) / idf(len(ids), int(count)) if count else 1.0
        for term, count in zip(terms, own, strict=True)
    ]
    data = model.scores["data"] * np.repeat(np.asarray(ratio), own)
    folder.mkdir(parents=True)
    np.save(folder / "scores.npy", data.astype(np.float32))
    np.save(folder / "passages.npy", np.asarray(model.scores["indices"], np.int32))
    np.save(folder / "starts.npy", np.asarray(model.scores["indptr"], np.int64))
    (folder / "terms.json").write_text(json.dumps(terms, ensure_ascii=False), encoding="utf-8")


class BM25Shard:
    """The memory-mapped index of one shard."""

    def __init__(self, folder: Path, count: int) -> None:
        _, self._np = _libraries()
        self.count = count
        load = self._np.load
        self._scores = load(folder / "scores.npy", mmap_mode="r")
        self._passages = load(folder / "passages.npy", mmap_mode="r")
        self._starts = load(folder / "starts.npy")
        terms = json.loads((folder / "terms.json").read_text(encoding="utf-8"))
        self._terms = {term: place for place, term in enumerate(terms)}
        self._blocks = self._np.arange(0, count, BLOCK)

    def scores(self, query: str) -> Any:
        """Every passage's score; shape (count,), float32."""
        found = self._np.zeros(self.count, self._np.float32)
        for term in words(query):
            if (place := self._terms.get(term)) is not None:
                span = slice(self._starts[place], self._starts[place + 1])
                found[self._passages[span]] += self._scores[span]  # a term names each passage once
        return found

    def search(self, queries: Sequence[str], topk: int) -> list[list[tuple[float, int]]]:
        """For each query the best passages with a score above 0, as (score, place); equal ones in their order."""
        return [self._best(self.scores(query), topk) for query in queries]

    def _best(self, scores: Any, topk: int) -> list[tuple[float, int]]:
        np = self._np
        highest = np.maximum.reduceat(scores, self._blocks)  # of each block: at least k scores reach the k-th of these
        least = np.partition(highest, -topk)[-topk] if topk < len(highest) else 0.0
        chosen = np.flatnonzero(scores >= max(least, np.finfo(np.float32).tiny))
        order = np.lexsort((chosen, -scores[chosen]))[:topk]
        return [(float(scores[place]), int(place)) for place in chosen[order]]


def load_numpy() -> Any:
    """Import numpy, which an index is read and written with.

    Raises:
        MissingExtra: it is not installed.
    """
    with require_extra("retrieval", "numpy"):
        import numpy
    return numpy


def _libraries() -> tuple[Any, Any]:
    with require_extra("retrieval", "bm25s"):
        import bm25s
    return bm25s, load_numpy()
