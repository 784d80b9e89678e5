"""Requests to the servers that a run or a user starts: names, pages of other sites, and bodies.

Of `HOSTS` the payload is a Host header, of `ORIGINS` an Origin header. Of `SEARCHES` and `TURNS` it is a Python
expression: a request's body, to the retrieval server and to the gateway.
"""

from __future__ import annotations

from tests.redteam.attack import Attack, attacks

REBOUND = "a site whose name was pointed at this machine is answered"
FOREIGN = "a page of another site is answered"
SEARCHED = "it is searched for, or answered with anything but 400"
FAILED = "it raises anything but the error that is answered with the client's mistake"

HOSTS = attacks(
    REBOUND,
    [
        *("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example:8000", "evil-localhost"),
        *("127.0.0.1@evil.example", "evil.example@127.0.0.1", "evil.example#127.0.0.1", "evil.example/127.0.0.1"),
        *("localhost evil.example", "localhost,evil.example", "localhost:80.evil.example", "[evil.example]"),
        *("127.1", "0x7f.0.0.1", "2130706433", ":8000", "*", ".", "localhost:80:80"),
    ],
)
ORIGINS = attacks(
    FOREIGN,
    [
        *("http://evil.example", "null", "http://127.0.0.1:8001", "https://127.0.0.1:8000.evil", "http://127.0.0.1"),
        *("http://127.0.0.1:8000/", "http://127.0.0.1:8000@evil.example", "file://", "ws://127.0.0.1:8000"),
        *("http://127.0.0.1:8000, http://evil.example", "http://localhost:8000", "chrome-extension://abcdef"),
        *("http://evil.example http://127.0.0.1:8000", "127.0.0.1:8000", "http://127.0.0.1:8000.", "*"),
    ],
)

SEARCHES = [
    Attack("nothing", """b"" """, SEARCHED),
    Attack("bytes that are no text", """b"\\xff\\xfe" """, SEARCHED),
    Attack("nesting beyond any stack", """b"[" * 100_000""", SEARCHED),
    Attack("half a character", """b'{"queries": ["\\\\ud800"]}'""", SEARCHED),
    Attack("a text for a list", """b'{"queries": "a"}'""", SEARCHED),
    Attack("an object for a list", """b'{"queries": {"0": "a"}}'""", SEARCHED),
    Attack("more queries than allowed", """b'{"queries": [' + b'"a",' * 1024 + b'"a"]}'""", SEARCHED),
    Attack("a query longer than allowed", """b'{"queries": ["' + b"a" * 10_001 + b'"]}'""", SEARCHED),
    Attack("a body larger than allowed", """b" " * (4 << 20) + b'{"queries": ["a"]}'""", SEARCHED),
    Attack("more results than allowed", """b'{"queries": ["a"], "topk": 201}'""", SEARCHED),
    Attack("fewer results than none", """b'{"queries": ["a"], "topk": -1}'""", SEARCHED),
    Attack("a number beyond all", """b'{"queries": ["a"], "topk": ' + b"9" * 400 + b"}" """, SEARCHED),
    Attack("half a result", """b'{"queries": ["a"], "topk": 1.5}'""", SEARCHED),
]

TURNS = [
    Attack("nothing", """b"" """, FAILED),
    Attack("a list", """b"[]" """, FAILED),
    Attack("bytes that are no text", """b"\\xff\\xfe" """, FAILED),
    Attack("an object that is cut", """b'{"model": "m", '""", FAILED),
    Attack("objects beyond any stack", """b'{"a":' * 100_000""", FAILED),
    Attack("lists beyond any stack", """b'{"a": ' + b"[" * 100_000""", FAILED),
    Attack("messages beyond any stack", """b'{"messages": [' + b"[" * 100_000 + b"]" * 100_001 + b"}" """, FAILED),
    Attack("parameters nested too deep", """b'{"a": ' + b"[" * 150 + b"]" * 150 + b"}" """, FAILED),
    Attack("messages that are cut", """b'{"messages": ['""", FAILED),
    Attack("messages that are no JSON", """b'{"messages": [NaN]}'""", FAILED),
    Attack("half a character", """b'{"a": "\\\\ud800"}'""", FAILED),
    Attack("half a character in a message", """b'{"messages": ["\\\\ud800"]}'""", FAILED),
]
