"""A score model that is held once on a device of this process, and computes what several sessions ask in batches.

Requests wait in a queue, from which one thread takes as many as fit a batch. On a CPU a batch has one row unless the
settings say otherwise: larger ones save nothing there, and a row's score is then the same to the bit whatever else is
asked at the same time. On a GPU the last digits depend on the batch.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.common import cores
from agentrl.errors import InfraError

GPU_BATCH_TOKENS = 32_768
"""Tokens of a batch on a GPU, padding included, where the settings say none."""
Scores = list[list[float]]
"""The outputs of the head at each place that was asked for: [places, K]."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A row, the places whose outputs are read, and who waits for them."""

    ids: Sequence[int]
    places: Sequence[int]
    answer: Future[Scores] = field(default_factory=Future)


class ScoreServer:
    """Computes scores, in a thread of its own.

    Args:
        load: loads the model, on its device.
        batch_tokens: tokens of a batch, padding included.
        threads: CPU threads that it computes with; None: as many as the environment says.
    """

    def __init__(self, load: Callable[[], Any], batch_tokens: int, threads: int | None = None) -> None:
        self.model = load()
        self.batch_tokens, self.threads = batch_tokens, threads
        self.batches = 0
        self._waiting: deque[_Asked] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="agentrl-scores", daemon=True)
        self._thread.start()

    def ask(self, ids: Sequence[int], places: Sequence[int]) -> Future[Scores]:
        """The head's outputs at some places of a row; the future raises InfraError where they can't be computed."""
        asked = _Asked(ids, places)
        with self._changed:
            if self._closed:
                asked.answer.set_exception(InfraError("the score model was closed"))
                return asked.answer
            self._waiting.append(asked)
            self._changed.notify()
        return asked.answer

    def close(self) -> None:
        """End the thread; what waits gets an error."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=60)
        self.model = None

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    for asked in self._waiting:
                        asked.answer.set_exception(InfraError("the score model was closed"))
                    self._waiting.clear()
                    return
                batch = self._take()
            self._answer(batch)

    def _take(self) -> list[_Asked]:
        """The oldest requests that fit a batch together; at least one."""
        batch, longest = [self._waiting.popleft()], 0
        longest = len(batch[0].ids)
        while self._waiting:
            longest = max(longest, len(self._waiting[0].ids))
            if longest * (len(batch) + 1) > self.batch_tokens:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _answer(self, batch: Sequence[_Asked]) -> None:
        batch = [asked for asked in batch if asked.answer.set_running_or_notify_cancel()]
        try:
            found: list[Scores | InfraError] = [*self._compute(batch)] if batch else []
        except Exception as error:
            if len(batch) > 1:  # one of them may be at fault, or there was no memory for all at once
                for asked in batch:
                    self._answer_one(asked)
                return
            found = [InfraError(f"the score model failed: {type(error).__name__}: {error}")]
        for asked, scores in zip(batch, found, strict=True):
            _give(asked.answer, scores)

    def _answer_one(self, asked: _Asked) -> None:
        try:
            _give(asked.answer, self._compute([asked])[0])
        except Exception as error:
            asked.answer.set_exception(InfraError(f"the score model failed: {type(error).__name__}: {error}"))

    def _compute(self, batch: Sequence[_Asked]) -> list[Scores]:
        import torch

        self.batches += 1
        device = next(self.model.parameters()).device
        longest = max(len(asked.ids) for asked in batch)
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, asked in enumerate(batch):
            ids[row, : len(asked.ids)] = torch.tensor(list(asked.ids))
            mask[row, : len(asked.ids)] = 1
        with torch.inference_mode(), cores.computing(self.threads):
            hidden = self.model.base_model(
                input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False
            ).last_hidden_state
            rows = [hidden[row, list(asked.places)] for row, asked in enumerate(batch)]
            outputs = self.model.score(torch.cat(rows)).float().cpu()
        parts = torch.split(outputs, [len(asked.places) for asked in batch])
        return [part.tolist() for part in parts]


def _give(answer: Future[Scores], scores: Scores | InfraError) -> None:
    if isinstance(scores, InfraError):
        answer.set_exception(scores)
    elif not all(math.isfinite(each) for row in scores for each in row):
        answer.set_exception(InfraError(f"the score model gave {scores[0]}, which is no finite number"))
    else:
        answer.set_result(scores)


@dataclass(slots=True)
class _Held:
    server: ScoreServer
    users: int = 0


held_servers: dict[tuple[str, str, str, int], _Held] = {}
_lock = threading.Lock()


def acquire(folder: Path, device: str, dtype: str, batch_tokens: int | None, *, per_token: bool) -> ScoreServer:
    """The server of a folder's model on a device, which all of this process's rewards share.

    Args:
        folder: a Hugging Face folder with a score model.
        device: torch's name.
        dtype: torch's name of the precision.
        batch_tokens: tokens of a batch; None: one row on a CPU, `GPU_BATCH_TOKENS` elsewhere.
        per_token: the model is one for token classification.

    Raises:
        InvalidInput, InvalidWeights: the folder holds no such model.
    """
    import torch

    from agentrl.models.scoring import read_score_model

    tokens = batch_tokens or (1 if device == "cpu" else GPU_BATCH_TOKENS)
    key = str(folder.resolve()), device, dtype, tokens
    with _lock:
        if key not in held_servers:

            def load() -> Any:
                return read_score_model(folder, getattr(torch, dtype), per_token=per_token).to(device).eval()

            threads = cores.choose_threads(None, cores.share(1, folder)) if device == "cpu" else None
            held_servers[key] = _Held(ScoreServer(load, tokens, threads))
        held_servers[key].users += 1
        return held_servers[key].server


def release(server: ScoreServer) -> None:
    """Give a server back; the last one who does closes it."""
    with _lock:
        found = next((key for key, held in held_servers.items() if held.server is server), None)
        if found is None:
            return
        held_servers[found].users -= 1
        if held_servers[found].users:
            return
        del held_servers[found]
    server.close()
