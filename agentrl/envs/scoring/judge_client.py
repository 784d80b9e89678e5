"""Asking a model that judges: any server with OpenAI's Chat Completions, with retries, a bound, and a cache.

A judge's failure is never the model's fault. Whatever keeps it from giving a verdict (no connection, a refusal, a reply
that is no JSON, or that has no verdict in it) is tried again, and is an `InfraError` after the last attempt. What would
be the same in every session (a wrong key, model or address) ends the run.

Replies are cached by the content of their requests: the same answer to the same question is judged once, and two
sessions that ask at the same time share one request. Only replies with a verdict are kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import httpx
import orjson
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, PrivateAttr, model_validator

from agentrl.common.concurrency import take_error
from agentrl.common.retries import doubling, retry
from agentrl.common.untrusted import visible_text
from agentrl.config import RewardConfig
from agentrl.config.api import URL
from agentrl.config.secrets import without_secrets
from agentrl.errors import ConfigError, InfraError

T = TypeVar("T")
MAX_REPLY = 4 << 20
"""Bytes of a reply that are read; a longer one is no verdict."""
REMEMBERED = 10_000
"""Replies that a process keeps in memory."""
LONGEST_PAUSE = 30.0
WRONG = {401: "refuses the key", 403: "refuses the key", 404: "has no such model or address", 405: "is no such API"}
"""Statuses that are the same for every request."""
HOPELESS = frozenset({400, 413, 422})
"""Statuses that another attempt at the same request gets again."""
LOCAL = ("localhost", "127.0.0.1", "::1")
SECOND_TRY = "Your last line did not have the form that was asked for."
_log = logging.getLogger(__name__)


class JudgeConfig(RewardConfig):
    """A judge's address, model and limits."""

    timeout: PositiveFloat = 300.0
    """Seconds that the judge may take for a session, all attempts and votes together; then it is an INFRA_ERROR."""
    url: str = ""
    """The base URL of a server with OpenAI's Chat Completions, which ends in /v1 as a rule: SGLang, vLLM, llama.cpp,
    or a provider."""
    policy: str = ""
    """A policy of the run that judges, instead of `url`: a model (policies.judge.model=FOLDER), which the run starts an
    engine for, or an API (policies.judge=URL)."""
    model: str = ""
    """The model's name there."""
    key_env: str | None = None
    """The environment variable that has the key; None is OPENAI_API_KEY, and none for a server on this machine."""
    temperature: NonNegativeFloat = 0.0
    """Its sampling temperature."""
    max_tokens: PositiveInt = 1024
    """Tokens of a reply."""
    votes: PositiveInt = 1
    """The number of times that each question is asked; the mean counts. More than one needs a temperature above 0."""
    attempts: PositiveInt = 3
    """Requests for one verdict before its session ends as INFRA_ERROR."""
    pause: NonNegativeFloat = 0.5
    """Seconds before the second request; they double with each further one."""
    request_timeout: PositiveFloat = 60.0
    """Seconds for one request."""
    concurrency: PositiveInt = 32
    """Requests of a process at once."""
    cache: str | None = None
    """A file that keeps verdicts beyond the process; several may share it. None: they are kept in memory."""
    extra: dict[str, Any] = Field(default={})
    """Further fields of each request, such as extra.reasoning_effort=low."""
    _served: str = PrivateAttr("")
    """Of a policy on an engine of the run, which has another address in each run: what tells its model from others."""

    def asking(self, url: str, model: str) -> Self:
        """Return the settings for a policy on an engine of the run.

        Args:
            url: where it is asked.
            model: what tells its model from others.
        """
        asked = self.model_copy(update={"url": url, "model": self.policy})
        asked._served = model
        return asked

    @model_validator(mode="after")
    def _can_be_asked(self) -> JudgeConfig:
        if not self.url and not self.policy:
            raise ValueError("a judge needs url=ADDRESS (ends in /v1 as a rule), or policy=NAME of the run's policies")
        if self.url and not self.url.startswith(URL):
            raise ValueError(f"url={self.url!r} is no address: it begins with http:// or https://")
        if self.votes > 1 and not self.temperature:
            raise ValueError(
                f"votes={self.votes} are all the same at temperature=0: set temperature above 0, or votes=1"
            )
        return self


