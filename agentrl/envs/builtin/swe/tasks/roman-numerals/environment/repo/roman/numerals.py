"""Numbers to numerals and back."""

SYMBOLS = [("M", 1000), ("D", 500), ("C", 100), ("L", 50), ("X", 10), ("V", 5), ("I", 1)]
VALUES = dict(SYMBOLS)
LARGEST = 3999


def write(number):
    """The numeral of a number.

    Raises:
        ValueError: it is not between 1 and 3999.
    """
    if not 1 <= number <= LARGEST:
        raise ValueError(f"{number}: allowed are 1 to {LARGEST}")
    letters = []
    for symbol, value in SYMBOLS:
        count, number = divmod(number, value)
        letters.append(symbol * count)
    return "".join(letters)


def read(text):
    """The number of a numeral, in letters of either case.

    Raises:
        ValueError: it is none.
    """
    letters = text.strip().upper()
    for letter in letters:
        if letter not in VALUES:
            raise ValueError(f"{letter!r} in {text!r} is no numeral")
    return sum(VALUES[letter] for letter in letters)
