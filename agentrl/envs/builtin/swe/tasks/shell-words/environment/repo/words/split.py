"""Splitting, as a POSIX shell does it before it expands anything."""

from enum import Enum, auto


class State(Enum):
    BETWEEN = auto()
    WORD = auto()
    SINGLE = auto()
    DOUBLE = auto()


SPECIAL = '"\\$`'


def split(line):
    """The words of a line.

    Raises:
        ValueError: a quotation mark is left open, or the line ends in a backslash.
    """
    words, word, state = [], [], State.BETWEEN
    characters = iter(line)
    for char in characters:
        if state is State.SINGLE:
            if char == "'":
                state = State.WORD
            else:
                word.append(char)
        elif state is State.DOUBLE:
            if char == '"':
                state = State.WORD
            elif char == "\\":
                word.append(_escaped(characters))
            else:
                word.append(char)
        elif char.isspace():
            if word:
                words.append("".join(word))
            word, state = [], State.BETWEEN
        elif char == "#" and state is State.BETWEEN:
            break
        elif char == "'":
            state = State.SINGLE
        elif char == '"':
            state = State.DOUBLE
        else:
            word.append(_escaped(characters) if char == "\\" else char)
            state = State.WORD
    if state in (State.SINGLE, State.DOUBLE):
        raise ValueError("a quotation mark is open")
    if word:
        words.append("".join(word))
    return words


def _escaped(characters):
    char = next(characters, None)
    if char is None:
        raise ValueError("a backslash at the end")
    return char
