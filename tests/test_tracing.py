"""Spans of work: a tree for each session, at a collector over real HTTP, and never in a run's way."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentrl import logs, tracing
from agentrl.config.secrets import HIDDEN
from agentrl.envs.base import Env, reward
from agentrl.errors import ToolError
from agentrl.rollout.episodes.groups import Rollouts
from agentrl.rollout.episodes.policies import ModelActor, Policy
from agentrl.tools.registry import ToolRegistry
from agentrl.train.driver.learning import Clock
from agentrl.types import FunctionCall, Sampling, Session, Task, ToolCall
from tests.collector import Collector, collecting
from tests.rollout.test_timings import LIMITS, Looking
from tests.sessions.fakes import DiceEngine, LetterRenderer


class Rewarded(Looking):
    max_turns = 2

    @reward
    def luck(self, session: Session) -> float:
        return 1.0


@contextmanager
def kept() -> Iterator[list[ReadableSpan]]:
    """The spans of the block, once it has ended."""
    memory, spans = InMemorySpanExporter(), list[ReadableSpan]()
    with tracing.send_spans(SimpleSpanProcessor(memory), {"agentrl.run": "runs-name"}):
        yield spans
        spans += memory.get_finished_spans()


async def play(env: type[Env] = Rewarded) -> Session:
    rollouts = Rollouts(env, Policy(LetterRenderer(), DiceEngine(end_weight=40.0)), LIMITS, 1)
    (group,) = await rollouts.collect([Task(id="t", data={})], ModelActor(Sampling()), phase="train", n=1)
    return group.sessions[0]


def outline(spans: list[ReadableSpan]) -> list[str]:
    """Each span's name below those of its parents, in the order of their beginnings."""
    by_id = {span.context.span_id: span for span in spans if span.context}

    def path(span: ReadableSpan) -> str:
        return f"{path(by_id[span.parent.span_id])}/{span.name}" if span.parent else span.name

    return [path(span) for span in sorted(spans, key=lambda span: span.start_time or 0)]


async def test_nothing_is_made_where_nobody_asks() -> None:
    assert tracing.span("turn", agent="a") is tracing.span("tool")
    assert (await play()).rewards == {"luck": 1.0}


async def test_a_session_is_a_trace_of_turns_with_their_generation_tools_and_sandbox_and_has_its_rewards() -> None:
    with kept() as spans, tracing.span("step", root=True):
        session = await play()
    assert outline(spans)[:2] == ["step", "session"], "it is no part of the step that it was generated in"
    spans = [span for span in spans if span.name != "step"]
    tools = ["session/turn/env", *["session/turn/env/tool"] * 2]
    first = [*tools[:2], "session/turn/env/tool/sandbox", tools[2]]
    turn = ["session/turn", "session/turn/generate"]
    assert outline(spans) == ["session", "session/env", *turn, *first, *turn, *tools, "session/reward"]
    assert {span.attributes["session"] for span in spans if span.attributes} == {session.id}
    turns = [(span.attributes or {}).get("turn") for span in spans if span.name == "tool"]
    assert turns == [1, 1, 2, 2]
    (whole,) = [dict(span.attributes or {}) for span in spans if span.name == "session"]
    assert (whole["status"], whole["turns"], whole["group"]) == (session.status, 2, session.group)
    assert {span.resource.attributes["agentrl.run"] for span in spans} == {"runs-name"}


async def test_a_span_that_an_error_ended_has_its_class_and_none_of_its_text() -> None:
    class Failing(Rewarded):
        async def open_sandbox(self) -> object:
            raise ToolError("whispered words")

    with kept() as spans:
        await play(Failing)
    (tool, *_) = [span for span in spans if span.name == "tool"]
    assert tool.status.description == "ToolError"
    assert not tool.events
    assert "whispered" not in "".join(span.to_json() for span in spans)


async def test_of_a_call_of_no_tool_a_span_has_no_text_of_the_model() -> None:
    """OTLP has no lone surrogates, and one loses all spans that are sent with it."""
    with kept() as spans, tracing.span("turn", root=True):
        function = FunctionCall(name="\ud800" * 9000, arguments="{}")
        await ToolRegistry([]).run(ToolCall(id="1", function=function))
    assert [(span.attributes or {}).get("tool") for span in spans] == ["(unknown)", None]


async def test_spans_draw_nothing_from_the_random_numbers_that_a_run_has_seeded() -> None:
    random.seed(5)
    with kept() as spans, tracing.span("turn", root=True), tracing.span("tool"):
        tracing.record("generate", time.monotonic())
    assert len({span.context.span_id for span in spans if span.context}) == 3
    assert random.random() == random.Random(5).random()


