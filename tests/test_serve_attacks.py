"""Requests that try to stop the server, sent to one that listens."""

import concurrent.futures
import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import threading
import time

import jax
import pytest
import tiny
from tiny_serve import make_engine

from bench.serving import attacks
from rl_reason.base import errors
from rl_reason.checks import config_files
from rl_reason.monitoring.display import Display
from rl_reason.serve import feedback, requirements

app = pytest.importorskip("rl_reason.serve.app")
command = pytest.importorskip("rl_reason.serve.server")
connections = pytest.importorskip("rl_reason.serve.connections")

MOST = 64  # responses
SILENCE = 2.0  # seconds; other tests share the processors
RECEIVE = 0.5  # seconds of a request
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
HALF = b"Content-Length: 9\r\nContent-Type: application/json\r\n\r\n{"


class Screen(Display):
  """Keeps its lines, and calls a function with each."""

  def __init__(self, see):
    super().__init__(False)
    self.lines, self._see = [], see

  def say(self, text):
    """Keeps a line."""
    self._see(text)
    self.lines.append(text)


@contextlib.contextmanager
def listening(tmp_path, see=lambda line: None, change=None, engine=None):
  """A server of `command.answer`."""
  c = config_files.read("configs/serve.py").serve
  c.update(dict(receive=RECEIVE) | (change or {}))
  engine = engine or make_engine(max_waiting=MOST)
  engine.compile()
  screen, stop = Screen(see), threading.Event()
  server = app.Server(
      engine,
      tiny.TOK,
      name="tiny",
      timeout=c.timeout,
      rules=[],
      ratings=feedback.Feedback(tmp_path, screen.say),
      silent=lambda: 0,
      say=screen.say,
  )
  guarded = app.app(
      server, key="", hosts=requirements.LOCAL, max_body=c.max_body
  )
  with command.bind("127.0.0.1", 0) as place:
    screen.address = place.getsockname()
    args = guarded, [engine], place, screen, stop, c
    screen.thread = threading.Thread(target=command.answer, args=args)
    screen.stop = stop
    screen.thread.start()
    try:
      end = time.monotonic() + 60
      while not screen.lines and screen.thread.is_alive():
        assert time.monotonic() < end
        time.sleep(0.01)
      yield screen
    finally:
      stop.set()
      screen.thread.join()


def ask(address, body, connection=http.client.HTTPConnection, **options):
  client = connection(*address, timeout=60, **options)
  with contextlib.closing(client):
    heads = {"Content-Type": "application/json"}
    client.request("POST", "/v1/completions", json.dumps(body), heads)
    answer = client.getresponse()
    return answer.status, json.loads(answer.read())


@pytest.mark.slow
def test_no_request_silences_health(tmp_path):
  """Each attack; an honest request is answered after it."""
  found = attacks.attacks(most=MOST, limit=tiny.P, open_=64)
  # Without those whose first request compiles for seconds.
  found = [x for x in found if "alternatives" not in x.name]
  assert len(found) > 30
  honest = dict(prompt="1+1=", max_tokens=2)
  with listening(tmp_path) as server:
    for attack in found:
      with attacks.Watch(server.address) as watch:
        seconds = 10 if attack.status else 0.1
        got = attacks.strike(attack, server.address, seconds)
      assert watch.longest < SILENCE, attack.name
      if attack.status:
        assert got.split()[1:2] == [str(attack.status).encode()], attack.name
    status, answer = ask(server.address, honest)
  assert status == 200 and answer["usage"]["completion_tokens"]


def read(place):
  place.settimeout(10)
  with contextlib.suppress(ConnectionError):
    return place.recv(10_000)
  return b""


def test_who_never_ends_a_request_leaves_for_others(tmp_path, monkeypatch):
  """More of them than places; each ends by the deadline."""
  monkeypatch.setattr(connections, "most", lambda: 8)
  with listening(tmp_path) as server, contextlib.ExitStack() as stack:
    slow = []
    for number in range(24):
      place = stack.enter_context(socket.create_connection(server.address))
      place.sendall(HEAD + HALF * (number % 2))
      slow.append(place)
      time.sleep(0.005)
    begun = time.monotonic()
    assert ask(server.address, dict(prompt="1+1="))[0] == 200
    assert time.monotonic() - begun < RECEIVE + SILENCE
    answers = [read(place).split()[1:2] for place in slow]
    assert answers[0] == [b"503"] and answers[-2:] == [[b"408"]] * 2
    assert answers.count([b"408"]) >= 7
    assert time.monotonic() - begun < RECEIVE + SILENCE


