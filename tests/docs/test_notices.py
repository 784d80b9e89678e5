"""NOTICES.md names every package that agentrl asks for, with the licence that its metadata states.

`python -m tests.docs.test_notices` writes the table anew, from what is installed here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "NOTICES.md"
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
SPDX = {
    "License :: OSI Approved :: Python Software Foundation License": "PSF",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: BSD License": "BSD",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}


def asked() -> dict[str, list[str]]:
    """The packages of others, with the extras that ask for them; '' is the package itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, list[str]] = {}
    for extra, needs in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for need in needs if extra != "dev" else ():
            name = re.match(r"[\w.-]+", need)[0].lower()  # type: ignore[index]
            if name != "agentrl-platform":
                found.setdefault(name, []).append(extra)
    return dict(sorted(found.items()))


def stated(name: str) -> str | None:
    """The licence in a package's metadata, in a word; None where it is not installed here or has none."""
    try:
        about = metadata(name)
    except PackageNotFoundError:
        return None
    said = about.get("License-Expression") or next(
        (SPDX[each] for each in about.get_all("Classifier", ()) if each in SPDX), None
    )
    short = str(about.get("License") or "").strip()
    return said or (short if 0 < len(short) < 40 else None)


def rows(page: str) -> Iterator[str]:
    known = {name: licence for name, _, licence in ROW.findall(page)}
    for name, extras in asked().items():
        licence = stated(name) or known.get(name, "")
        yield f"| `{name}` | {', '.join(extra or 'always' for extra in extras)} | {licence} |\n"


def updated(page: str) -> str:
    """The page with the table of today; licences of packages that are not installed here stay."""
    head, _, rest = page.partition("|---|---|---|\n")
    return f"{head}|---|---|---|\n{''.join(rows(page))}{rest[rest.rindex('|') + 2 :] if '|' in rest else rest}"


def test_the_notices_have_every_package_with_its_licence() -> None:
    table = {name: (extras, licence) for name, extras, licence in ROW.findall(PAGE.read_text())}
    wanted = {name: ", ".join(extra or "always" for extra in extras) for name, extras in asked().items()}
    assert {name: extras for name, (extras, _) in table.items()} == wanted, "run python -m tests.docs.test_notices"
    assert [name for name, (_, licence) in table.items() if not licence.strip()] == []
    assert {name: stated(name) for name in table if stated(name) not in (None, table[name][1])} == {}


def test_the_bill_of_materials_of_a_release_has_each_of_them_and_what_they_bring() -> None:
    command = [sys.executable, ROOT / ".ci" / "sbom.py"]
    bill = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=100).stdout)
    found = {each["name"]: each for each in bill["components"]}
    assert set(map(canonicalize_name, asked())) <= set(found)
    assert all(each["purl"].startswith(f"pkg:pypi/{name}") for name, each in found.items())
    assert found["pydantic"]["properties"] == [{"name": "extra", "value": "always"}]
    assert {"name": "extra", "value": "train"} in found["torch"]["properties"]
    assert "pydantic-core" in found, "what a package brings is there as well"
    assert not {"pytest", "ruff", "agentrl-platform"} & set(found)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
