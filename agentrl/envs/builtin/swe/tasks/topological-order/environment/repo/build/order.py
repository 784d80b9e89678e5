"""Topological order (Kahn's algorithm)."""

from collections import deque


class Cycle(ValueError):
    """Packages that depend on each other in a circle."""

    def __init__(self, members):
        super().__init__(" -> ".join([*members, members[0]]))
        self.members = members


def order(needs):
    """Every package after those that it needs.

    Args:
        needs: the names that each package needs; a name that is only needed is a package, too.

    Raises:
        Cycle: there is no such order.
    """
    names = set(needs) | {name for wanted in needs.values() for name in wanted}
    missing = {name: len(set(needs.get(name, ()))) for name in names}
    users = {name: [] for name in names}
    for name, wanted in needs.items():
        for other in wanted:
            users[other].append(name)
    ready = deque(name for name in names if not missing[name])
    done = []
    while ready:
        name = ready.popleft()
        done.append(name)
        for user in users[name]:
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user)
    if len(done) != len(names):
        raise Cycle(sorted(names - set(done)))
    return done
