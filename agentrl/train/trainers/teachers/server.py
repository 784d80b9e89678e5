"""A teacher behind a URL: any server that returns the log-probabilities of a prompt that is given as token ids.

There are three ways to ask, tried in this order once, with a short prompt:

- `/generate` of SGLang, at the root of the address: `input_token_logprobs` and `input_top_logprobs` from the first
  token that counts on, so that its cache computes shared prefixes once;
- `/completions` with `prompt_logprobs`, as vLLM has it, which computes such a prompt anew for every path;
- `/completions` with `echo` and `logprobs`, which names the most probable tokens by their text, and so can't be used
  for divergences.

Its tokens are the student's only if it says the same text for the same ids: an answer has them, and the probe compares.
All of them answer at temperature 1. A failure is the server's: it is asked again after growing pauses.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from agentrl.common.retries import doubling, retry
from agentrl.config import PolicyConfig
from agentrl.errors import AgentRLError, ConfigError, EngineError, InvalidInput
from agentrl.rollout.engines.servers.http import Http
from agentrl.train.trainers.teachers.scorers import PromptScores
from agentrl.types import Tokenizer

PROBE = "Two and 3 make five; the teacher reads this."
"""Text in ASCII, so that each of its tokens has a text of its own."""
DEADLINE = 120.0
"""Seconds for one answer."""
PAUSE, LONGEST_PAUSE = 0.5, 20.0
"""Seconds before a request is sent again at first, and at most."""
ANOTHER_FORM, NOT_JSON = "the answer has another form", "not JSON"
"""In messages on answers of a server that works, and does not do what is asked."""
HIDDEN = 0
"""The text that SGLang writes for the vocabulary's last id, which it takes for a part of an image."""
MARKERS = str.maketrans("", "", " \u0120\u2581\u010a\n")
"""The characters that servers write for spaces and line ends in a token's text."""


