"""Requests to HTTP servers, and checks of what they answer.

A server may be another program than the expected one, broken or overloaded. A
request has one deadline for the whole answer and one bound of its size, and
every number is checked where it enters.
"""

import functools
import http.client
import io
import json
import numbers
import reprlib
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from rl_reason.base import errors

SHORT = 1 << 20  # bytes of an answer without tokens
PER_TOKEN = 1 << 10  # bytes that each token may add to an answer
PIECE = 1 << 16  # bytes that are read at once
WORDS = 200  # characters of an answer that an error shows
LOWEST = -1e4  # nats; vLLM returns -9999 for a probability of 0
ROUNDING = 1e-3  # nats above 0 that rounding may cause


class Fault(Exception):
  """An answer that no expected server gives; the message is one line."""


class Refused(OSError):
  """An answer with the status of an error.

  Attributes:
    status: of HTTP.
  """

  def __init__(self, status: int, message: str):
    super().__init__(f"{status}: {message}")
    self.status = status


# --- requests -----------------------------------------------------------------


def ask(
    url: str,
    body: Any = None,
    *,
    headers: Mapping[str, str],
    seconds: float,
    tokens: int = 0,
) -> Any:
  """The JSON of an answer; None for an answer without a body.

  Args:
    url: of the route.
    body: of a POST, sent as JSON; None for a GET.
    headers: of the request.
    seconds: deadline of the whole answer.
    tokens: number of tokens that the answer describes, which bounds its size.

  Raises:
    Refused: the server answers with an error, or with another address.
    OSError: the server is not reached, or its answer is not complete in time,
      or is not JSON.
    Fault: the answer is too long, or has NaN or infinite numbers.
  """
  end, most = time.monotonic() + seconds, SHORT + PER_TOKEN * tokens
  make = functools.partial(_connection, end, most)
  opener = urllib.request.build_opener(
      _Http(make), _Https(make), _WithoutRedirects
  )
  data = None if body is None else json.dumps(body).encode()
  request = urllib.request.Request(url, data, dict(headers))
  try:
    try:
      with opener.open(request, timeout=seconds) as answer:
        how = answer.headers.get("Content-Encoding", "identity")
        if how.lower() not in ("", "identity"):
          raise Fault(f"the answer is compressed ({how:.40}), unlike requests")
        text = _read(answer)
    except urllib.error.HTTPError as e:
      with e:
        raise Refused(e.code, _detail(e)) from None
  except TimeoutError:
    raise _late(seconds) from None
  except urllib.error.URLError as e:
    if isinstance(e.reason, TimeoutError):
      raise _late(seconds) from None
    raise OSError(errors.one_line(e)) from None
  except (http.client.HTTPException, ValueError) as e:
    why = errors.one_line(e)[:WORDS]
    raise OSError(f"not an answer of HTTP ({why})") from None
  if not text.strip():
    return None
  try:
    return json.loads(
        text, parse_constant=_not_a_number, object_pairs_hook=_object
    )
  except (ValueError, RecursionError) as e:
    raise OSError(
        f"the answer is not JSON: {reprlib.repr(text)}"
        f" ({errors.one_line(e)[:WORDS]})"
    ) from None


def _late(seconds: float) -> OSError:
  return TimeoutError(f"no complete answer within {seconds:g} seconds")


