"""OpenAI's error object as response bytes."""

from __future__ import annotations

from exahpc.openai.body import literal


def error_body(
    message: str, type: str = "server_error", param: str | None = None, code: str | None = None
) -> bytes:
    """JSON body of an error response: {"error": {"message", "type", "param", "code"}}."""
    fields = (literal(message), literal(type), _optional(param), _optional(code))
    return b'{"error":{"message":%b,"type":%b,"param":%b,"code":%b}}' % fields


def sse_error(
    message: str, type: str = "server_error", param: str | None = None, code: str | None = None
) -> bytes:
    """The same as one event, for a stream that already started. No [DONE] follows: the answer is not complete."""
    return b"data: %b\n\n" % error_body(message, type, param, code)


def _optional(value: str | None) -> bytes:
    return b"null" if value is None else literal(value)
