"""One field of a schedule: numbers, ranges, steps and lists of them."""


def parse_field(text, low, high):
    """The set of numbers that a field stands for.

    Raises:
        ValueError: it can't be read, or is out of range.
    """
    numbers = set()
    for piece in text.split(","):
        span, _, step = piece.partition("/")
        if span == "*":
            first, last = low, high
        else:
            start, dash, end = span.partition("-")
            first = int(start)
            last = int(end) if dash else (high if step else first)
        if not low <= first <= last <= high:
            raise ValueError(f"{piece!r} is not within {low} to {high}")
        width = int(step) if step else 1
        if width < 1:
            raise ValueError(f"a step of {width}")
        numbers.update(number for number in range(first, last + 1) if number % width == 0)
    return numbers