async def test_what_is_not_sampled_has_no_spans_below_it_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.0")
    with kept() as spans, tracing.span("step", root=True):
        await play()
        tracing.record("generate", time.monotonic())
    assert not spans


async def test_a_steps_phases_are_spans_below_it() -> None:
    with kept() as spans:
        clock = Clock()
        with tracing.span("step", root=True, step=3):
            for phase in ("rollout", "publish"):
                with clock(phase):
                    pass
    assert outline(spans) == ["step", "step/rollout", "step/publish"]
    assert {"time/rollout", "time/publish"} < set(clock.metrics())


# --------------------------------------------------------------------------------------- a collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as server:
        yield server


@pytest.mark.slow
async def test_a_collector_gets_the_spans_over_http_with_run_session_and_turn(collector: Collector) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    collector.answers.set()
    said = list[str]()
    with tracing.export_spans(collector.url, {"agentrl.run": "runs-name"}, said.append):
        assert tracing.destination() == (collector.url, {"agentrl.run": "runs-name"})
        session = await play()
    assert tracing.destination() is None
    assert not said
    names, ids = [], set()
    for path, body in collector.bodies:
        assert path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            assert about["agentrl.run"] == "runs-name"
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                names.append(span.name)
                ids |= {each.value.string_value for each in span.attributes if each.key == "session"}
    assert sorted(names) == sorted(
        ["session", "reward", *["turn", "generate"] * 2, *["env"] * 3, *["tool"] * 4, "sandbox"]
    )
    assert ids == {session.id}


@pytest.mark.slow
async def test_a_collector_that_does_not_answer_is_left_behind(collector: Collector) -> None:
    with tracing.export_spans(collector.url, {}, patience=0.1):
        session = await play()
    assert session.rewards == {"luck": 1.0}
    assert not collector.answers.is_set(), "it waits to this moment"


@pytest.mark.slow
async def test_a_collector_that_is_not_there_gives_one_warning(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    collector.shutdown()
    collector.server_close()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.1")  # it tries no longer, and no less than once
    said = list[str]()
    with tracing.export_spans(collector.url, {}, said.append):
        session = await play()
    assert session.rewards == {"luck": 1.0}
    assert len(said) == 1
    assert said[0].startswith("tracing: ")
    assert "opentelemetry" not in capfd.readouterr().err


async def test_a_package_that_is_missing_gives_one_warning_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace.export", None)
    said = list[str]()
    with tracing.export_spans("http://127.0.0.1:1", {}, said.append):
        await play()
    assert len(said) == 1
    assert "agentrl-platform[tracing]" in said[0]


# -------------------------------------------------------------------------------------------- the log


def lines(file: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in file.read_bytes().splitlines()]


async def test_each_line_of_the_log_says_which_run_session_and_turn_it_is_of_and_no_secret(tmp_path: Path) -> None:
    logger = logging.getLogger("agentrl.tests")

    class Logging(Rewarded):
        async def open_sandbox(self) -> object:
            logger.info("the key is %s\ud800", "sk-planted")
            return object()

    with logs.write_log(tmp_path / logs.NAME, "runs-name", ["sk-planted"]):
        session = await play(Logging)
        try:
            raise ValueError("sk-planted as well")
        except ValueError:
            logger.exception("it failed")
    inside, outside = lines(tmp_path / logs.NAME)
    assert (inside["run"], inside["session"], inside["turn"]) == ("runs-name", session.id, 1)
    assert (inside["level"], inside["message"]) == ("info", f"the key is {HIDDEN}\ufffd")
    assert "session" not in outside
    assert f"ValueError: {HIDDEN} as well" in outside["traceback"]
    logger.warning("after the end")
    assert len(lines(tmp_path / logs.NAME)) == 2


@pytest.mark.slow
def test_a_warning_that_was_shown_is_not_printed_again_where_no_log_is_written(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Evaluations printed each warning twice: Python prints what no handler has taken."""
    code = "from agentrl import logs; logs.shown.warning('seen'); logs.logging.getLogger('agentrl.x').warning('new')"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert capfd.readouterr().err == "new\n"


@pytest.mark.slow
def test_a_log_that_can_not_be_written_stops_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with logs.write_log(Path("/dev/full"), "runs-name"):
        logging.getLogger("agentrl.tests").info("lost")
    assert "Traceback" not in capfd.readouterr().err
