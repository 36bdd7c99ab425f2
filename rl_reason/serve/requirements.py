"""Checks before the server starts: libraries, API key, certificate, filter."""

import importlib.util
import os
import ssl

from rl_reason.base.errors import ConfigError
from rl_reason.serve import filters

# The environment variable with the API key of --stage=serve. Secrets do not
# belong in a config.
KEY = "RL_REASON_API_KEY"
LOCAL = ("127.0.0.1", "::1", "localhost")  # for this machine only


def check(c) -> None:
  """Checks libraries, API key, certificate and filter.

  Raises:
    ConfigError: one of them is missing or invalid.
  """
  for name in ("starlette", "uvicorn", "pydantic", "prometheus_client"):
    if importlib.util.find_spec(name) is None:
      raise ConfigError(
          f"--stage=serve needs {name}: pip install 'rl_reason[serve]'"
      )
  if c.serve.host not in LOCAL and not os.environ.get(KEY):
    raise ConfigError(
        f"serve.host = {c.serve.host!r}: other machines can reach it, and there"
        f" is no key: set {KEY} in the environment, or use '127.0.0.1'"
    )
  key = os.environ.get(KEY, "")
  if not key.isascii() or len(key.split()) > 1 or key != key.strip():
    raise ConfigError(
        f"{KEY}: has blanks or characters that a header cannot have: set it to"
        " random letters and digits, such as the output of `openssl rand -hex"
        " 32`"
    )
  if c.serve.certificate or c.serve.private_key:
    try:
      context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
      context.load_cert_chain(c.serve.certificate, c.serve.private_key)
    except OSError as e:  # of ssl, too
      raise ConfigError(
          f"serve.certificate = {c.serve.certificate!r}, serve.private_key ="
          f" {c.serve.private_key!r}: are not a certificate and its key ({e}):"
          " give two PEM files, or neither"
      ) from None
  try:
    filters.load(c.serve.filter)
  except ValueError as e:
    raise ConfigError(f"serve.filter = {c.serve.filter!r}: {e}") from None
