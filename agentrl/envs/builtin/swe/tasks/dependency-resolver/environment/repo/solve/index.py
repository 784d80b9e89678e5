"""Packages, their versions (whole numbers), and what each version needs."""


class Index:
    """Made from lines such as "web 2: core>=2, db<3"."""

    def __init__(self, text):
        self._packages = {}
        for line in text.strip().splitlines():
            head, _, tail = line.partition(":")
            name, version = head.split()
            needs = [parse_need(part) for part in tail.split(",") if part.strip()]
            self._packages.setdefault(name, {})[int(version)] = needs

    def versions(self, name):
        """The versions of a package, newest first."""
        return sorted(self._packages.get(name, {}), reverse=True)

    def needs(self, name, version):
        return self._packages[name][version]


def parse_need(text):
    """(name, lowest version, highest version) of "core>=2", "core<3", "core==2" or "core"."""
    text = text.strip()
    for mark in (">=", "==", "<"):
        if mark in text:
            name, _, number = text.partition(mark)
            number = int(number)
            low, high = {">=": (number, None), "==": (number, number), "<": (None, number - 1)}[mark]
            return name.strip(), low, high
    return text, None, None


def fits(version, need):
    _, low, high = need
    return (low is None or version >= low) and (high is None or version <= high)
