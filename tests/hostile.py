"""HTTP servers on this machine that answer what no server should."""

import contextlib
import json
import socket
import threading
import time

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def answer(body, status=b"200 OK", head=b""):
  """A whole response with a body of bytes, or of JSON."""
  data = body if isinstance(body, bytes) else json.dumps(body).encode()
  length = b"Content-Length: %d\r\n" % len(data)
  return b"HTTP/1.1 " + status + b"\r\n" + head + length + b"\r\n" + data


def endless(start, piece):
  """Sends the same bytes for ever."""
  yield start
  while True:
    yield piece


def drip(data, seconds=0.05):
  """Sends one byte at a time, and then blanks for ever."""
  for number in range(10**9):
    time.sleep(seconds)
    yield data[number : number + 1] or b" "


@contextlib.contextmanager
def serving(respond):
  """The address of a server.

  Args:
    respond: (path, body) -> bytes, or an iterator of bytes.
  """
  place = socket.create_server(("127.0.0.1", 0))

  def one(client):
    with contextlib.suppress(OSError), client:
      request = client.makefile("rb")
      path = request.readline().split()[1].decode()
      length = 0
      while (line := request.readline()).strip():
        if line.lower().startswith(b"content-length:"):
          length = int(line.split(b":")[1])
      found = respond(path, json.loads(request.read(length) or b"null"))
      for piece in [found] if isinstance(found, bytes) else found:
        client.sendall(piece)

  def accept():
    with contextlib.suppress(OSError):
      while True:
        client, _ = place.accept()
        threading.Thread(target=one, args=(client,), daemon=True).start()

  threading.Thread(target=accept, daemon=True).start()
  try:
    yield f"http://127.0.0.1:{place.getsockname()[1]}"
  finally:
    place.shutdown(socket.SHUT_RDWR)
    place.close()