class JudgeClient:
    """A judge; one serves all sessions of a process, in the event loop that first asks."""

    def __init__(self, config: JudgeConfig) -> None:
        if not config.url:
            raise ConfigError(f"policy={config.policy!r}: a run has policies, and nothing else does: give url=ADDRESS")
        self._config = config
        self._where = f"the judge {without_secrets(config.url)}" if not config._served else f"policies.{config.policy}"
        self._key = _key(config)
        self._client: httpx.AsyncClient | None = None
        self._slots: asyncio.Semaphore | None = None
        self._replies: OrderedDict[bytes, str] = OrderedDict()
        self._asked: dict[bytes, asyncio.Task[str]] = {}
        self._file = _Replies(config.cache) if config.cache else None

    async def ask(self, messages: Sequence[Mapping[str, str]], read: Callable[[str], T], vote: int = 0) -> T:
        """Return the judge's verdict.

        Args:
            messages: the question.
            read: the verdict in a reply; it raises a ValueError where there is none.
            vote: which of several votes; each is asked for by itself.

        Raises:
            InfraError: there is no verdict after the last attempt.
            ConfigError: the key, the model or the address is wrong.
        """
        body, served = self._body(messages), self._config._served
        key = hashlib.blake2b(orjson.dumps([served or self._config.url, body, vote]), digest_size=16).digest()
        if served:
            body = body | {"seed": int.from_bytes(key[:4])}
        known = self._replies.get(key) or (self._file.get(key) if self._file else None)
        if known is not None:
            with suppress(ValueError):
                return read(known)
        if (task := self._asked.get(key)) is None:
            task = self._asked[key] = asyncio.create_task(self._reply(key, body, read))
            task.add_done_callback(lambda done: self._note_end(key, done))
        return read(await asyncio.shield(task))  # one of several who wait may be cancelled

    async def close(self) -> None:
        """Close its connections and its file."""
        for task in list(self._asked.values()):
            task.cancel()
        if self._client is not None:
            await self._client.aclose()
        if self._file is not None:
            self._file.close()

    def _body(self, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        config = self._config
        body = {"model": config.model, "messages": list(messages), "max_completion_tokens": config.max_tokens}
        if config.temperature != 1:  # the protocol's default, and all that some models take
            body["temperature"] = config.temperature
        return body | config.extra

    def _note_end(self, key: bytes, task: asyncio.Task[str]) -> None:
        self._asked.pop(key, None)
        take_error(task)  # whoever asked may be gone

    async def _reply(self, key: bytes, body: dict[str, Any], read: Callable[[str], Any]) -> str:
        """A reply that has a verdict."""

        async def attempt() -> str:
            nonlocal body
            text = await self._request(body)
            try:
                read(text)
            except ValueError as error:
                body = {**body, "messages": [*body["messages"][:-1], _remind(body["messages"][-1])]}
                raise _Again(f"its reply has no verdict: {error}") from None
            self._keep(key, text)
            return text

        pauses = doubling(self._config.pause, self._config.attempts - 1)
        try:
            return await retry(attempt, _Again, pauses, lambda error: getattr(error, "pause", None))
        except _Again as error:
            raise InfraError(f"{self._where} failed {self._config.attempts} times: {error}") from None

    async def _request(self, body: Mapping[str, Any]) -> str:
        """The text of one reply.

        Raises:
            _Again: there is none, and another attempt may have more luck.
            InfraError: no attempt will have any.
            ConfigError: no request will.
        """
        if self._client is None or self._slots is None:
            proxied = not _is_own(self._config)
            self._client = httpx.AsyncClient(timeout=self._config.request_timeout, trust_env=proxied)
            self._slots = asyncio.Semaphore(self._config.concurrency)
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        url = f"{self._config.url.rstrip('/')}/chat/completions"
        try:
            async with (
                self._slots,
                asyncio.timeout(self._config.request_timeout),
                self._client.stream("POST", url, json=body, headers=headers) as answer,
            ):
                data = b""
                async for part in answer.aiter_bytes():
                    data += part
                    if len(data) > MAX_REPLY:
                        raise _Again(f"its reply has more than {MAX_REPLY:,} bytes")
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, TimeoutError) as error:
            raise _Again(f"{type(error).__name__}: {error}") from None
        self._check(answer.status_code, data, answer.headers.get("retry-after", ""))
        try:
            choice = orjson.loads(data)["choices"][0]
            text = choice["message"]["content"]
        except (ValueError, LookupError, TypeError):
            raise _Again(f"its reply is no completion: {_show(data)}") from None
        if not isinstance(text, str):
            raise _Again("its reply has no text")
        return text.rpartition("</think>")[2]

    def _check(self, status: int, data: bytes, retry_after: str) -> None:
        if status in WRONG:
            raise ConfigError(f"{self._where} {WRONG[status]} ({status}): {_show(data)}")
        if status in HOPELESS:
            raise InfraError(f"{self._where} refuses the request ({status}): {_show(data)}")
        if status != 200:
            pause = float(retry_after) if retry_after.isdecimal() else 0.0
            raise _Again(f"status {status}: {_show(data)}", min(pause, LONGEST_PAUSE))

    def _keep(self, key: bytes, text: str) -> None:
        self._replies[key] = text
        if len(self._replies) > REMEMBERED:
            self._replies.popitem(last=False)
        if self._file is not None:
            self._file.put(key, text)