def _not_a_number(text: str) -> float:
  raise Fault(f"the answer has the number {text}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) < len(pairs):
    names = [name for name, _ in pairs]
    twice = next(x for x in names if names.count(x) > 1)
    raise Fault(f"the answer has {twice[:WORDS]!r} twice in one object")
  return found


def _read(answer: http.client.HTTPResponse) -> bytes:
  """The body in pieces: one piece may have any announced length."""
  pieces = []
  while piece := answer.read(PIECE):
    pieces.append(piece)
  if answer.length:
    raise OSError(f"the answer ends {answer.length:,} bytes too early")
  return b"".join(pieces)


def _detail(e: urllib.error.HTTPError) -> str:
  """The message of an error response, or its reason."""
  if place := e.headers.get("Location"):
    return f"the server moves the route to {place:.200}: give that address"
  try:
    text = e.read(PIECE).decode(errors="replace")
  except (OSError, http.client.HTTPException, ValueError):
    text = ""
  try:
    text = json.loads(text)["error"]["message"]
  except (ValueError, KeyError, TypeError, RecursionError):
    pass
  return " ".join(str(text).split())[:WORDS] or str(e.reason)[:WORDS]


class _Bounded(io.RawIOBase):
  """The bytes of a socket until a deadline, up to a number."""

  def __init__(self, sock: Any, end: float, most: int):
    self._sock, self._raw = sock, sock.makefile("rb", buffering=0)
    self._end, self._most, self._left = end, most, most

  def readable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    self._sock.settimeout(_left(self._end))
    count = self._raw.readinto(buffer)
    self._left -= count
    if self._left < 0:
      raise Fault(f"the answer has more than {self._most:,} bytes")
    return count

  def close(self) -> None:
    self._raw.close()
    super().close()


def _left(end: float) -> float:
  """Seconds until a deadline.

  Raises:
    TimeoutError: it has passed.
  """
  if (left := end - time.monotonic()) <= 0:
    raise TimeoutError
  return left


def _connection(
    end: float, most: int, kind: type[http.client.HTTPConnection]
) -> type[http.client.HTTPConnection]:
  """A kind of connection with a deadline and a bound of what it reads."""

  class Answer(http.client.HTTPResponse):
    """Reads from a `_Bounded`."""

    def __init__(self, sock, *args, **options):
      super().__init__(sock, *args, **options)
      self.fp.close()
      self.fp = io.BufferedReader(_Bounded(sock, end, most))

  class Connection(kind):  # type: ignore[misc, valid-type]
    """Connects and sends until the deadline."""

    response_class = Answer

    def connect(self):
      self.timeout = _left(end)
      super().connect()

    def send(self, data):
      if self.sock is not None:
        self.sock.settimeout(_left(end))
      super().send(data)

  return Connection


class _Http(urllib.request.HTTPHandler):

  def __init__(self, make):
    super().__init__()
    self._make = make

  def http_open(self, req):
    return self.do_open(self._make(http.client.HTTPConnection), req)


class _Https(urllib.request.HTTPSHandler):

  def __init__(self, make):
    super().__init__(context=_context())
    self._make = make

  def https_open(self, req):
    kind = self._make(http.client.HTTPSConnection)
    return self.do_open(kind, req, context=_context())


class _WithoutRedirects(urllib.request.HTTPRedirectHandler):
  """A key is sent to no other address."""

  def redirect_request(self, *_):
    return None


@functools.cache
def _context() -> ssl.SSLContext:
  context = ssl.create_default_context()
  context.set_alpn_protocols(["http/1.1"])
  return context


# --- checks -------------------------------------------------------------------


def get(found: Any, *path: str | int) -> Any:
  """What an answer has at a path of names and indices.

  Raises:
    Fault: there is nothing.
  """
  for n, key in enumerate(path):
    kind: Any = Mapping if isinstance(key, str) else list
    try:
      if not isinstance(found, kind):
        raise KeyError
      found = found[key]
    except (KeyError, IndexError):
      where = ".".join(map(str, path[: n + 1]))
      raise Fault(f"the answer has no {where}") from None
  return found


def choice(answer: Any) -> Any:
  """The only choice of an answer in OpenAI's form.

  Raises:
    Fault: there is another number of them, or an error beside them.
  """
  if isinstance(answer, Mapping) and answer.get("error"):
    raise Fault(f"the server says {reprlib.repr(answer['error'])}")
  found = get(answer, "choices", 0)
  if len(answer["choices"]) > 1:
    raise Fault(
        f"the answer has {len(answer['choices'])} choices in place of 1"
    )
  if isinstance(found, Mapping):
    index(found.get("index", 0), 1)
  return found


def log_probs(found: Any) -> list[float]:
  """Log-probs of tokens.

  Raises:
    Fault: one of them is not a log-prob.
  """
  return _checked(found, numbers.Real, "a log-prob", LOWEST, ROUNDING)


def token_ids(found: Any, vocab: int) -> list[int]:
  """Ids of tokens.

  Raises:
    Fault: one of them is not an id below `vocab`.
  """
  return _checked(found, numbers.Integral, "a token id", 0, vocab - 1)


def index(found: Any, count: int) -> int:
  """An index below `count`.

  Raises:
    Fault: it is not one.
  """
  return _checked([found], numbers.Integral, "an index", 0, count - 1)[0]


def texts(found: Any) -> list[str]:
  """A list of texts.

  Raises:
    Fault: it is not one.
  """
  return _checked(found, str, "a text")


def _checked(found: Any, kind: type, what: str, *bounds: float) -> list:
  """A list whose entries have a type, and lie between two bounds."""
  if hasattr(found, "tolist"):  # of NumPy
    found = found.tolist()
  if not isinstance(found, list | tuple):
    raise Fault(f"{reprlib.repr(found)} is no list with {what} per entry")
  types = set(map(type, found))
  wrong = {x for x in types if x is bool or not issubclass(x, kind)}
  for n, x in enumerate(found):
    if type(x) in wrong or (bounds and not bounds[0] <= x <= bounds[1]):
      between = f" from {bounds[0]:g} to {bounds[1]:g}" if bounds else ""
      raise Fault(
          f"entry {n} of {len(found)} is {reprlib.repr(x)}, not {what}{between}"
      )
  return list(found)
