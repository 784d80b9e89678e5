"""Backtracking: choose the newest version that fits, and take the choice back where it leads nowhere."""

from solve.index import fits, parse_need


class NoSolution(Exception):
    """No versions go together."""


def resolve(index, wanted):
    """A version for every package that is needed.

    Args:
        index: what there is.
        wanted: needs as text, such as ["web", "db>=2"].

    Raises:
        NoSolution: there is none.
    """
    chosen = {}
    if not _solve(index, [parse_need(text) for text in wanted], chosen):
        raise NoSolution(", ".join(wanted))
    return dict(sorted(chosen.items()))


def _solve(index, needs, chosen):
    """Meet all needs, adding to what is chosen; False, and nothing added, where that is impossible."""
    while needs:
        need = needs.pop(0)
        name = need[0]
        if name in chosen:
            if not fits(chosen[name], need):
                return False
            continue
        for version in index.versions(name):
            if not fits(version, need):
                continue
            chosen[name] = version
            needs.extend(index.needs(name, version))
            if _solve(index, needs, chosen):
                return True
            chosen.pop(name, None)
        return False
    return True
