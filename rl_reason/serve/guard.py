"""What stands before all routes: the key, the size of a request, counts."""

import hmac

from rl_reason.serve.errors import ApiError
from rl_reason.serve.metrics import Metrics

OPEN = ("/health",)  # routes without a key
ROUTES = (
    *("/health", "/metrics", "/v1/models", "/feedback"),
    *("/v1/completions", "/v1/chat/completions", "/inference/v1/generate"),
)


class Guard:
  """Checks the key and the size of each request, and counts answers.

  Args:
    app: what is guarded.
    key: that clients have to give; '' for none.
    max_body: bytes.
    metrics: counts answers by route and status.
  """

  def __init__(self, app, *, key: str, max_body: int, metrics: Metrics):
    self._app, self._metrics = app, metrics
    self._key, self._max_body = f"Bearer {key}".encode(), max_body
    self._open = not key

  async def __call__(self, scope, receive, send) -> None:
    """The interface of ASGI."""
    if scope["type"] != "http":
      await self._app(scope, receive, send)
      return
    headers, size = dict(scope["headers"]), 0
    too_large = ApiError(
        413,
        f"the request has more than {self._max_body:,} bytes (serve.max_body)",
        code="request_too_large",
    )

    async def counted():
      nonlocal size
      message = await receive()
      size += len(message.get("body", b""))
      if size > self._max_body:
        raise too_large
      return message

    async def noted(message):
      if message["type"] == "http.response.start":
        path = scope["path"] if scope["path"] in ROUTES else "other"
        self._metrics.requests.labels(path, str(message["status"])).inc()
      await send(message)

    given, app = headers.get(b"authorization", b""), self._app
    if not (self._open or scope["path"] in OPEN):
      if not hmac.compare_digest(given, self._key):
        app = ApiError(
            401, "the key is missing or wrong", code="invalid_api_key"
        ).reply()
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length) > self._max_body:
      app = too_large.reply()
    await app(scope, counted, noted)
