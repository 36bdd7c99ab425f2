"""The serve stage: the policy of a work directory, or of model.path, over HTTP.

The main thread decodes, and a second thread answers requests. After SIGTERM the
server answers open requests for up to `serve.grace` seconds, and ends.
"""

import contextlib
import gc
import math
import os
import socket
import threading
import time

import jax
import uvicorn

from rl_reason.base.errors import ConfigError, RunError
from rl_reason.data import tokenizer
from rl_reason.devices import axes, sharding
from rl_reason.monitoring.display import Display
from rl_reason.serve import (
    app as app_lib,
    connections,
    engine as engine_lib,
    feedback,
    filters,
    liveness,
    requirements,
    second_policy,
)
from rl_reason.serve.device_programs import Programs
from rl_reason.serve.engine import Engine
from rl_reason.stages import trained_parameters
from rl_reason.stages.session import Session

FEW = (1, 8)  # numbers of slots for a server that is not busy
LATE = 10.0  # seconds after which a server that does not end is killed
LAST_WORDS = 1.0  # seconds to answer clients after the engine has ended


def run(c, session: Session, which: str) -> None:
  """Serves `trained_parameters.policy(c, which)` until SIGTERM.

  Raises:
    ConfigError: the mesh, the address or the filter does not work here.
    RunError: there is no such checkpoint.
  """
  model, tok, output = session.model, session.tok, session.output
  workdir, _, display, stop = output
  say = display.say
  if sharding.num_shards(model.mesh, "batch") > 1 or jax.process_count() > 1:
    raise ConfigError(
        f"mesh.data = {c.mesh.data}: a server has one shard of the batch: set"
        f" {axes.fields('batch', 'and')} to 1, and start a server for each"
        " mesh.tensor devices"
    )
  place = bind(c.serve.host, c.serve.port)
  serving, words = make_engine(c, session, which)
  say(f"serving {words}")
  name = c.serve.name or workdir.absolute().name
  about, beside = {name: words}, {}
  second = second_policy.find(c, which, name, model, output, tok, serving)
  if second is not None:
    weights = session.engine.weights(second.params, c.rollout.weights)
    about[second.name] = second.about
    beside[second.name] = Engine(
        weights, serving.programs, model.mesh, display, c.serve.queue, serving
    )
    say(f"beside it, as the model {second.name!r}: {second.about}")
  del second
  engines = [serving, *beside.values()]
  for one in engines:
    one.compile()
  # All objects so far live as long as the server. Without `freeze`, each
  # garbage collection would visit them again, and stop all threads meanwhile.
  gc.collect()
  gc.freeze()
  watchdog = liveness.Watchdog(serving, c.serve.stall, say)
  server = app_lib.Server(
      serving,
      tok,
      name=name,
      timeout=c.serve.timeout,
      rules=filters.load(c.serve.filter),
      ratings=feedback.Feedback(workdir, say),
      silent=lambda: watchdog.silent,
      say=say,
      stall=c.serve.stall,
      beside=beside,
      about=about,
  )
  application = app_lib.app(
      server,
      key=os.environ.get(requirements.KEY, ""),
      hosts={*requirements.LOCAL, c.serve.host},
      max_body=c.serve.max_body,
  )
  with (
      place,
      contextlib.closing(watchdog),
      contextlib.closing(server),
      liveness.killed_after(stop, c.serve.grace + LAST_WORDS + LATE),
  ):
    answer(application, engines, place, display, stop, c.serve)


def make_engine(c, session: Session, which: str) -> tuple[Engine, str]:
  """The engine of a policy, and a description of the policy.

  Raises:
    RunError: there is no such checkpoint.
  """
  model, tok, output = session.model, session.tok, session.output
  params, *_, about = trained_parameters.policy(
      c, which, model=model, output=output
  )
  programs = Programs(
      cfg=model.cfg,
      prompts=c.serve.slots,
      slots=c.serve.slots,
      max_prompt=c.serve.max_prompt or c.rollout.max_prompt,
      max_tokens=c.serve.max_tokens or c.rollout.max_tokens,
      eos=tokenizer.response_ends(tok).ids,
      pad=tok.pad_token_id,
      cache=c.rollout.cache,
      widths=widths(c.serve.slots),
  )
  weights = session.engine.weights(params, c.rollout.weights)
  del params
  display = output.display
  serving = Engine(weights, programs, model.mesh, display, c.serve.queue)
  return serving, about


def widths(slots: int) -> tuple[int, ...]:
  """Smaller numbers of slots to compile decode programs for; see `Programs`.

  Only for CPUs: on an accelerator a decode step of one slot takes as long as a
  step of all slots.
  """
  few = FEW if jax.default_backend() == "cpu" else ()
  return tuple(x for x in few if x < slots)


def bind(host: str, port: int) -> socket.socket:
  """A socket that is bound to an address and does not listen yet.

  Raises:
    ConfigError: the address is in use, or does not belong to this machine.
  """
  try:
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    place = socket.socket(family, kind, proto)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(address)
  except OSError as e:
    raise ConfigError(
        f"serve.port = {port}: cannot listen at {host} ({e.strerror}): end the"
        " program that does, or choose another serve.port or serve.host"
    ) from None
  return place


def answer(
    application: app_lib.Guard,
    engines: list[Engine],
    place: socket.socket,
    display: Display,
    stop: threading.Event,
    config,
) -> None:
  """Answers requests until `stop` is set, and for `serve.grace` after it.

  Raises:
    RunError: the thread of the HTTP server has ended unexpectedly.
  """
  server = connections.Listener(
      uvicorn.Config(
          application,
          log_level="error",
          access_log=False,
          lifespan="off",
          ws="none",
          timeout_graceful_shutdown=math.ceil(config.grace) + 1,
          ssl_certfile=config.certificate or None,
          ssl_keyfile=config.private_key or None,
      ),
      connections.most(),
      config.receive,
  )
  thread = threading.Thread(
      target=server.run, kwargs=dict(sockets=[place]), daemon=True
  )
  host, port = place.getsockname()[:2]
  shown = f"[{host}]" if ":" in host else host
  scheme = "https" if config.certificate else "http"
  thread.start()
  while thread.is_alive() and not server.started:
    time.sleep(0.01)
  display.close()  # no progress lines: a server may be idle for days
  if server.started:
    where = f"{scheme}://{shown}:{port}"
    display.say(f"listening at {where}/v1; SIGTERM or Ctrl-C ends")
    display.say(f"talk to it in a browser: {where}/")
  end = math.inf

  def total(name: str) -> int:
    return sum(getattr(engine, name) for engine in engines)

  def alive() -> bool:
    nonlocal end
    now = time.monotonic()
    if stop.is_set() and not server.should_exit:
      server.should_exit, end = True, now + config.grace
      display.say(
          f"stopping: {total('running') + total('waiting')} responses have"
          f" {config.grace:g} seconds (serve.grace) to end; a second signal"
          " ends at once"
      )
    display.progressed = now  # an idle server is not stuck
    if total("running"):
      rate = sum(engine.rate() for engine in engines)
      display.doing(
          f"serving: {total('running')} responses decode, {total('waiting')}"
          f" wait, {rate:.0f} tokens a second"
      )
    return thread.is_alive() and now < end

  engine_lib.run(engines, alive)
  if not stop.is_set():
    raise RunError("the HTTP server has ended unexpectedly; see its error")
  thread.join(LAST_WORDS)
  display.say(f"stopped; {total('tokens'):,} tokens were sampled")
