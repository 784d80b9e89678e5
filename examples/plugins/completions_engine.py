"""An engine for any server with OpenAI's completions route that takes and returns token ids.

    agentrl eval env=calculator model=PATH \
        engine=examples/plugins/completions_engine.py:ENGINE engine.url=http://127.0.0.1:8001

A request is `POST /v1/completions` with `prompt` as a list of token ids; `return_token_ids` (vLLM's extension of
OpenAI's route) requests the sampled ids, and `logprobs` for their log-probabilities at the sampling temperature.
Scoring is the same route with `echo` and no new token. To be trained, the server needs one more route,
`engine.load_route`, which loads the weights of a folder; without it they are fixed.

Given up for so small a file: requests don't stream (a turn is one chunk), there are no stop strings, and a pause waits
for running requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentrl.plugins.engine import (
    Capabilities,
    ConfigError,
    Engine,
    EngineError,
    EnginePlugin,
    FinishReason,
    Http,
    InvalidInput,
    OpenRequest,
    PauseMode,
    RemoteEngine,
    Sampling,
    ServerConfig,
    Tokenizer,
    Turn,
)


class Settings(ServerConfig):
    """The settings of this engine."""

    served_name: str = "model"
    """The model's name in requests, as the server calls it."""
    load_route: str | None = None
    """The route that loads weights, given {"path": FOLDER, "version": N}; None: the weights are fixed."""


class CompletionsEngine(RemoteEngine):
    """`Engine` over a running server."""

    config: Settings

    def __init__(self, path: Path, config: Settings) -> None:
        super().__init__(path, config)
        self._http = Http(str(config.url), config.api_key)
        limit = min(config.max_context or self.facts.context, self.facts.context)
        self._capabilities = Capabilities("completions", max_context=limit, vocab_size=self.facts.vocab_size)

    # ------------------------------------------------------------------------------ starting and ending

    async def _probe(self) -> bool:
        return await self._alive()

    async def _alive(self) -> bool:
        try:
            await self._http.get("/v1/models", timeout=5.0)
        except (EngineError, InvalidInput):
            return False
        return True

    async def _check_server(self) -> None:
        names = [model["id"] for model in (await self._http.get("/v1/models"))["data"]]
        if self.config.served_name not in names:
            raise EngineError(f"engine.served_name={self.config.served_name!r}: the server has {', '.join(names)}")

    async def _close_client(self) -> None:
        await self._http.close()

    # --------------------------------------------------------------------------------------- generating

    def _check(self, sampling: Sampling) -> None:
        super()._check(sampling)
        if sampling.stop or sampling.json_schema or sampling.logit_bias:
            raise InvalidInput("this engine knows no stop strings, JSON schemas and logit biases")

    async def _pump(self, request: OpenRequest) -> Turn:
        sampling = request.sampling
        body = {
            "model": self.config.served_name,
            "prompt": request.ids,
            "max_tokens": request.limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or 0,
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "seed": sampling.seed,
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": 0,
            "return_token_ids": True,
        }
        [choice] = (await self._http.post("/v1/completions", body, timeout=None))["choices"]
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        if len(ids) != len(logprobs):
            raise EngineError(f"the server sent {len(ids)} tokens with {len(logprobs)} log-probabilities")
        if sampling.top_p < 1 or sampling.top_k or sampling.min_p:  # theirs are of what was left of the vocabulary
            scored = await self._score_tokens([*request.ids, *ids], sampling.temperature or 1.0)
            logprobs = scored[len(request.ids) - 1 :]
        self.progress()
        request.take(ids, logprobs, self._version)
        stopped = choice["finish_reason"] == "stop"
        return request.turn(FinishReason.STOP if stopped else FinishReason.LENGTH, ids[-1] if stopped else None)

    async def _abort(self, request: OpenRequest) -> None:
        """The closed connection ends it."""

    async def _score_tokens(self, ids: list[int], temperature: float) -> list[float]:
        body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0, "temperature": temperature}
        answer = await self._http.post("/v1/completions", {"model": self.config.served_name, **body}, timeout=None)
        return [float(value) for value in answer["choices"][0]["logprobs"]["token_logprobs"][1:]]

    # ------------------------------------------------------------------------------- pausing and weights

    async def _pause(self, mode: PauseMode) -> None:
        await self._idle(None)

    async def _resume(self) -> None:
        """Requests are held back here, and not by the server."""

    async def _load(self, folder: Path, version: int) -> None:
        if self.config.load_route is None:
            raise EngineError("engine.load_route is not set: this server's weights are fixed, and can't be trained")
        await self._http.do(self.config.load_route, {"path": str(folder), "version": version})
        self._version = version


class CompletionsPlugin(EnginePlugin):
    """The engine as a plug-in."""

    settings = Settings

    def make(self, path: Path, config: Settings, tokenizer: Tokenizer | None = None) -> Engine:
        """Attach to the server; the tokenizer is not needed."""
        return CompletionsEngine(path, config)

    def check(self, config: Settings, urls: Mapping[str, str]) -> None:
        """It starts no server."""
        if not urls:
            raise ConfigError("engine.url (or fleet.urls) is required: this engine attaches to a running server")


ENGINE = CompletionsPlugin()
