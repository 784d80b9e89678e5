"""Lock files: a line for each package, in the order of building."""

from build.order import order


def parse(text):
    """Lines such as "app: lib, util" to a dictionary."""
    needs = {}
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if line:
            name, _, wanted = line.partition(":")
            needs.setdefault(name.strip(), []).extend(part.strip() for part in wanted.split(",") if part.strip())
    return needs


def lock(text):
    return "".join(f"{number}. {name}\n" for number, name in enumerate(order(parse(text)), 1))
