"""Rules for settings of another framework: each becomes a setting of ours, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Settings = Mapping[str, str]


@dataclass(frozen=True)
class Counterpart:
    """A setting of another framework.

    Attributes:
        ours: the setting here; '' where there is none.
        values: ours by theirs, where they differ; a value that is missing has none here.
        why: why there is none, or what else to know.
    """

    ours: str = ""
    values: Mapping[str, str] | None = None
    why: str = ""

    def value(self, theirs: str) -> str | None:
        """Return our value for theirs; None where there is none."""
        if self.values is None:
            return {"True": "true", "False": "false"}.get(theirs, theirs)
        return self.values.get(theirs)


@dataclass(frozen=True)
class Framework:
    """Another framework's settings.

    Attributes:
        always: what every run of it has, and its defaults where ours are others; scripts and `derived` override them.
        rules: by its settings' names.
        prefixes: rules for names that begin so; the rest of the name is added to ours.
        derived: settings of ours that follow from several of its.
    """

    name: str
    always: Settings
    rules: Mapping[str, Counterpart]
    prefixes: Mapping[str, Counterpart]
    derived: Callable[[Settings], dict[str, str]]

    def rule(self, name: str) -> Counterpart | None:
        """Return the rule for a setting; None where it is not known."""
        if name in self.rules:
            return self.rules[name]
        for prefix, rule in self.prefixes.items():
            if name.startswith(prefix):
                rest = name.removeprefix(prefix).replace("-", "_")
                return Counterpart(f"{rule.ours}.{rest}" if rule.ours else "", rule.values, rule.why)
        return None


def number(settings: Settings, name: str, default: float | None = None) -> float | None:
    """Return a setting's number; `default` where it is not given or is none."""
    try:
        return float(settings[name])
    except (KeyError, ValueError):
        return default


def ratio(settings: Settings, *names: str) -> int | None:
    """Return the product of all settings but the last, divided by it; None unless all are given and it is whole."""
    numbers = [number(settings, name) for name in names]
    if any(each is None or each <= 0 for each in numbers):
        return None
    *factors, divisor = [each for each in numbers if each is not None]
    product = 1.0
    for factor in factors:
        product *= factor
    return int(product / divisor) if product % divisor == 0 else None


def whole(value: float) -> str:
    """Return a number as it is typed."""
    return str(int(value)) if value == int(value) else repr(value)
