"""What Prometheus scrapes from a run is in its format, and the dashboard asks only for what there is."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.prometheus import TYPE, metric, page
from agentrl.train.trackers import Trackers
from agentrl.train.trackers.base import TrackedRun
from agentrl.train.trackers.prometheus import Prometheus

ROOT = Path(__file__).resolve().parents[1]
LINE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)\{run="((?:[^"\\\n]|\\["\\n])*)"\} (\S+)$')
BOARD: dict[str, Any] = json.loads((ROOT / "launch" / "grafana.json").read_text())
QUERY = re.compile(r'(agentrl_\w+)(\{run=~"\$run"\})?')
NUMBERS = st.dictionaries(st.text(max_size=8), st.floats(), max_size=6)


def read(text: str) -> dict[str, tuple[str, float]]:
    """Each metric's label and value, of a page in the text format."""
    lines = text.splitlines()
    found = {}
    for kind, line in zip(lines[::2], lines[1::2], strict=True):
        match = LINE.match(line)
        assert match, line
        name, label, value = match.groups()
        assert kind == f"# TYPE {name} gauge"
        assert name not in found
        found[name] = label.replace(r"\n", "\n").replace(r"\"", '"'), float(value)
    return found


@given(numbers=NUMBERS)
@pytest.mark.slow
def test_any_numbers_of_any_names_make_a_page_in_the_format_with_each_name_once(numbers: dict[str, float]) -> None:
    found = read(page(numbers, {"run": 'a "run"\n'}).decode())
    expected = {metric(name): value for name, value in numbers.items()}
    assert found.keys() == expected.keys()
    for name, (label, value) in found.items():
        assert label == 'a "run"\n'
        assert value == expected[name] or math.isnan(expected[name])


@given(numbers=NUMBERS)
def test_the_official_client_reads_the_same(numbers: dict[str, float]) -> None:
    if importlib.util.find_spec("prometheus_client") is None:
        pytest.skip("prometheus_client is not installed")
    from prometheus_client.parser import text_string_to_metric_families

    text = page(numbers, {"run": 'a\\"b\n'}).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.name for sample in samples} == {metric(name) for name in numbers}
    assert {sample.labels["run"] for sample in samples} <= {'a\\"b\n'}


@pytest.mark.slow
def test_a_run_answers_with_its_last_step_until_it_ends(tmp_path: Path) -> None:
    tracker = Prometheus(TrackedRun(tmp_path / "my run"))
    url = f"http://127.0.0.1:{tracker.port}"
    for step in (1, 2):
        tracker.log(step, {"reward/mean": step / 10})
    answer = httpx.get(f"{url}/metrics", timeout=60)
    assert answer.headers["content-type"] == TYPE
    assert read(answer.text) == {"agentrl_step": ("my run", 2.0), "agentrl_reward_mean": ("my run", 0.2)}
    assert httpx.get(f"{url}/config.yaml", timeout=60).status_code == 404
    tracker.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/metrics", timeout=60)


@pytest.mark.slow
def test_an_address_that_is_taken_is_a_warning_and_no_failure(tmp_path: Path) -> None:
    first, said = Prometheus(TrackedRun(tmp_path)), list[str]()
    trackers = Trackers(
        TrackedRun(tmp_path, address=f"127.0.0.1:{first.port}"), {"prometheus": Prometheus}, said.append
    )
    trackers.pass_on()
    trackers.close()
    first.close()
    assert len(said) == 1
    assert "Address already in use" in said[0]


def asked() -> dict[str, bool]:
    """The metrics that the dashboard asks for, and whether of chosen runs or of the gateway; each query is parsed."""
    found = {}
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            query = QUERY.fullmatch(target["expr"])
            assert query, target["expr"]
            found[query[1]] = query[2] is not None
    return found


@pytest.mark.slow
def test_the_dashboard_is_whole_and_its_panels_lie_beside_each_other() -> None:
    """What Grafana's schema asks, and which metrics there really are, the tests of runs and of the gateway show."""
    assert BOARD["schemaVersion"] >= 36, "data sources are objects since then"
    variables = {variable["name"]: variable["type"] for variable in BOARD["templating"]["list"]}
    assert variables == {"datasource": "datasource", "run": "query"}
    assert QUERY.fullmatch(re.sub(r"label_values\((\w+), run\)", r"\1", BOARD["templating"]["list"][1]["query"]))
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    places: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & places
        assert at["x"] + at["w"] <= 24
        places |= own
        for target in panel["targets"]:
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= {"run", "model"}
    assert {metric.split("_")[1] for metric, of_run in asked().items() if not of_run} == {"gateway", "engine"}
