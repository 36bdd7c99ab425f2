"""Errors as OpenAI's clients expect them."""

from starlette.responses import JSONResponse


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
    kind = "invalid_request_error" if status < 500 else "server_error"
    self.body = dict(
        error=dict(message=message, type=kind, param=param, code=code)
    )
    self._status, self._headers = status, headers

  def reply(self) -> JSONResponse:
    """The answer."""
    return JSONResponse(self.body, self._status, self._headers)
