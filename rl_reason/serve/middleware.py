"""Checks before all routes: API key, origin and size of a request; counts.

Without a key, everyone who can reach the server can use it, including any web
page in a browser on this machine. Such a page can send requests to any name of
this machine, but it cannot hide this name or its own origin, and it cannot send
JSON without permission.
"""

import asyncio
import hmac
import urllib.parse
from collections.abc import Collection

from rl_reason.serve.prometheus import Metrics
from rl_reason.serve.protocol import ApiError

FAILED = "an error of the server: its screen has the traceback"
OPEN = ("/", "/health")  # routes that need no key
ROUTES = (
    *("/", "/health", "/metrics", "/v1/models", "/feedback"),
    *("/v1/completions", "/v1/chat/completions", "/inference/v1/generate"),
)


class Guard:
  """Checks key or host, origin and size of each request; counts answers.

  Args:
    app: the ASGI application.
    key: API key that clients must send; '' for none.
    hosts: accepted host names and origins if there is no key.
    max_body: maximum bytes of a request.
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
    """Handles a request by the ASGI interface."""
    if scope["type"] != "http":
      await self._app(scope, receive, send)
      return
    size, begun = 0, False

    async def counted():
      nonlocal size
      message = await receive()
      size += len(message.get("body", b""))
      if size > self._max_body:
        raise self._too_large()
      return message

    async def noted(message):
      nonlocal begun
      begun = True
      if message["type"] == "http.response.start":
        path = scope["path"] if scope["path"] in ROUTES else "other"
        self._metrics.requests.labels(path, str(message["status"])).inc()
      await send(message)

    error = self._refusal(scope)
    try:
      await (error.reply() if error else self._app)(scope, counted, noted)
    except (Exception, asyncio.CancelledError, GeneratorExit):
      raise
    # A panic of `tokenizers`, or sys.exit in the user's code.
    except BaseException as e:
      if not begun:
        await ApiError(500, FAILED).reply()(scope, counted, noted)
      raise RuntimeError(f"{scope['path']}: {type(e).__name__}") from e

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
              " key is for this machine only; set a key, or use one of these"
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
  """The host name of an origin, or of '//' and a Host header."""
  try:
    return urllib.parse.urlsplit(url.decode("ascii")).hostname
  except ValueError:
    return None
