"""What a server needs before it starts: libraries, a key, a filter."""

import importlib.util
import os
import ssl

from rl_reason.base.errors import ConfigError
from rl_reason.serve import filters


def check(c) -> None:
  """Checks what a server needs: libraries, a key, rules.

  Raises:
    ConfigError: one of them is missing.
  """
  for name in ("starlette", "uvicorn", "pydantic", "prometheus_client"):
    if importlib.util.find_spec(name) is None:
      raise ConfigError(
          f"--stage=serve needs {name}: pip install 'rl_reason[serve]'"
      )
  if c.serve.host not in LOCAL and not os.environ.get(KEY):
    raise ConfigError(
        f"serve.host = {c.serve.host!r}: others can reach it, and there is no"
        f" key: set {KEY} in the environment, or use '127.0.0.1'"
    )
  key = os.environ.get(KEY, "")
  if not key.isascii() or len(key.split()) > 1 or key != key.strip():
    raise ConfigError(
        f"{KEY}: has blanks or characters that no header has: set it to a"
        " random text of letters and digits, as of `openssl rand -hex 32`"
    )
  if c.serve.certificate or c.serve.private_key:
    try:
      context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
      context.load_cert_chain(c.serve.certificate, c.serve.private_key)
    except OSError as e:  # of ssl, too
      raise ConfigError(
          f"serve.certificate = {c.serve.certificate!r}, serve.private_key ="
          f" {c.serve.private_key!r}: are no certificate and its key ({e}):"
          " give two files of PEM, or leave both out"
      ) from None
  try:
    filters.load(c.serve.filter)
  except ValueError as e:
    raise ConfigError(f"serve.filter = {c.serve.filter!r}: {e}") from None


# The environment variable with the key of --stage=serve: a config is no place
# for secrets.
KEY = "RL_REASON_API_KEY"


LOCAL = ("127.0.0.1", "::1", "localhost")  # hosts that nobody else can reach
