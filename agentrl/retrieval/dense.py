"""Dense retrieval: passages and queries as vectors of an encoder, searched with FAISS by inner product.

Any Hugging Face folder with hidden states is an encoder. E5 (Wang et al., arXiv:2212.03533) averages its last hidden
states over the text's tokens, and wants "query: " and "passage: " before the texts; vectors have length 1, so the inner
product is the cosine. A decoder without training for retrieval, such as SmolLM2, can be used in the same way, to try
the machinery: its ranking is poor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from agentrl.errors import ConfigError, require_extra

Pooling = Literal["mean", "cls", "last"]
Kind = Literal["flat", "hnsw", "ivf"]
BATCH = 64
"""Texts that are encoded at once."""
WINDOW = 1024
"""Passages that are read, and sorted by length, at a time."""
NEIGHBOURS = 32
"""Links of a node in an HNSW graph."""
EF_CONSTRUCTION, EF_SEARCH = 200, 128
"""Candidates that HNSW keeps when building and when searching."""
PROBES = 32
"""Lists of an IVF index that a query searches."""
TRAINING = 256
"""Passages for each list that an IVF index is trained with."""


class Encoder:
    """Turns texts into vectors of length 1.

    Args:
        folder: a Hugging Face model with its tokenizer.
        pooling: `mean` over the text's tokens, the first token (`cls`), or the `last`.
        prefixes: whether E5's "query: " and "passage: " are put before the texts.
        max_tokens: longer texts are cut.
    """

    def __init__(self, folder: Path, pooling: Pooling = "mean", prefixes: bool = True, max_tokens: int = 256) -> None:
        if not (folder / "config.json").is_file():
            raise ConfigError(f"encoder {str(folder)!r}: no Hugging Face model is there")
        with require_extra("train"):
            import torch
            from transformers import AutoModel, AutoTokenizer
        self._torch = torch
        try:  # transformers would ask on the terminal whether to run code of the folder
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            model = AutoModel.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
        except ValueError as error:
            raise ConfigError(f"encoder {str(folder)!r}: {' '.join(str(error).split())[:200]}") from error
        self._tokenizer.padding_side = "right"
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model: Any = model.to(self._device).eval()
        self.dimension = int(self._model.config.hidden_size)
        self.pooling, self.prefixes, self.max_tokens = pooling, prefixes, max_tokens

    def encode(self, texts: Sequence[str], *, query: bool) -> Any:
        """The texts' vectors; shape (texts, dimension), float32."""
        torch = self._torch
        if self.prefixes:
            texts = [("query: " if query else "passage: ") + text for text in texts]
        ids = self._tokenizer(list(texts), truncation=True, max_length=self.max_tokens)["input_ids"]
        ids = [each or [self._tokenizer.pad_token_id] for each in ids]  # an empty query
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))  # batches of equal lengths: little padding
        vectors = torch.empty(len(ids), self.dimension)
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            batch = self._tokenizer.pad({"input_ids": [ids[place] for place in places]}, return_tensors="pt")
            batch = batch.to(self._device)
            mask = batch["attention_mask"]
            with torch.inference_mode():
                hidden = self._model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
                pooled = self._pool(hidden, mask)
                vectors[places] = torch.nn.functional.normalize(pooled.float(), dim=-1).cpu()
        return vectors.numpy()

    def _pool(self, hidden: Any, mask: Any) -> Any:
        if self.pooling == "cls":
            return hidden[:, 0]
        if self.pooling == "last":
            return hidden[self._torch.arange(len(hidden)), mask.sum(1) - 1]
        weights = mask[..., None].to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


def build_shard(folder: Path, texts: Iterable[str], count: int, encoder: Encoder, kind: Kind) -> None:
    """Encode a shard's passages and write their FAISS index into a folder."""
    faiss = _faiss()
    folder.mkdir(parents=True)
    waiting = iter(texts)
    index = _empty(faiss, encoder.dimension, count, kind)
    if kind == "ivf":  # the lists are made from the first passages, which are encoded once
        first = encoder.encode(list(islice(waiting, index.nlist * TRAINING)), query=False)
        index.train(first)
        index.add(first)
    while batch := list(islice(waiting, WINDOW)):
        index.add(encoder.encode(batch, query=False))
    faiss.write_index(index, str(folder / "vectors.faiss"))


def _empty(faiss: Any, dimension: int, count: int, kind: Kind) -> Any:
    if kind == "flat":
        return faiss.IndexFlatIP(dimension)
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(dimension, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = EF_CONSTRUCTION
        return index
    lists = max(1, min(round(4 * math.sqrt(count)), count // 40))
    return faiss.index_factory(dimension, f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)


class DenseShard:
    """The memory-mapped index of one shard."""

    def __init__(self, folder: Path, count: int) -> None:
        faiss = _faiss()
        self.count = count
        self._index = faiss.read_index(str(folder / "vectors.faiss"), faiss.IO_FLAG_MMAP_IFC)
        if hasattr(self._index, "hnsw"):
            self._index.hnsw.efSearch = EF_SEARCH
        if hasattr(self._index, "nprobe"):
            self._index.nprobe = PROBES

    @property
    def dimension(self) -> int:
        """The length of the vectors."""
        return int(self._index.d)

    def search(self, vectors: Any, topk: int) -> list[list[tuple[float, int]]]:
        """For each vector the best passages as (score, place), best first."""
        scores, places = self._index.search(vectors, min(topk, self.count))
        return [
            [(float(score), int(place)) for score, place in zip(*row, strict=True) if place >= 0]
            for row in zip(scores, places, strict=True)
        ]


def _faiss() -> Any:
    with require_extra("retrieval", "faiss"):
        import faiss
    return faiss
