"""Records: lists of integers and texts."""

from packed.varint import Truncated, decode, encode


def write(records):
    """The bytes of some records."""
    out = bytearray()
    for record in records:
        out += encode(len(record))
        for field in record:
            out += _field(field)
    return bytes(out)


def _field(value):
    if isinstance(value, int):
        return b"u" + encode(value)
    data = value.encode()
    return b"s" + encode(len(data)) + data


def read(data):
    """The records, one after the other.

    Raises:
        Truncated: after the last whole record, where the data end inside another.
        ValueError: a field has an unknown tag.
    """
    records, at = [], 0
    while at < len(data):
        record, at = _record(data, at)
        records.append(record)
    return iter(records)


def _record(data, at):
    count, at = decode(data, at)
    record = []
    for _ in range(count):
        if at >= len(data):
            raise Truncated("the data end inside a record")
        tag = data[at : at + 1]
        number, at = decode(data, at + 1)
        if tag == b"u":
            record.append(number)
        elif tag == b"s":
            if at + number > len(data):
                raise Truncated("the data end inside a text")
            record.append(data[at : at + number].decode())
            at += number
        else:
            raise ValueError(f"an unknown tag {tag!r}")
    return record, at
