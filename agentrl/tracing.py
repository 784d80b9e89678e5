"""Named spans of work, whose seconds are kept with a session's turns, and which OpenTelemetry gets where a run asks.

`span` costs nothing where nobody asks: it returns a shared context manager that does nothing. Within `collected` the
seconds of spans are added up by name (`Node.timings`). Within `export_spans` each span goes to an OpenTelemetry
collector over OTLP/HTTP, from a thread of OpenTelemetry's own behind a bounded queue: a collector that is slow,
fails or does not exist costs spans and one warning, never a run's time. OpenTelemetry's span is made when the work has
ended, since the SDK's live ones cost ten times as much (decision 260).

What is worked on (`scope`: session, turn) is on every span and in every line of the log (`agentrl.logs`). All of that
is in context variables, which tasks inherit from where they were created; so what a tool's task does is still
attributed to the turn that called the tool.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentrl.config.secrets import scrub
from agentrl.errors import brief, missing_extra

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

Destination = tuple[str, Mapping[str, str]]
"""The address of a collector, and what all spans have in common."""
PATH = "/v1/traces"
"""The path to which OTLP/HTTP sends spans, where the address of a collector names no path of its own."""
PATIENCE = 5.0
"""Seconds that the end of a run waits for the last spans to be sent."""
OFF: AbstractContextManager[None] = nullcontext()
_collected: ContextVar[dict[str, float] | None] = ContextVar("collected", default=None)
_scope: ContextVar[Mapping[str, str | int]] = ContextVar("scope", default={})  # noqa: B039 - never changed
_innermost: ContextVar[_Work | None] = ContextVar("innermost", default=None)
_sink: _Sink | None = None
_destination: Destination | None = None


class scope(AbstractContextManager[None]):
    """Name what is worked on within the block, besides what is known already."""

    def __init__(self, **names: str | int) -> None:
        self._names = names

    def __enter__(self) -> None:
        self._token = _scope.set({**_scope.get(), **self._names})

    def __exit__(self, *raised: object) -> None:
        _scope.reset(self._token)


def current() -> Mapping[str, str | int]:
    """Attributes of the current work: `session`, `turn`; nothing outside of them."""
    return _scope.get()


class collected(AbstractContextManager[dict[str, float]]):
    """The seconds of the spans within the block, by name; spans of one name add up, also where they overlap."""

    def __enter__(self) -> dict[str, float]:
        seconds: dict[str, float] = {}
        self._token = _collected.set(seconds)
        return seconds

    def __exit__(self, *raised: object) -> None:
        _collected.reset(self._token)


def span(name: str, *, root: bool = False, **attributes: str | float) -> AbstractContextManager[None]:
    """A named piece of work: the block. `root`: it begins a trace of its own."""
    seconds = _collected.get()
    return OFF if seconds is None and _sink is None else _Timed(name, seconds, root, attributes)


def record(name: str, began: float, **attributes: str | float) -> None:
    """A piece of work that has ended now, for where a block can't be marked; `began` in `time.monotonic()`."""
    if _sink is not None:
        work = _sink.begun(name, _innermost.get(), {**_scope.get(), **attributes})
        work.began -= int((time.monotonic() - began) * 1e9)
        _sink.ended(work)


def note(**attributes: str | float) -> None:
    """Add to what is known of the innermost span of the block that is being run."""
    work = _innermost.get()
    if work is not None:
        work.attributes.update(attributes)


def round_seconds(seconds: float) -> float:
    """Seconds to the microsecond, which is short where it is stored."""
    return round(seconds * 1e6) / 1e6  # round(seconds, 6) goes through text


class _Timed(AbstractContextManager[None]):
    """A span that somebody asked for."""

    __slots__ = ("_attributes", "_began", "_name", "_root", "_seconds", "_token", "_work")

    def __init__(self, name: str, seconds: dict[str, float] | None, root: bool, attributes: dict[str, Any]) -> None:
        self._name, self._seconds, self._root, self._attributes = name, seconds, root, attributes
        self._work: _Work | None = None

    def __enter__(self) -> None:
        self._began = time.monotonic()
        above = None if self._root else _innermost.get()
        if _sink is not None and (self._root or above is not None):  # else it is of no session or step
            self._work = _sink.begun(self._name, above, {**_scope.get(), **self._attributes})
            self._token = _innermost.set(self._work)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._seconds is not None:
            took = self._seconds.get(self._name, 0.0) + time.monotonic() - self._began
            self._seconds[self._name] = round_seconds(took)
        if self._work is not None:
            _innermost.reset(self._token)
            if _sink is not None:
                _sink.ended(self._work, None if kind is None else kind.__name__)  # messages quote models and tools