class TeacherServer:
    """Asks a server what it says of prompts; `way` is how, once it is known.

    Args:
        name: the policy's.
        own: its settings: `name` is the address, `api` the model's name there, its key and retries.
        tokenizer: the student's.
        top_k: how many of the most probable tokens to ask for in each place; None: none.
        pause: seconds before a failed request is sent again; they double.
    """

    def __init__(
        self, name: str, own: PolicyConfig, tokenizer: Tokenizer, top_k: int | None, pause: float = PAUSE
    ) -> None:
        self._where, self._api, self._tokenizer, self._top_k = f"policies.{name}={own.name}", own.api, tokenizer, top_k
        parts = urlsplit(own.name)
        self._prefix, key = parts.path.rstrip("/"), os.environ.get(own.api.key_env or "OPENAI_API_KEY")
        if own.api.key_env and not key:
            raise ConfigError(f"policies.{name}.api.key_env={own.api.key_env}: there is no such environment variable")
        self._http = Http(f"{parts.scheme}://{parts.netloc}", key)
        self._model = own.api.model
        self._pause = pause
        self.way: str | None = None

    async def start(self) -> None:
        """Find out how to ask.

        Raises:
            ConfigError: it can't be asked, or has other tokens than the student.
            EngineError: it can't be reached.
        """
        ids = self._tokenizer.encode(PROBE)
        if not self._model:
            self._model = await self._first_model()
        failures = list[AgentRLError]()
        for way in ("generate", "prompt_logprobs", *(() if self._top_k else ("echo",))):
            self.way = way
            try:
                _, texts = await self._ask(ids, 0)
            except (EngineError, InvalidInput) as error:
                failures.append(error)
                continue
            self._compare(ids, texts)
            return
        self.way = None
        broken = [error for error in failures if isinstance(error, EngineError) and not _is_answer(error)]
        if broken:
            raise EngineError(f"{self._where}: {broken[0]}") from broken[0]
        wanted = f"the {self._top_k} most probable tokens" if self._top_k else "the log-probability"
        raise ConfigError(
            f"{self._where}: it does not return {wanted} in each place of a prompt of token ids. SGLang does "
            f"(/generate), and vLLM (prompt_logprobs; with --max-logprobs of at least algo.top_k); for any other one "
            f"give the model itself, policies.NAME.model=FOLDER. It answered: {'; '.join(map(str, failures))[:1500]}"
        )

    async def read(self, ids: list[int], temperature: float, first: int) -> PromptScores:
        """Read a path; see `scorers.Read`.

        Raises:
            InvalidInput: the temperature is not 1.
            EngineError: it failed each time that it was asked.
        """
        if temperature != 1.0:
            raise InvalidInput(f"{self._where} answers at temperature 1, and tokens were sampled at {temperature:g}")
        if self.way is None:
            await self.start()
        pauses = doubling(self._pause, self._api.retries, LONGEST_PAUSE)
        try:
            return (await retry(lambda: self._ask(ids, max(first, 1)), EngineError, pauses))[0]
        except (EngineError, InvalidInput) as error:  # the latter of a prompt of ours: a longer context than it has
            raise EngineError(f"{self._where}: {error}") from error

    async def close(self) -> None:
        await self._http.close()

    async def _first_model(self) -> str:
        try:
            return str((await self._http.get(f"{self._prefix}/models", DEADLINE))["data"][0]["id"])
        except (InvalidInput, LookupError, TypeError) as error:
            raise ConfigError(f"{self._where}: set policies.NAME.api.model, the model's name there ({error})") from None

    async def _ask(self, ids: list[int], first: int) -> tuple[PromptScores, list[str]]:
        """The reading of a path, where what stands before `first` may be left out; and the tokens' texts, if given."""
        try:
            match self.way:
                case "generate":
                    return await self._generate(ids, first)
                case "prompt_logprobs":
                    return await self._complete(ids)
                case _:
                    return await self._echo(ids)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise EngineError(f"{ANOTHER_FORM}: {type(error).__name__}: {error}") from error

    async def _generate(self, ids: list[int], first: int) -> tuple[PromptScores, list[str]]:
        start = max(first - 1, 0)
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": start,
            "top_logprobs_num": self._top_k or 0,
            "return_text_in_logprobs": first == 0,
        }
        meta = (await self._http.post("/generate", body, DEADLINE))["meta_info"]
        entries = meta["input_token_logprobs"]
        _require(len(entries) == len(ids) - start, f"{len(entries)} log-probabilities for {len(ids) - start} tokens")
        told = zip((entry[1] for entry in entries), ids[start:], strict=True)
        _require(all(its in (own, HIDDEN) for its, own in told), "log-probabilities of other tokens")
        logps = [0.0] * (start + 1) + [float(entry[0]) for entry in entries[1:]]
        top: list[list[tuple[int, float]]] = []
        if self._top_k:
            named = meta["input_top_logprobs"]
            _require(len(named) == len(entries), f"{len(named)} lists of the most probable tokens")
            top = [[] for _ in range(start + 1)] + [[(int(e[1]), float(e[0])) for e in each] for each in named[1:]]
            self._enough(top[start + 1 :])
        return PromptScores(logps, top), [str(entry[2]) for entry in entries if entry[2] is not None]

    async def _complete(self, ids: list[int]) -> tuple[PromptScores, list[str]]:
        body = {"prompt_logprobs": self._top_k or 0, **self._request(ids)}
        places = (await self._http.post(f"{self._prefix}/completions", body, DEADLINE))["choices"][0]["prompt_logprobs"]
        _require(len(places) == len(ids), f"{len(places)} log-probabilities for {len(ids)} tokens")
        logps, top, texts = [0.0], list[list[tuple[int, float]]]([[]]), []
        for place, token in zip(places[1:], ids[1:], strict=True):
            mine = place[str(token)]
            logps.append(float(mine["logprob"]))
            texts.append(str(mine.get("decoded_token") or ""))
            best = sorted(place.items(), key=lambda item: item[1]["rank"])
            top.append([(int(named), float(each["logprob"])) for named, each in best[: self._top_k]])
        if self._top_k:
            self._enough(top[1:])
        return PromptScores(logps, top if self._top_k else ()), texts

    async def _echo(self, ids: list[int]) -> tuple[PromptScores, list[str]]:
        body = {"echo": True, "logprobs": 1, **self._request(ids)}
        found = (await self._http.post(f"{self._prefix}/completions", body, DEADLINE))["choices"][0]["logprobs"]
        logps, texts = found["token_logprobs"][: len(ids)], found["tokens"][: len(ids)]
        _require(len(logps) == len(ids) and len(texts) == len(ids), f"{len(logps)} log-probabilities")
        return PromptScores([0.0, *map(float, logps[1:])]), list(map(str, texts[1:]))

    def _request(self, ids: list[int]) -> dict[str, Any]:
        return {"model": self._model, "prompt": ids, "max_tokens": 1, "temperature": 1.0, **self._api.extra}

    def _enough(self, top: Sequence[Sequence[Any]]) -> None:
        least = min(map(len, top), default=self._top_k or 0)
        _require(least >= (self._top_k or 0), f"{least} of the {self._top_k} most probable tokens that were asked for")

    def _compare(self, ids: list[int], texts: list[str]) -> None:
        """Refuse a server that has other texts for the same ids; those that it leaves out count as the same."""
        mine = [self._tokenizer.decode([token]) for token in ids][len(ids) - len(texts) :]
        for token, own, its in zip(ids[len(ids) - len(texts) :], mine, texts, strict=True):
            if its and own.translate(MARKERS) != its.translate(MARKERS):
                raise ConfigError(
                    f"{self._where}: its tokenizer is not the student's: token {token} is {own!r} here and {its!r} "
                    "there, and a teacher scores the student's tokens; a model with other tokens teaches by its text: "
                    f"collect sessions of it, agentrl eval policy={self._where.partition('=')[2]}, and train with "
                    "algo=sft data=runs/NAME"
                )


def _is_answer(error: EngineError) -> bool:
    """Return whether a server said that it has no such route, or something of another form, and did not fail."""
    return " answered 4" in str(error) or ANOTHER_FORM in str(error) or NOT_JSON in str(error)


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise EngineError(f"{ANOTHER_FORM}: it has {problem}")
