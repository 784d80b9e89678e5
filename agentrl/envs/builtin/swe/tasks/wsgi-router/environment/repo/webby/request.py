"""What comes in and what goes out."""

from dataclasses import dataclass, field

REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}


@dataclass
class Request:
    method: str
    path: str
    values: dict = field(default_factory=dict)


@dataclass
class Response:
    body: str = ""
    status: int = 200
    headers: dict = field(default_factory=dict)

    @property
    def line(self):
        return f"{self.status} {REASONS.get(self.status, 'Unknown')}"
