"""One line of a log in the combined format."""

import re
from dataclasses import dataclass
from datetime import datetime

LINE = re.compile(
    r"""
    (?P<host>\S+) \s \S+ \s (?P<user>\S+) \s
    \[(?P<time>[^\]]+)\] \s
    "(?P<request>[^"]*)" \s
    (?P<status>\d{3}) \s (?P<size>\d+)
    (?: \s "(?P<referrer>[^"]*)" \s "(?P<agent>[^"]*)" )?
    """,
    re.VERBOSE,
)
TIME = "%d/%b/%Y:%H:%M:%S %z"


@dataclass(frozen=True)
class Entry:
    """One request."""

    host: str
    time: datetime
    method: str
    path: str
    status: int
    size: int
    agent: str


def parse_line(line):
    """The request of a line, or None where it is no such line."""
    match = LINE.fullmatch(line.strip())
    if match is None:
        return None
    method, _, rest = _plain(match["request"]).partition(" ")
    path = rest.rsplit(" ", 1)[0]
    return Entry(
        host=match["host"],
        time=datetime.strptime(match["time"], TIME),
        method=method,
        path=path,
        status=int(match["status"]),
        size=int(match["size"]),
        agent=_plain(match["agent"] or "-"),
    )


def _plain(text):
    return text.replace("\\\\", "\\")
