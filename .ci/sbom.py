"""The packages that a release brings, with and without its extras, as a CycloneDX bill of materials on standard output.

Versions are those that are installed where it runs, so that the same environment gives the same bytes. What an extra
asks for and is not installed there stands without a version.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAME = "agentrl-platform"
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OWN = "dev"
"""The extra that contributors alone install."""


def packages() -> dict[str, set[str]]:
    """Each package with the extras that bring it; '' is the base."""
    found: dict[str, set[str]] = {}
    for extra in ("", *sorted(set(EXTRAS) - {OWN})):
        seen, waiting = set[tuple[str, str]](), [(NAME, extra)]
        while waiting:
            name, chosen = waiting.pop()
            if (name, chosen) in seen:
                continue
            seen.add((name, chosen))
            found.setdefault(name, set()).add(extra)
            for need in map(Requirement, asked(chosen) if name == NAME else needed(name)):
                if need.marker is None or need.marker.evaluate({"extra": chosen}):
                    waiting += [(canonicalize_name(need.name), each) for each in ("", *need.extras)]
    return {name: brought for name, brought in sorted(found.items()) if name != NAME}


def asked(extra: str) -> list[str]:
    """What agentrl itself asks for, by the checkout: an installation of it may be older."""
    return EXTRAS[extra] if extra else PROJECT["dependencies"]


def needed(name: str) -> list[str]:
    """What a package asks for; nothing of one that is not installed."""
    try:
        return distribution(name).requires or []
    except PackageNotFoundError:
        return []


def component(name: str, extras: set[str]) -> dict[str, object]:
    """A package as CycloneDX has it."""
    properties = [{"name": "extra", "value": extra or "always"} for extra in ([""] if "" in extras else sorted(extras))]
    try:
        about = distribution(name)
    except PackageNotFoundError:
        return {"type": "library", "name": name, "purl": f"pkg:pypi/{name}", "properties": properties}
    known: dict[str, object] = {
        "type": "library",
        "name": name,
        "version": about.version,
        "purl": f"pkg:pypi/{name}@{about.version}",
        "properties": properties,
    }
    if licence := about.metadata.get("License-Expression"):
        known["licenses"] = [{"expression": licence}]
    return known


def bill() -> dict[str, object]:
    """The whole bill."""
    version = re.search(
        r'^__version__ = "(.+)"', (Path(__file__).parents[1] / "agentrl/__init__.py").read_text(), re.M
    )[1]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "name": NAME,
                "version": version,
                "purl": f"pkg:pypi/{NAME}@{version}",
                "licenses": [{"expression": "Apache-2.0"}],
            }
        },
        "components": [component(name, extras) for name, extras in packages().items()],
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
    print()
