"""Compiled programs on disk, in the cache directory of the user."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache as cache


@contextlib.contextmanager
def kept(say: Callable[[str], None]) -> Iterator[None]:
  """Keeps compiled programs in the user's cache: another run starts in seconds.

  Programs are native code, so none is read from a work directory, which may be
  a stranger's. A cache that the user names to JAX stays in use.
  """
  if jax.config.jax_compilation_cache_dir:
    yield
    return
  try:
    place = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    place = place if place.is_absolute() else pathlib.Path.home() / ".cache"
    place = place / "rl_reason" / "compiled"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=place).close()
    if place.stat().st_uid != os.geteuid():
      raise OSError(f"{place} is another user's")
  except (OSError, RuntimeError) as e:
    say(
        f"compiled programs are not kept ({e}): every start compiles them; set"
        " JAX_COMPILATION_CACHE_DIR to a directory of your own"
    )
    yield
    return
  fields = dict(
      jax_compilation_cache_dir=str(place),
      jax_persistent_cache_min_compile_time_secs=0.0,
  )
  before = {name: getattr(jax.config, name) for name in fields}
  for name, value in fields.items():
    jax.config.update(name, value)
  try:
    yield
  finally:
    for name, value in before.items():
      jax.config.update(name, value)
    cache.reset_cache()