def test_sigterm_gives_a_grace_and_waits_for_no_client(tmp_path):
  """Responses have a while to end; requests that are not complete have none."""
  engine = make_engine(max_waiting=MOST)
  sample = engine._read
  engine._read = lambda *x: (time.sleep(0.2), sample(*x))  # 10 seconds in all
  answers = []
  change = dict(grace=0.5, receive=600.0)
  with listening(tmp_path, change=change, engine=engine) as server:
    half = socket.create_connection(server.address)
    half.sendall(HEAD + HALF)
    body = dict(prompt="1+1=", n=MOST, max_tokens=tiny.T)
    client = threading.Thread(
        target=lambda: answers.append(ask(server.address, body))
    )
    client.start()
    while not engine.running:
      time.sleep(0.01)
    begun = time.monotonic()
    server.stop.set()
    server.thread.join(30)
    client.join(30)
    seconds = time.monotonic() - begun
    assert read(half).split()[1:2] == [b"503"]
    half.close()
  [(status, answer)] = answers
  assert status == 503 and "stopping" in answer["error"]["message"]
  assert 0.5 <= seconds < 0.5 + SILENCE
  assert "serve.grace" in server.lines[-2] and "stopped" in server.lines[-1]


def test_listening_is_said_once_connections_are_taken(tmp_path, monkeypatch):
  """A client may wait for the line and then connect."""
  startup = connections.Listener.startup

  async def slow(*args, **options):
    time.sleep(0.3)
    await startup(*args, **options)

  monkeypatch.setattr(connections.Listener, "startup", slow)
  taken = []

  def see(line):
    address = line.split("http://")[-1].split("/v1")[0].split(":")
    if "listening at" in line:
      with socket.create_connection(address, 5):
        taken.append(line)

  with listening(tmp_path, see):
    assert len(taken) == 1


def test_tls_by_two_files(tmp_path):
  """A client that trusts the certificate, and the check before anything."""
  paths = [str(tmp_path / name) for name in ("cert.pem", "key.pem")]
  subprocess.run(
      [
          *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes"),
          *("-out", paths[0], "-keyout", paths[1], "-days", "2"),
          *("-subj", "/CN=localhost"),
          *("-addext", "subjectAltName=IP:127.0.0.1"),
      ],
      check=True,
      capture_output=True,
  )
  c = config_files.read("configs/serve.py")
  c.serve.certificate = paths[0]
  with pytest.raises(errors.ConfigError, match="serve.private_key = ''"):
    requirements.check(c)
  c.serve.private_key = paths[1]
  requirements.check(c)
  fields = dict(certificate=paths[0], private_key=paths[1])
  trusted = ssl.create_default_context(cafile=paths[0])
  with listening(tmp_path, change=fields) as server:
    assert "https://127.0.0.1" in server.lines[0]
    how = dict(connection=http.client.HTTPSConnection, context=trusted)
    assert ask(server.address, dict(prompt="1+1="), **how)[0] == 200
    with pytest.raises((OSError, http.client.HTTPException)):
      ask(server.address, dict(prompt="1+1="))


@pytest.mark.parametrize("name", ["prefill", "score"])
def test_a_long_prompt_takes_little_memory(name):
  """The scores of one tile of attention at a time, not of all of them."""
  engine = make_engine(max_prompt=1024)
  with jax.set_mesh(engine._mesh):
    engine._queue, engine._slots = engine._call("empty")
    tokens = (2,) * 1024
    if name == "prefill":
      engine._prefill(tokens, 0)
    else:
      engine._score(tokens, 1.0, concurrent.futures.Future())
  (program,) = [
      x for (x_name, _), x in engine._compiled.items() if x_name == name
  ]
  memory = program._compiled.memory_analysis().temp_size_in_bytes
  tile = 4 * tiny.CFG.heads * 1024 * 128  # bytes of its scores
  assert memory < 4 * tile  # more than 10 with all tiles at a time
