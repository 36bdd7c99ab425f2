"""HTTP connections with deadlines and a maximum number.

Slow clients must not exhaust the server. Therefore the head and the body of a
request have a deadline, and if there are too many connections, the connection
that has waited longest for its client is closed. A client that does not read
its answer has the same deadline.
"""

import asyncio
import collections
import contextlib
import json
import os
import resource
import socket
import sys

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rl_reason.serve.protocol import ApiError

HEAD = 16 << 10  # maximum bytes of the head of a request
BACKLOG = 128  # connections that wait in the kernel and are accepted at once
RESERVED = 64  # file descriptors for the rest of the program
LEAST = 8  # minimum number of connections
LINGER = 1.0  # seconds for the last answer to reach its client


def most() -> int:
  """Maximum number of connections, by the limit of open files."""
  limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  if limit == resource.RLIM_INFINITY:
    return sys.maxsize
  with contextlib.suppress(OSError):  # not on every system
    return max(LEAST, limit - len(os.listdir("/dev/fd")) - BACKLOG - RESERVED)
  return max(LEAST, limit // 2)


class Listener(uvicorn.Server):
  """An HTTP server that limits the number and the duration of connections.

  Attributes:
    waiting: connections whose request is not complete, oldest first.

  Args:
    config: config of uvicorn.
    most: maximum number of connections.
    seconds: deadline to send a request, and to read a part of an answer.
  """

  def __init__(self, config: uvicorn.Config, most: int, seconds: float):
    super().__init__(config)
    self.most, self.seconds = most, seconds
    self.waiting: collections.OrderedDict[Connection, None]
    self.waiting = collections.OrderedDict()

  async def startup(self, sockets: list[socket.socket] | None = None) -> None:
    """Listens on the sockets."""
    loop = asyncio.get_running_loop()
    self.servers = [
        await loop.create_server(
            lambda: Connection(self),
            sock=sock,
            backlog=BACKLOG,
            ssl=self.config.ssl,
            ssl_handshake_timeout=self.seconds if self.config.ssl else None,
        )
        for sock in sockets or []
    ]
    self.started = True


class Connection(H11Protocol):
  """One connection of a `Listener`."""

  def __init__(self, listener: Listener):
    super().__init__(listener.config, listener.server_state, {})
    self.conn = _Parser(h11.SERVER, HEAD)
    self._listener = listener
    self._late: asyncio.TimerHandle | None = None  # deadline of a request
    self._stuck: asyncio.TimerHandle | None = None  # deadline of an answer
    self._idle = False  # between two requests

  def connection_made(self, transport) -> None:
    """Closes the connection that has waited longest if there are too many."""
    super().connection_made(transport)
    self._watch()
    if len(self.connections) > self._listener.most:
      next(iter(self._listener.waiting), self).refuse(
          503, "too many connections: try again later"
      )

  def connection_lost(self, exc: Exception | None) -> None:
    """Frees the place of the connection."""
    self._stop_watch()
    self.resume_writing()
    super().connection_lost(exc)

  def data_received(self, data: bytes) -> None:
    """Parses the data in pieces, so that the limit of the head holds."""
    if self._idle:
      self._idle = False
      self._stop_watch()
    for first in range(0, len(data), HEAD):
      if self.transport.is_closing():
        return
      super().data_received(data[first : first + HEAD])
    self._watch()

  def on_response_complete(self) -> None:
    """Waits for the next request."""
    self._idle = True
    super().on_response_complete()
    self._watch()

  def pause_writing(self) -> None:
    """Starts the deadline of a client that does not read."""
    super().pause_writing()
    self._stuck = self.loop.call_later(
        self._listener.seconds, self.transport.abort
    )

  def resume_writing(self) -> None:
    """Ends the deadline, since the client reads."""
    if self._stuck:
      self._stuck.cancel()
      self._stuck = None
    super().resume_writing()

  def shutdown(self) -> None:
    """Ends the connection, after its answer if its request is complete."""
    if self.cycle and not self.cycle.response_complete and self._waits:
      self.refuse(503, "the server is stopping")
    else:
      super().shutdown()

  @property
  def _waits(self) -> bool:
    """Whether the client must send more data."""
    cycle = self.cycle
    return cycle is None or cycle.response_complete or cycle.more_body

  def _watch(self) -> None:
    if not self._waits or self.transport.is_closing():
      self._stop_watch()
    elif not self._late:
      seconds = self._listener.seconds
      self._listener.waiting[self] = None
      self._late = self.loop.call_later(
          seconds,
          self.refuse,
          408,
          f"the request was not complete after {seconds:g} seconds"
          " (serve.receive)",
      )

  def _stop_watch(self) -> None:
    if self._late:
      self._late.cancel()
      self._late = None
    self._listener.waiting.pop(self, None)

  def send_400_response(self, msg: str) -> None:
    """Refuses data that is not a valid HTTP request."""
    error = sys.exception()
    status = getattr(error, "error_status_hint", 400)
    self.refuse(status, str(error or msg))

  def refuse(self, status: int, message: str) -> None:
    """Answers with an error and closes the connection."""
    self._stop_watch()
    if self.cycle:  # further output of the application is dropped
      self.cycle.disconnected = True
      self.cycle.message_event.set()
    error = ApiError(status, message)
    events = (
        h11.Response(
            status_code=status,
            headers=[
                ("content-type", "application/json"),
                ("connection", "close"),
            ],
        ),
        h11.Data(data=json.dumps(error.body).encode()),
        h11.EndOfMessage(),
    )
    # Fails in the middle of an answer, and after the last one.
    with contextlib.suppress(h11.LocalProtocolError):
      for event in events:
        self.transport.write(self.conn.send(event))
    self.transport.close()
    self.loop.call_later(LINGER, self.transport.abort)


class _Parser(h11.Connection):
  """Refuses chunked bodies, since every chunk costs a Python call."""

  def next_event(self):
    """As in h11."""
    event = super().next_event()
    if isinstance(event, h11.Request):
      if any(name == b"transfer-encoding" for name, _ in event.headers):
        raise h11.RemoteProtocolError(
            "a body needs a Content-Length", error_status_hint=411
        )
    return event
