"""Errors as OpenAI's clients expect them."""

from starlette.responses import JSONResponse

from rl_reason.monitoring.display import excerpt

SHOWN = 200  # characters of the head and of the tail of a long message


class ApiError(Exception):
  """An answer that says what is wrong with a request, and the remedy.

  Attributes:
    body: {"error": {...}}.
  """

  def __init__(
      self,
      status: int,
      message: str,
      *,
      param: str | None = None,
      code: str | None = None,
      headers: dict[str, str] | None = None,
  ):
    super().__init__(message)
    message, param = excerpt(message, SHOWN), param and excerpt(param, SHOWN)
    kind = "invalid_request_error" if status < 500 else "server_error"
    self.body = dict(
        error=dict(message=message, type=kind, param=param, code=code)
    )
    self._status, self._headers = status, headers

  def reply(self) -> JSONResponse:
    """The answer."""
    return JSONResponse(self.body, self._status, self._headers)
