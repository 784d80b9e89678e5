"""A state machine that reads one character at a time.

START    at the beginning of a field
PLAIN    inside a field without quotation marks
QUOTED   inside quotation marks
CLOSING  after a quotation mark inside quotation marks: the end of the field, or half of a doubled one
"""

from enum import Enum, auto


class SheetError(ValueError):
    """Text that is no record."""


class State(Enum):
    START = auto()
    PLAIN = auto()
    QUOTED = auto()
    CLOSING = auto()


class Machine:
    def __init__(self, comma=","):
        self.comma = comma
        self.rows = []
        self.row = []
        self.field = []
        self.state = State.START

    def feed(self, text):
        text = text.replace("\r\n", "\n")
        for char in text:
            getattr(self, "_" + self.state.name.lower())(char)

    def finish(self):
        if self.state is State.QUOTED:
            raise SheetError("the text ends inside quotation marks")
        if self.field or self.row or self.state is not State.START:
            self._end_row()
        return self.rows

    def _start(self, char):
        if char == '"':
            self.state = State.QUOTED
        else:
            self._plain(char)

    def _plain(self, char):
        if char == self.comma:
            self._end_field()
        elif char == "\n":
            self._end_row()
        else:
            self.field.append(char)
            self.state = State.PLAIN

    def _quoted(self, char):
        if char != '"':
            self.field.append(char)
        elif self.field and self.field[-1] == '"':
            self.state = State.QUOTED
        else:
            self.state = State.CLOSING

    def _closing(self, char):
        if char == '"':
            self.field.append('"')
            self.state = State.QUOTED
        elif char == self.comma:
            self._end_field()
        elif char == "\n":
            self._end_row()
        else:
            raise SheetError(f"{char!r} after a closing quotation mark")

    def _end_field(self):
        self.row.append("".join(self.field))
        self.field = []
        self.state = State.START

    def _end_row(self):
        self._end_field()
        if any(self.row):
            self.rows.append(self.row)
        self.row = []


def read(text, comma=","):
    """All records of a text, each a list of fields."""
    machine = Machine(comma)
    machine.feed(text)
    return machine.finish()
