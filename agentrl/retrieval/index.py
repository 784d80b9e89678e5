"""An index: a folder with a manifest and shards, built by `build` and opened, memory-mapped, by `open_index`.

    manifest.json     what it is, the corpus, and the size and SHA-256 of every file
    offsets.npy       where each passage begins in the corpus
    shard-000/ …      bm25: scores.npy, passages.npy, starts.npy, terms.json; dense: vectors.faiss

The corpus stays where it is. Opening checks that it and the index's files are those of the manifest: by their hashes
where sizes or times differ from those at the build, and always with `verify=True`. A shard is built in memory and
searched from disk, so its size bounds what building needs; the ranking does not depend on it (see `bm25`).
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from agentrl.common.scratch import write_folder
from agentrl.common.untrusted import read_json
from agentrl.errors import ConfigError
from agentrl.retrieval import bm25, dense
from agentrl.retrieval.corpus import Corpus, Passage, Progress, scan, silent

FORMAT = 1
SHARD = 1_000_000
"""The number of passages in a shard."""
Retriever = Literal["bm25", "dense"]


@dataclass(frozen=True)
class DenseOptions:
    """Options for making and searching vectors; see `dense.Encoder`.

    `prefixes` None: for encoders whose folder's name has "e5" in it, as in Search-R1's own server.
    """

    encoder: str
    faiss: dense.Kind = "flat"
    pooling: dense.Pooling = "mean"
    prefixes: bool | None = None
    max_tokens: int = 256

    def load(self) -> dense.Encoder:
        """Load and return the encoder."""
        folder = Path(self.encoder).expanduser()
        prefixes = "e5" in folder.name.lower() if self.prefixes is None else self.prefixes
        return dense.Encoder(folder, self.pooling, prefixes, self.max_tokens)


def build(
    corpus: Path, folder: Path, options: DenseOptions | None = None, *, shard: int = SHARD, progress: Progress = silent
) -> None:
    """Build the index of a corpus; an earlier one in that folder is replaced at the end.

    Args:
        corpus: a JSONL file of passages.
        folder: where the index goes.
        options: of a dense index; None builds BM25.
        shard: passages of a shard.
        progress: is told how far each stage is.

    Raises:
        ConfigError: the corpus or the encoder can't be read, or `folder` is something else than an index.
        MissingExtra: bm25s or faiss is not installed.
    """
    np = bm25.load_numpy()
    if folder.exists() and not (folder / "manifest.json").is_file() and any(folder.iterdir()):
        raise ConfigError(f"index {str(folder)!r}: the folder holds something else; name a new one")
    corpus = corpus.resolve()
    with write_folder(folder) as fresh:
        before = _stamp(corpus) if corpus.is_file() else None
        offsets, digest = scan(corpus, progress)
        np.save(fresh / "offsets.npy", np.asarray(offsets, np.uint64))
        passages = Corpus(corpus, offsets)
        counts = [min(shard, len(offsets) - start) for start in range(0, len(offsets), shard)]
        for number, write in enumerate(_writers(passages, counts, options, progress)):
            write(fresh / f"shard-{number:03}")
        passages.close()
        if before != _stamp(corpus):
            raise ConfigError(f"corpus {str(corpus)!r}: the file changed while its index was built")
        manifest = {
            "format": FORMAT,
            "retriever": "bm25" if options is None else "dense",
            "options": {"k1": bm25.K1, "b": bm25.B} if options is None else asdict(options),
            "passages": len(offsets),
            "shards": counts,
            "corpus": {"path": str(corpus), **_stamp(corpus), "sha256": digest},
            "files": {name: _describe(fresh / name) for name in _files(fresh)},
        }
        (fresh / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _writers(passages: Corpus, counts: list[int], options: DenseOptions | None, progress: Progress) -> Iterator[Any]:
    """For each shard a function that writes it into a folder."""
    total, start = len(passages), 0
    encoder: Any = None if options is None else options.load()
    statistics = bm25.Statistics()
    if options is None:
        for text in _count(passages.texts(0, total), "counting terms", 0, total, progress):
            statistics.add(text)
    for count in counts:
        texts = _count(passages.texts(start, start + count), "indexing", start, total, progress)
        if options is None:
            yield lambda folder, texts=texts: bm25.build_shard(folder, texts, statistics)
        else:
            yield lambda folder, texts=texts, count=count: dense.build_shard(
                folder, texts, count, encoder, options.faiss
            )
        start += count


def _count(texts: Iterable[str], stage: str, done: int, total: int, progress: Progress) -> Iterator[str]:
    for number, text in enumerate(texts, done + 1):
        yield text
        if number % 256 == 0 or number == total:
            progress(stage, number, total)


class Index:
    """An open index; `search` may be called from several threads."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        np = bm25.load_numpy()
        self.folder, self.manifest = folder, manifest
        self.retriever: Retriever = manifest["retriever"]
        self._corpus = Corpus(Path(manifest["corpus"]["path"]), np.load(folder / "offsets.npy", mmap_mode="r"))
        places = [folder / f"shard-{number:03}" for number in range(len(manifest["shards"]))]
        kind: Any = bm25.BM25Shard if self.retriever == "bm25" else dense.DenseShard
        self._shards = [kind(place, count) for place, count in zip(places, manifest["shards"], strict=True)]
        self._encoder = None if self.retriever == "bm25" else DenseOptions(**manifest["options"]).load()

    def __len__(self) -> int:
        return len(self._corpus)

    @property
    def digest(self) -> str:
        """A hash of corpus and index: what the passages that are found depend on."""
        return hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode()).hexdigest()

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """The best passages of each query, best first; fewer than `topk` where no more have a score."""
        asked: Any = queries if self._encoder is None else self._encoder.encode(queries, query=True)
        found: list[list[tuple[float, int]]] = [[] for _ in queries]
        start = 0
        for shard in self._shards:
            for own, hits in zip(found, shard.search(asked, topk), strict=True):
                own += [(score, start + place) for score, place in hits]
            start += shard.count
        return [[self._passage(*hit) for hit in heapq.nsmallest(topk, hits, key=_order)] for hits in found]

    def _passage(self, score: float, place: int) -> Passage:
        return replace(self._corpus[place], score=score)


