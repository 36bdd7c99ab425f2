"""Connections of the server: deadlines, a bound on their number, an end.

A connection whose request is not complete waits for its client, and nobody
should be able to make the server wait: head and body have a deadline, and where
all places are taken, the connection that has waited longest leaves. A client
that does not read its answer has the same time.
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

HEAD = 16 << 10  # bytes of the head of a request
BACKLOG = 128  # connections that the kernel holds, and that are taken at once
RESERVED = 64  # files that the rest of the program may open
LEAST = 8  # connections, however few files may be open
LINGER = 1.0  # seconds that a last answer has to reach its client


def most() -> int:
  """Connections that this process can have, by its limit of open files."""
  limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  if limit == resource.RLIM_INFINITY:
    return sys.maxsize
  with contextlib.suppress(OSError):  # not on every system
    return max(LEAST, limit - len(os.listdir("/dev/fd")) - BACKLOG - RESERVED)
  return max(LEAST, limit // 2)


class Listener(uvicorn.Server):
  """A server of HTTP whose connections are bounded in number and in time.

  Attributes:
    waiting: connections whose request is not complete, the oldest first.

  Args:
    config: of uvicorn.
    most: connections.
    seconds: of a connection to send a request, and to read a part of an answer.
  """

  def __init__(self, config: uvicorn.Config, most: int, seconds: float):
    super().__init__(config)
    self.most, self.seconds = most, seconds
    self.waiting: collections.OrderedDict[Connection, None]
    self.waiting = collections.OrderedDict()

  async def startup(self, sockets: list[socket.socket] | None = None) -> None:
    """Listens at some sockets."""
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
    self._late: asyncio.TimerHandle | None = None  # of a request
    self._stuck: asyncio.TimerHandle | None = None  # of an answer
    self._idle = False  # between two requests

  def connection_made(self, transport) -> None:
    """Takes a place, if need be from the connection that waits longest."""
    super().connection_made(transport)
    self._watch()
    if len(self.connections) > self._listener.most:
      next(iter(self._listener.waiting), self).refuse(
          503, "too many connections: try again later"
      )

  def connection_lost(self, exc: Exception | None) -> None:
    """Gives the place back."""
    self._stop_watch()
    self.resume_writing()
    super().connection_lost(exc)

  def data_received(self, data: bytes) -> None:
    """Parses, in pieces that keep a head below its limit."""
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
    """The client does not read: only for a while."""
    super().pause_writing()
    self._stuck = self.loop.call_later(
        self._listener.seconds, self.transport.abort
    )

  def resume_writing(self) -> None:
    """The client reads."""
    if self._stuck:
      self._stuck.cancel()
      self._stuck = None
    super().resume_writing()

  def shutdown(self) -> None:
    """Ends, after its answer if its request is complete."""
    if self.cycle and not self.cycle.response_complete and self._waits:
      self.refuse(503, "the server is stopping")
    else:
      super().shutdown()

  @property
  def _waits(self) -> bool:
    """Whether the client has to send something."""
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
    """What is no request of HTTP, or none that is taken."""
    error = sys.exception()
    status = getattr(error, "error_status_hint", 400)
    self.refuse(status, str(error or msg))

  def refuse(self, status: int, message: str) -> None:
    """Answers with an error, and ends."""
    self._stop_watch()
    if self.cycle:  # what the application still sends goes nowhere
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
    # Not in the middle of an answer, nor after a last one.
    with contextlib.suppress(h11.LocalProtocolError):
      for event in events:
        self.transport.write(self.conn.send(event))
    self.transport.close()
    self.loop.call_later(LINGER, self.transport.abort)


class _Parser(h11.Connection):
  """Refuses bodies in chunks: each of a megabyte of them is a Python call."""

  def next_event(self):
    """As in h11."""
    event = super().next_event()
    if isinstance(event, h11.Request):
      if any(name == b"transfer-encoding" for name, _ in event.headers):
        raise h11.RemoteProtocolError(
            "a body needs its Content-Length", error_status_hint=411
        )
    return event
