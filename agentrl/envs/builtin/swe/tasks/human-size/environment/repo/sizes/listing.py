"""A table of files and their sizes."""

from sizes.human import human


def listing(files, decimal=False):
    """Lines of name and size, the largest first, and the sum."""
    rows = sorted(files.items(), key=lambda item: (-item[1], item[0]))
    rows.append(("total", sum(files.values())))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}} {human(size, decimal):>10}" for name, size in rows)
