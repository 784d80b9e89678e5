"""A few built-in problems in MBPP's layout, so that `env=code` runs without a file."""

from __future__ import annotations

from typing import Any

PROBLEMS: list[dict[str, Any]] = [
    {
        "task_id": "own-1",
        "text": "Write a function that returns the sum of the digits of a whole number, whatever its sign.",
        "code": "def digit_sum(number):\n    return sum(int(digit) for digit in str(abs(number)))\n",
        "test_list": ["assert digit_sum(123) == 6", "assert digit_sum(-45) == 9", "assert digit_sum(0) == 0"],
    },
    {
        "task_id": "own-2",
        "text": "Write a function that removes repeated items from a list and keeps the first of each, in order.",
        "code": "def without_repeats(items):\n    return list(dict.fromkeys(items))\n",
        "test_list": [
            "assert without_repeats([3, 1, 3, 2, 1]) == [3, 1, 2]",
            "assert without_repeats([]) == []",
            "assert without_repeats(['b', 'a', 'b']) == ['b', 'a']",
        ],
    },
    {
        "task_id": "own-3",
        "text": "Write a function that counts the vowels (a, e, i, o, u) of a text, in either case.",
        "code": "def vowels(text):\n    return sum(letter in 'aeiou' for letter in text.lower())\n",
        "test_list": ["assert vowels('Education') == 5", "assert vowels('RHYTHM') == 0", "assert vowels('') == 0"],
    },
    {
        "task_id": "own-4",
        "text": "Write a function that says which years from a first to a last one (both included) are leap years.",
        "code": (
            "def leap_years(first, last):\n"
            "    return [y for y in range(first, last + 1) if y % 4 == 0 and (y % 100 or y % 400 == 0)]\n"
        ),
        "test_list": [
            "assert leap_years(1999, 2005) == [2000, 2004]",
            "assert leap_years(1899, 1903) == []",
            "assert leap_years(2096, 2104) == [2096, 2104]",
        ],
    },
    {
        "task_id": "own-5",
        "text": "Write a function that turns a list of pairs into lists of second parts by first part.",
        "code": (
            "def grouped(pairs):\n    groups = {}\n    for key, value in pairs:\n"
            "        groups.setdefault(key, []).append(value)\n    return groups\n"
        ),
        "test_list": [
            "assert grouped([('a', 1), ('b', 2), ('a', 3)]) == {'a': [1, 3], 'b': [2]}",
            "assert grouped([]) == {}",
            "assert grouped([(0, 'x')]) == {0: ['x']}",
        ],
    },
    {
        "task_id": "own-6",
        "text": "Write a function that gives the median of a list of numbers, and None of an empty one.",
        "code": (
            "def median(numbers):\n    if not numbers:\n        return None\n    ordered = sorted(numbers)\n"
            "    middle = len(ordered) // 2\n    if len(ordered) % 2:\n        return ordered[middle]\n"
            "    return (ordered[middle - 1] + ordered[middle]) / 2\n"
        ),
        "test_list": [
            "assert median([3, 1, 2]) == 2",
            "assert math.isclose(median([4, 1, 2, 3]), 2.5)",
            "assert median([]) is None",
        ],
        "test_imports": ["import math"],
    },
    {
        "task_id": "own-7",
        "text": "Write a function that says whether the brackets ()[]{} of a text are balanced.",
        "code": (
            "def balanced(text):\n    open_ones = []\n    pairs = {')': '(', ']': '[', '}': '{'}\n"
            "    for sign in text:\n        if sign in '([{':\n            open_ones.append(sign)\n"
            "        elif sign in pairs and (not open_ones or open_ones.pop() != pairs[sign]):\n"
            "            return False\n    return not open_ones\n"
        ),
        "test_list": [
            "assert balanced('a(b[c]{d})') is True",
            "assert balanced('(]') is False",
            "assert balanced('(') is False",
            "assert balanced(')(') is False",
        ],
    },
    {
        "task_id": "own-8",
        "text": "Write a function that sums the areas of rectangles; each is a Box(width, height), a class to write.",
        "code": (
            "class Box:\n    def __init__(self, width, height):\n        self.width, self.height = width, height\n\n"
            "def area(boxes):\n    return sum(box.width * box.height for box in boxes)\n"
        ),
        "test_setup_code": "square = Box(2, 2)",
        "test_list": [
            "assert area([Box(1, 2), square]) == 6",
            "assert area([]) == 0",
            "assert area([Box(3, 5)]) == 15",
        ],
    },
]
