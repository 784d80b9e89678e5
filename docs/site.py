"""The pages for mkdocs: they are written to be read in the repository, and are read there as they are."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+)(?:#[^)]*)?\)")
PAGES = Path(__file__).parent
MARKER = re.compile(r"(?<=-->)\n(?=[-|])")
NESTED = re.compile(r"^( +)(?=- |\d+\. )", re.MULTILINE)
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made of the code; AGENTRL_PYTHON names the Python that it is installed for."""
    from mkdocs.structure.files import File

    python = os.environ.get("AGENTRL_PYTHON", str(PAGES.parent / ".venv" / "bin" / "python"))
    done = subprocess.run([python, "-m", "docs.reference"], cwd=PAGES.parent, stdout=subprocess.PIPE, check=True)
    for path, content in json.loads(done.stdout).items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Name files outside of the pages instead of linking to them, and indent lists as Python's Markdown wants them."""
    folder = (PAGES / page.file.src_uri).parent
    parts = FENCE.split(markdown)
    for place in range(0, len(parts), 2):
        parts[place] = LINK.sub(lambda found: _kept(found, folder), parts[place])
        parts[place] = MARKER.sub("\n\n", parts[place])
        parts[place] = NESTED.sub(lambda found: found[1] * 2 if len(found[1]) % 4 else found[1], parts[place])
    return "".join(parts)


def _kept(found: re.Match[str], folder: Path) -> str:
    """A link to a page or a picture as it is; of any other file or folder its name."""
    target = (folder / found[2]).resolve()
    if target.is_relative_to(PAGES) and target.is_file():
        return found[0]
    return f"{found[1]} (`{target.relative_to(PAGES.parent)}`)" if target.exists() else found[0]
