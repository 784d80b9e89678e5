"""The gateway's errors: one exception, and how each protocol writes it.

The codes are chosen with the clients' retry rules in mind: OpenAI's and Anthropic's packages repeat 408, 409,
429 and 5xx by themselves. So an error that a repetition can't solve never uses those: a sealed session is 410.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from agentrl.errors import AgentRLError, Blame, DeadlineExceeded, InvalidInput, SessionClosed, TokenBudgetExceeded

Style = Literal["openai", "anthropic", "google"]

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
"""No failure here is Anthropic's `overloaded_error`, for which clients change the model or wait for long."""
_GOOGLE_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    410: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


@dataclass
class ApiError(Exception):
    """An HTTP answer that is an error.

    Attributes:
        status: the HTTP status.
        message: what is wrong, in words for whoever wrote the client.
        code: a short name of it, for programs.
        param: the parameter at fault, as a path ("messages[3].content").
        retry_after: seconds after which trying again makes sense.
    """

    status: int
    message: str
    code: str = "invalid_request"
    param: str | None = None
    retry_after: float | None = None

    def __post_init__(self) -> None:
        super().__init__(self.message)

    @property
    def headers(self) -> dict[str, str]:
        """Retry-After where there is one; `x-should-retry` says what the status leaves open."""
        headers = {"x-should-retry": "true" if self.retry_after is not None else "false"}
        if self.retry_after is not None:
            headers["retry-after"] = f"{max(1, round(self.retry_after))}"
        return headers

    def body(self, style: Style) -> dict[str, Any]:
        """The error as the protocol writes it."""
        if style == "anthropic":
            kind = _ANTHROPIC_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
            details = {"error_code": self.code}
            return {"type": "error", "error": {"type": kind, "message": self.message, "details": details}}
        if style == "google":
            reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": self.code, "domain": "agentrl"}
            status = _GOOGLE_STATUSES.get(self.status, "INVALID_ARGUMENT")
            return {"error": {"code": self.status, "message": self.message, "status": status, "details": [reason]}}
        kind = _OPENAI_TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def api_error_for(error: BaseException) -> ApiError:
    """Return the error that a client gets for a failure inside the gateway."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TokenBudgetExceeded):
        return ApiError(400, str(error), "context_length_exceeded", "messages")
    if isinstance(error, SessionClosed):
        return ApiError(410, str(error), "session_closed")
    if isinstance(error, DeadlineExceeded):
        return ApiError(503, str(error), "deadline_exceeded", retry_after=1)
    if isinstance(error, InvalidInput):
        return ApiError(400, str(error))
    if isinstance(error, AgentRLError) and error.blame is Blame.INFRA:
        return ApiError(503, f"{type(error).__name__}: {error}", "engine_error", retry_after=1)
    return ApiError(500, f"{type(error).__name__}: {error}", "internal_error")


def refuse_parameter(param: str, why: str = "") -> ApiError:
    """A parameter that exists, but is not supported: refused by name, since without it the text would be another."""
    return ApiError(400, f"{param!r} is not supported{': ' + why if why else ''}", "unsupported_parameter", param)
