"""A contributor finds every decision: the index lists each once with its status, and every link leads somewhere."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "decisions"
INDEX = FOLDER / "README.md"
FILES = sorted([*FOLDER.glob("[0-9]*.md"), *FOLDER.glob("archive/*.md")])
ROW = re.compile(r"^\| (\d{3}) \| \[(.+)\]\((\S+)\) \| (living|archived|superseded by (\d{3})) \|$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")
MOST_LIVING = 60
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
SOURCES = sorted(
    path
    for folder in ("agentrl", "benchmarks", "examples", "launch", "sandboxes", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".c", ".h", ".sh", ".yaml", ".js"}
)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_lists_every_decision_once_and_nothing_else() -> None:
    listed = [str(Path(link)) for _, _, link, _, _ in ROW.findall(INDEX.read_text())]
    files = [str(path.relative_to(FOLDER)) for path in FILES]
    assert sorted(listed) == sorted(files), "each file of docs/decisions has one row in docs/decisions/README.md"


def test_no_number_is_given_twice() -> None:
    counts = Counter(path.name[:3] for path in FILES)
    assert [number for number, count in counts.items() if count > 1] == []


def test_a_row_has_its_files_number_and_title() -> None:
    for number, title, link, _, _ in ROW.findall(INDEX.read_text()):
        heading = (FOLDER / link).read_text().partition("\n")[0]
        assert re.fullmatch(rf"# {number}:? {re.escape(title)}", heading), heading


def test_living_decisions_are_few_and_all_others_are_in_the_archive() -> None:
    rows = ROW.findall(INDEX.read_text())
    living = {link for _, _, link, status, _ in rows if status == "living"}
    assert living == {path.name for path in FILES if path.parent == FOLDER}
    assert len(living) <= MOST_LIVING, "archive a decision, or write one that says what several say"


def test_what_supersedes_a_decision_is_living() -> None:
    rows = ROW.findall(INDEX.read_text())
    living = {number for number, _, _, status, _ in rows if status == "living"}
    assert {by for *_, by in rows if by} <= living


def test_every_link_of_a_page_leads_to_a_file_and_a_heading() -> None:
    lost = []
    for page in PAGES:
        for target, anchor in LINK.findall(re.sub(r"`[^`\n]*`", "", page.read_text())):
            path = (page.parent / target).resolve() if target else page
            if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
                lost.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert lost == []


def test_every_path_to_a_decision_in_the_code_exists() -> None:
    mentioned = [
        (path, place)
        for path in SOURCES
        for place in re.findall(r"docs/decisions/((?:archive/)?\d{3}[\w-]*)", path.read_text(errors="replace"))
    ]
    assert [(str(path), place) for path, place in mentioned if not list(FOLDER.glob(f"{place}*.md"))] == []