def _order(hit: tuple[float, int]) -> tuple[float, int]:
    return -hit[0], hit[1]


def open_index(folder: Path, *, verify: bool = False) -> Index:
    """Open an index.

    Args:
        folder: what `build` wrote.
        verify: hash all files; else only those whose size or time differs from what the manifest says.

    Raises:
        ConfigError: there is none, or it or its corpus is damaged or changed; the message names the file.
    """
    manifest = read_manifest(folder)
    corpus = manifest["corpus"]
    changed = [
        *_list_changed({Path(corpus["path"]): corpus}, verify),
        *_list_changed({folder / name: about for name, about in manifest["files"].items()}, verify),
    ]
    if changed:
        raise ConfigError(
            f"index {str(folder)!r}: {changed[0]} is not the file that it was built with; build the index again"
        )
    return Index(folder, manifest)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of an index, as `build` wrote it.

    Raises:
        ConfigError: there is no index in that folder, or one of another format.
    """
    try:
        manifest: Any = read_json((folder / "manifest.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"index {str(folder)!r}: there is none; build it with `agentrl retrieval index CORPUS --out {folder}`"
        ) from None
    except ValueError as error:
        raise ConfigError(f"index {str(folder)!r}: its manifest can't be read: {error}") from None
    written = manifest.get("format") if isinstance(manifest, dict) else None
    if written != FORMAT:
        raise ConfigError(f"index {str(folder)!r}: its format is {written}, not {FORMAT}; build it again")
    return dict(manifest)


def _list_changed(files: dict[Path, dict[str, Any]], verify: bool) -> Iterator[Path]:
    for path, about in files.items():
        stamp = _stamp(path) if path.is_file() else {"size": -1, "mtime_ns": -1}
        hashed = verify or stamp["mtime_ns"] != about["mtime_ns"]
        if stamp["size"] != about["size"] or (hashed and _sha256(path) != about["sha256"]):
            yield path


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _describe(path: Path) -> dict[str, Any]:
    return {**_stamp(path), "sha256": _sha256(path)}


def _stamp(path: Path) -> dict[str, int]:
    found = path.stat()
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
