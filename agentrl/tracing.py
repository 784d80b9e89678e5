"""Named spans of work, whose seconds are kept with a session's turns, and which OpenTelemetry gets where a run asks.

`span` costs nothing where nobody asks: it returns a shared context manager that does nothing. Within `collected` the
seconds of spans are added up by name (`Node.timings`). Within `exported` each span goes to an OpenTelemetry collector
over OTLP/HTTP, from a thread of OpenTelemetry's own behind a bounded queue: a collector that is slow, fails or does not
exist costs spans and one warning, never a run's time.

What is worked on (`scope`: session, turn) is on every span and in every line of the log (`agentrl.logs`). All of that
is in context variables, which tasks inherit from where they were created; so what a tool's task does is still
attributed to the turn that called the tool.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agentrl.errors import brief, missing_extra

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span, Tracer

Destination = tuple[str, Mapping[str, str]]
"""The address of a collector, and what all spans have in common."""
PATH = "/v1/traces"
"""Where OTLP/HTTP has spans sent, where the address of a collector names no path of its own."""
PATIENCE = 5.0
"""Seconds that the end of a run waits for the last spans to be sent."""
OFF: AbstractContextManager[None] = nullcontext()
_collected: ContextVar[dict[str, float] | None] = ContextVar("collected", default=None)
_scope: ContextVar[Mapping[str, str | int]] = ContextVar("scope", default={})  # noqa: B039 - never changed
_tracer: Tracer | None = None
_destination: Destination | None = None


@contextmanager
def scope(**names: str | int) -> Iterator[None]:
    """What is worked on within the block, besides what is known already."""
    token = _scope.set({**_scope.get(), **names})
    try:
        yield
    finally:
        _scope.reset(token)


def current() -> Mapping[str, str | int]:
    """What is worked on: `session`, `turn`; nothing outside of them."""
    return _scope.get()


@contextmanager
def collected() -> Iterator[dict[str, float]]:
    """The seconds of the spans within the block, by name; spans of one name add up, also where they overlap."""
    seconds: dict[str, float] = {}
    token = _collected.set(seconds)
    try:
        yield seconds
    finally:
        _collected.reset(token)


def span(name: str, *, root: bool = False, **attributes: str | float) -> AbstractContextManager[None]:
    """A named piece of work: the block. `root`: it begins a trace of its own."""
    seconds = _collected.get()
    return OFF if seconds is None and _tracer is None else _Timed(name, seconds, root, attributes)


def record(name: str, began: float, **attributes: str | float) -> None:
    """A piece of work that has ended now, for where a block can't be marked; `began` in `time.monotonic()`."""
    if _tracer is not None:
        now, took = time.time_ns(), time.monotonic() - began
        opened = _tracer.start_span(name, attributes={**_scope.get(), **attributes}, start_time=now - int(took * 1e9))
        opened.end(now)


def note(**attributes: str | float) -> None:
    """Add to what is known of the innermost span of the block that is being run."""
    if _tracer is not None:
        from opentelemetry import trace

        trace.get_current_span().set_attributes(attributes)


def rounded(seconds: float) -> float:
    """Seconds to the microsecond, which is short where it is stored."""
    return round(seconds, 6)


class _Timed(AbstractContextManager[None]):
    """A span that somebody asked for."""

    __slots__ = ("_attributes", "_began", "_name", "_opened", "_root", "_seconds", "_token")

    def __init__(self, name: str, seconds: dict[str, float] | None, root: bool, attributes: dict[str, Any]) -> None:
        self._name, self._seconds, self._root, self._attributes = name, seconds, root, attributes
        self._opened: Span | None = None

    def __enter__(self) -> None:
        self._began = time.monotonic()
        if _tracer is None:
            return
        from opentelemetry import context, trace

        if self._root or trace.get_current_span().is_recording():  # else it is of no session or step, or not sampled
            above = context.Context() if self._root else None
            self._opened = _tracer.start_span(self._name, above, attributes={**_scope.get(), **self._attributes})
            self._token = context.attach(trace.set_span_in_context(self._opened))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._seconds is not None:
            took = self._seconds.get(self._name, 0.0) + time.monotonic() - self._began
            self._seconds[self._name] = rounded(took)
        if self._opened is not None:
            from opentelemetry import context
            from opentelemetry.trace import StatusCode

            context.detach(self._token)
            if kind is not None:  # its kind alone: messages quote models and tools
                self._opened.set_status(StatusCode.ERROR, kind.__name__)
            self._opened.end()


# ------------------------------------------------------------------------------------------- exporting


@contextmanager
def exported(
    endpoint: str | None, about: Mapping[str, str], warn: Callable[[str], object] = lambda text: None
) -> Iterator[None]:
    """Send the spans of the block to a collector.

    Args:
        endpoint: its address, such as http://127.0.0.1:4318; None sends nothing.
        about: what all spans have in common, such as the run's name.
        warn: displays the first thing that goes wrong; called from any thread.
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
            with sent_to(BatchSpanProcessor(OTLPSpanExporter(address)), about):
                yield
        finally:
            _destination = before


def destination() -> Destination | None:
    """Where spans are sent, for processes that this one starts; None where they are not."""
    return _destination


@contextmanager
def sent_to(processor: SpanProcessor, about: Mapping[str, str]) -> Iterator[None]:
    """Hand each span of the block to a processor of OpenTelemetry's SDK, which has `PATIENCE` seconds to end."""
    global _tracer
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    resource = Resource.create({"service.name": "agentrl", **about})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    before, _tracer = _tracer, provider.get_tracer("agentrl")
    try:
        yield
    finally:
        _tracer = before
        ending = threading.Thread(target=provider.shutdown, name="agentrl-tracing-end", daemon=True)
        ending.start()
        ending.join(PATIENCE)


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