class _Again(Exception):
    """One attempt failed; `pause` is how long the server asks to wait, in seconds."""

    def __init__(self, words: str, pause: float = 0.0) -> None:
        super().__init__(words)
        self.pause = pause


class _Replies:
    """Replies in a file, by the digest of their request; a file that fails is done without."""

    def __init__(self, path: str) -> None:
        try:
            self._db = sqlite3.connect(Path(path).expanduser(), 10.0, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("CREATE TABLE IF NOT EXISTS replies (key BLOB PRIMARY KEY, text TEXT) WITHOUT ROWID")
        except sqlite3.Error as error:
            raise ConfigError(f"cache={path!r} can't be used: {error}") from None

    def get(self, key: bytes) -> str | None:
        try:
            row = self._db.execute("SELECT text FROM replies WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            _log.warning("the cache of a judge can't be read: %s", error)
            return None
        return row[0] if row else None

    def put(self, key: bytes, text: str) -> None:
        try:
            self._db.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, text))
        except (sqlite3.Error, UnicodeError) as error:
            _log.warning("the cache of a judge can't be written: %s", error)

    def close(self) -> None:
        self._db.close()


def _remind(message: Mapping[str, str]) -> dict[str, str]:
    """The last message of a question, with a reminder of the form of the verdict; once."""
    text = message["content"]
    return {**message, "content": text if text.endswith(SECOND_TRY) else f"{text}\n\n{SECOND_TRY}"}


def _show(data: bytes) -> str:
    return visible_text(data[:200].decode(errors="replace"), keep="").strip() or "an empty reply"


def _is_own(config: JudgeConfig) -> bool:
    """Return whether no proxy and no provider's key is for a judge: an engine of the run, a server on this machine."""
    return bool(config._served) or urlsplit(config.url).hostname in LOCAL


def _key(config: JudgeConfig) -> str:
    if config.key_env is None and _is_own(config):
        return ""
    name = config.key_env or "OPENAI_API_KEY"
    key = os.environ.get(name, "")
    if not key and config.key_env:
        raise ConfigError(f"key_env={name}: there is no such environment variable")
    return key
