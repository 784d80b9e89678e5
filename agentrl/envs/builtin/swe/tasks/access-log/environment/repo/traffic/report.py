"""Sums over many requests."""

from collections import Counter

from traffic.lines import parse_line


class Report:
    """Counts by status and by path, and bytes by host."""

    def __init__(self):
        self.statuses = Counter()
        self.paths = Counter()
        self.bytes = Counter()
        self.skipped = 0

    def add(self, line):
        entry = parse_line(line)
        if entry is None:
            self.skipped += 1
            return
        self.statuses[entry.status] += 1
        self.paths[entry.path.split("?")[0]] += 1
        self.bytes[entry.host] += entry.size

    @property
    def requests(self):
        return sum(self.statuses.values())

    def top(self, count=3):
        """The paths asked for most, and how often; ties by name."""
        return sorted(self.paths.items(), key=lambda item: (-item[1], item[0]))[:count]