# ------------------------------------------------------------------------------------------- exporting


@dataclass(slots=True)
class _Work:
    """A piece of work under way; `began` in nanoseconds since 1970."""

    name: str
    trace: int
    id: int
    parent: int | None
    sampled: bool
    attributes: dict[str, Any]
    began: int


class _Sink:
    """Makes OpenTelemetry's spans of work that has ended, and hands them to a processor of its SDK."""

    def __init__(self, processor: SpanProcessor, about: Mapping[str, str]) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._resource = Resource.create({"service.name": "agentrl", **about})
        self._provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._processor, self._by = processor, InstrumentationScope("agentrl")

    def begun(self, name: str, above: _Work | None, attributes: dict[str, Any]) -> _Work:
        """Work that begins now, in the trace of what it is a part of, or in one of its own, if that is sampled."""
        own = int.from_bytes(os.urandom(8), "big")  # no generator of random numbers that the run seeds
        if above is not None:
            return _Work(name, above.trace, own, above.id, above.sampled, attributes, time.time_ns())
        trace = int.from_bytes(os.urandom(16), "big")
        sampled = self._provider.sampler.should_sample(None, trace, name, attributes=attributes).decision.is_sampled()
        return _Work(name, trace, own, None, sampled, attributes, time.time_ns())

    def ended(self, work: _Work, error: str | None = None) -> None:
        """Work that ends now; `error`: the class of the one that ended it."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

        if work.sampled:
            flags = TraceFlags(TraceFlags.SAMPLED)
            above = None if work.parent is None else SpanContext(work.trace, work.parent, False, flags)
            span = ReadableSpan(
                scrub(work.name),
                SpanContext(work.trace, work.id, False, flags),
                above,
                self._resource,
                {name: scrub(one) if isinstance(one, str) else one for name, one in work.attributes.items()},
                status=Status() if error is None else Status(StatusCode.ERROR, error),
                start_time=work.began,
                end_time=time.time_ns(),
                instrumentation_scope=self._by,
            )
            self._processor.on_end(span)

    def shutdown(self) -> None:
        """Send what is left; takes up to 30 seconds."""
        self._provider.shutdown()


@contextmanager
def export_spans(
    endpoint: str | None,
    about: Mapping[str, str],
    warn: Callable[[str], object] = lambda text: None,
    patience: float = PATIENCE,
) -> Iterator[None]:
    """Send the spans of the block to a collector.

    Args:
        endpoint: its address, such as http://127.0.0.1:4318; None sends nothing.
        about: what all spans have in common, such as the run's name.
        warn: displays the first thing that goes wrong; called from any thread.
        patience: seconds that the end of the block waits for the collector.
    """
    if endpoint is None:
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        warn(f"tracing: {missing_extra('opentelemetry', 'tracing')}; the run goes on without it")
        yield
        return
    address = endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + PATH
    global _destination
    before, _destination = _destination, (endpoint, about)
    with _first_problem(lambda text: warn(f"tracing: {text}; spans are lost, and the run goes on")):
        try:
            with send_spans(BatchSpanProcessor(OTLPSpanExporter(address)), about, patience):
                yield
        finally:
            _destination = before


def destination() -> Destination | None:
    """Address for spans, for processes that this one starts; None where they are not sent."""
    return _destination


@contextmanager
def send_spans(processor: SpanProcessor, about: Mapping[str, str], patience: float = PATIENCE) -> Iterator[None]:
    """Hand each span of the block to a processor of OpenTelemetry's SDK, which has `patience` seconds to end."""
    global _sink
    sink = _Sink(processor, about)
    before, _sink = _sink, sink
    try:
        yield
    finally:
        _sink = before
        ending = threading.Thread(target=sink.shutdown, name="agentrl-tracing-end", daemon=True)
        ending.start()
        ending.join(patience)


@contextmanager
def _first_problem(warn: Callable[[str], object]) -> Iterator[None]:
    """Pass on the first warning of OpenTelemetry's own log, which else would fill the terminal."""
    own, handler = logging.getLogger("opentelemetry"), _Once(warn)
    propagated, own.propagate = own.propagate, False
    own.addHandler(handler)
    try:
        yield
    finally:
        own.removeHandler(handler)
        own.propagate = propagated


class _Once(logging.Handler):
    def __init__(self, warn: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._warn, self._warned = warn, False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._warned:
            self._warned = True
            self._warn(brief(record.getMessage()))
