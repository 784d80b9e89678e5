"""Numbers as Prometheus reads them: the text exposition format.

https://prometheus.io/docs/instrumenting/exposition_formats/. A page of gauges is a dozen lines to write; the client
library's registries, which know counters and histograms of a whole process, would only be in the way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The page's content type."""
_OTHER = re.compile(r"[^a-zA-Z0-9_:]")


def page(numbers: Mapping[str, float], labels: Mapping[str, str] | None = None) -> bytes:
    """The numbers as gauges: `reward/mean` becomes `agentrl_reward_mean`; of two with one name the later one stays.

    Args:
        numbers: by name; any float.
        labels: of all of them, by names of letters and underscores.
    """
    said = ",".join(f'{name}="{_escaped(value)}"' for name, value in (labels or {}).items())
    values = {metric(name): float(value) for name, value in numbers.items()}
    lines = [f"# TYPE {name} gauge\n{name}{{{said}}} {_number(value)}\n" for name, value in values.items()]
    return "".join(lines).encode()


def metric(name: str) -> str:
    """Return a number's name in Prometheus."""
    return f"agentrl_{_OTHER.sub('_', name)}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))
