"""Lines of text out of pieces of bytes."""

import re

END = re.compile("\r\n|\n|\r")


class LineReader:
    """Feed it pieces, and it gives back the lines that are complete."""

    def __init__(self):
        self._text = ""

    def feed(self, data):
        """Take a piece; the lines that it completes."""
        self._text += data.decode("utf-8", "replace")
        *lines, self._text = END.split(self._text)
        return lines

    def finish(self):
        """The end of the stream: what is left, if anything."""
        left, self._text = self._text, ""
        return [left] if left else []
