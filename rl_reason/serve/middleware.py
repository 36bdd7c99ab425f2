"""Checks before all routes: who asks, the size of a request, counts.

Without a key the server answers whoever reaches it, and a browser reaches it
for every page that it shows. A page can send a request to any name that leads
here, but not hide the name, nor its own origin, nor send JSON unasked.
"""

import hmac
import urllib.parse
from collections.abc import Collection

from rl_reason.serve.prometheus import Metrics
from rl_reason.serve.protocol import ApiError

OPEN = ("/health",)  # routes without a key
ROUTES = (
    *("/health", "/metrics", "/v1/models", "/feedback"),
    *("/v1/completions", "/v1/chat/completions", "/inference/v1/generate"),
)


class Guard:
  """Checks the key, or the names, and the size of each request; counts answers.

  Args:
    app: what is guarded.
    key: that clients have to give; '' for none.
    hosts: without a key, names by which this server may be asked, and origins
      that may ask it.
    max_body: bytes.
    metrics: counts answers by route and status.
  """

  def __init__(
      self,
      app,
      *,
      key: str,
      hosts: Collection[str],
      max_body: int,
      metrics: Metrics,
  ):
    self._app, self._metrics, self._hosts = app, metrics, frozenset(hosts)
    self._key, self._max_body = f"Bearer {key}".encode(), max_body
    self._open = not key

  async def __call__(self, scope, receive, send) -> None:
    """The interface of ASGI."""
    if scope["type"] != "http":
      await self._app(scope, receive, send)
      return
    size = 0

    async def counted():
      nonlocal size
      message = await receive()
      size += len(message.get("body", b""))
      if size > self._max_body:
        raise self._too_large()
      return message

    async def noted(message):
      if message["type"] == "http.response.start":
        path = scope["path"] if scope["path"] in ROUTES else "other"
        self._metrics.requests.labels(path, str(message["status"])).inc()
      await send(message)

    error = self._refusal(scope)
    await (error.reply() if error else self._app)(scope, counted, noted)

  def _refusal(self, scope) -> ApiError | None:
    headers = dict(scope["headers"])
    if not self._open:
      given = headers.get(b"authorization", b"")
      if scope["path"] not in OPEN and not hmac.compare_digest(
          given, self._key
      ):
        return ApiError(
            401, "the key is missing or wrong", code="invalid_api_key"
        )
    else:
      origins = [x for name, x in scope["headers"] if name == b"origin"]
      for name, asked in (
          ("Host", b"//" + headers.get(b"host", b"")),
          *(("Origin", x) for x in origins),
      ):
        if _host(asked) not in self._hosts:
          return ApiError(
              403,
              f"{name}: {asked.decode(errors='replace').lstrip('/')} is not"
              f" one of {', '.join(sorted(self._hosts))}: a server without a"
              " key is for this machine alone; set a key, or use one of these"
              " names",
              code="forbidden",
          )
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if scope["method"] == "POST" and kind != b"application/json":
      return ApiError(
          415, "the Content-Type of a request must be application/json"
      )
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length) > self._max_body:
      return self._too_large()
    return None

  def _too_large(self) -> ApiError:
    return ApiError(
        413,
        f"the request has more than {self._max_body:,} bytes (serve.max_body)",
        code="request_too_large",
    )


def _host(url: bytes) -> str | None:
  """The host of an origin, or of '//' and a Host."""
  try:
    return urllib.parse.urlsplit(url.decode("ascii")).hostname
  except ValueError:
    return None
