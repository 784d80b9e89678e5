"""Counting in chunks, so that files may be of any size."""

import codecs
from dataclasses import dataclass

CHUNK = 4096


@dataclass
class Counts:
    lines: int = 0
    words: int = 0
    characters: int = 0
    bytes: int = 0
    longest: int = 0

    def __add__(self, other):
        return Counts(
            self.lines + other.lines,
            self.words + other.words,
            self.characters + other.characters,
            self.bytes + other.bytes,
            max(self.longest, other.longest),
        )


def count(stream, chunk=CHUNK):
    """The counts of a binary stream of UTF-8 text."""
    counts = Counts()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    inside, width = False, 0
    while data := stream.read(chunk):
        counts.bytes += len(data)
        counts.characters += len(data)
        text = decoder.decode(data)
        for char in text:
            if char == "\n":
                counts.lines += 1
                counts.longest, width = max(counts.longest, width), 0
            else:
                width += 1
            if char.isspace():
                inside = False
            elif not inside:
                inside = True
                counts.words += 1
    counts.longest = max(counts.longest, width)
    return counts
