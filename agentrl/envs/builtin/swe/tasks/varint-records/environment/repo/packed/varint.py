"""Integers of any size in as few bytes as they need."""


class Truncated(ValueError):
    """The data end in the middle of something."""


def encode(number):
    """The bytes of an integer that is not negative."""
    found = bytearray()
    while number > 0x7F or number < 0:
        found.append(number & 0x7F | 0x80)
        number = (number >> 7) & 0x1FFFFF
        if len(found) > 8:
            break
    found.append(number & 0x7F)
    return bytes(found)


def decode(data, at=0):
    """(number, where it ends)."""
    number = shift = 0
    while True:
        if at >= len(data):
            raise Truncated("the data end inside a number")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return number, at
