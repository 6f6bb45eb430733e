"""What a client is told when a request is refused or fails."""

from __future__ import annotations

from pyflow.errors import PyflowError, ResourceError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
}
_MOST_CHARS = 500


class ApiError(Exception):
    """A request ends in this."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        """param: the field of the request that is at fault. retry_after: seconds after which
        another try may succeed."""
        super().__init__(message)
        self.status = status
        self.message = message[:_MOST_CHARS]
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def kind(self) -> str:
        return _TYPES.get(self.status, "invalid_request_error")

    @property
    def headers(self) -> dict[str, str]:
        found = {}
        if self.retry_after is not None:
            found["retry-after"] = str(self.retry_after)
        if self.status == 500:
            found["x-should-retry"] = "false"
        if self.status in {408, 413}:
            found["connection"] = "close"  # else the rest of the body would be read without end
        if self.status == 401:
            found["www-authenticate"] = "Bearer"
        return found

    def openai(self) -> dict[str, object]:
        """As OpenAI's API spells it."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def anthropic(self) -> dict[str, object]:
        """As the Messages API spells it."""
        kind = "api_error" if self.status == 500 else self.kind
        return {"type": "error", "error": {"type": kind, "message": self.message}}


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param)


def too_long(n_prompt: int, n_ctx: int, param: str) -> ApiError:
    return ApiError(
        400,
        f"{param}: the prompt has {n_prompt:,} tokens, the context of a request holds {n_ctx:,} "
        "with the answer; shorten the prompt, or start the server with a larger --ctx-per-request",
        param=param,
        code="context_length_exceeded",
    )


def of_request(error: PyflowError, param: str | None = None) -> ApiError:
    """What the request asks for cannot be done. The parameter that the message begins with, if it
    begins with one, is at fault."""
    if isinstance(error, ResourceError):
        return ApiError(503, str(error), retry_after=1)
    name, colon, _ = str(error).partition(":")
    if param is None and colon and name.isidentifier():
        param = name
    return bad_request(str(error), param)


def failed(error: BaseException) -> ApiError:
    """The answer broke off through no fault of the client."""
    return ApiError(500, f"the answer could not be written: {error}", code="engine_error")
