"""Whether the hub answers: without a network its client tries for a minute."""

import functools
import os
import socket
import urllib.parse

SECONDS = 5.0  # for a connection


@functools.cache
def unreachable() -> str:
  """Why no connection to the hub can be made, or ''; tried once a process.

  Behind a proxy the client of the hub finds out itself.
  """
  if any(os.environ.get(x) for x in ("HTTPS_PROXY", "https_proxy")):
    return ""
  if any(os.environ.get(x) for x in ("ALL_PROXY", "all_proxy")):
    return ""
  place = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
  parts = urllib.parse.urlsplit(place)
  port = parts.port or (80 if parts.scheme == "http" else 443)
  try:
    socket.create_connection((parts.hostname, port), SECONDS).close()
  except OSError as e:
    return f"{parts.hostname} cannot be reached ({e})"
  return ""
