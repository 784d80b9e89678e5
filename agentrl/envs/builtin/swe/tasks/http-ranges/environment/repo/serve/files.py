"""Responses of status, headers and body."""

from serve.ranges import Unsatisfiable, content_range, parse

BOUNDARY = "part-of-a-file"


def respond(data, range_header=None, kind="application/octet-stream"):
    """The response to a request for a file.

    Returns: status, headers and body.
    """
    headers = {"Accept-Ranges": "bytes", "Content-Type": kind}
    try:
        ranges = parse(range_header, len(data))
    except Unsatisfiable:
        return 416, headers, b""
    if ranges is None:
        return 200, {**headers, "Content-Length": str(len(data))}, data
    if len(ranges) == 1:
        start, stop = ranges[0]
        body = data[start:stop]
        headers["Content-Range"] = content_range(start, stop, len(data))
    else:
        body = b"".join(_part(data, start, stop, kind) for start, stop in ranges) + f"--{BOUNDARY}--\r\n".encode()
        headers["Content-Type"] = f"multipart/byteranges; boundary={BOUNDARY}"
    return 206, {**headers, "Content-Length": str(len(body))}, body


def _part(data, start, stop, kind):
    head = f"--{BOUNDARY}\r\nContent-Type: {kind}\r\nContent-Range: {content_range(start, stop, len(data))}\r\n\r\n"
    return head.encode() + data[start:stop] + b"\r\n"
