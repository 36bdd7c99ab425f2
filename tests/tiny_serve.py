"""An engine of a tiny model, shared by the tests of the server."""

import contextlib
import threading

import jax
import tiny

from rl_reason.devices import device_mesh, sharding
from rl_reason.monitoring import display
from rl_reason.serve import engine as engine_lib
from rl_reason.serve.device_programs import Programs

_COMPILED: dict = {}  # of each kind of engine: tests share the programs


def make_engine(slots=4, max_waiting=64, beside=None, seed=0, **change):
  """An engine that does not run yet."""
  mesh = device_mesh.make_mesh(devices=jax.devices()[:1])
  programs = Programs(
      **tiny.SAMPLER
      | dict(
          eos=(tiny.TOK.eos_token_id,),
          prompts=3,  # fewer than slots: prompts are replaced
          slots=slots,
          max_prompt=tiny.P,
          max_tokens=tiny.T,
      )
      | change
  )
  params = sharding.put(mesh, tiny.params(seed))
  engine = engine_lib.Engine(
      params, programs, mesh, display.Display(False), max_waiting, beside
  )
  engine._compiled = _COMPILED.setdefault(programs, {})
  return engine


@contextlib.contextmanager
def running(several=False, **options):
  """An engine in a thread of its own; two with other weights if `several`."""
  engine, end = make_engine(**options), threading.Event()
  engines = [engine]
  if several:
    engines.append(make_engine(beside=engine, seed=1, **options))
  alive = lambda: not end.is_set()  # noqa: E731
  thread = threading.Thread(target=engine_lib.run, args=(engines, alive))
  thread.start()
  try:
    yield engines if several else engine
  finally:
    end.set()
    thread.join()
