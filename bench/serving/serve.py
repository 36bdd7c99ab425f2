"""Throughput and latency of the server and of transformers' `generate`.

  python -m bench.peers --install trl    # once; its torch is used
  python -m bench.serving.serve

All systems have the same model, prompts and limits. Each system is an HTTP
server; clients send one request after the other (a closed loop), and the turns
of the systems alternate. `one by one` corresponds to a script around
`generate`; `batches` generates all waiting requests as one padded batch.
"""

import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence

import numpy as np

from bench import harness, results

DIMS, PROMPT, RESPONSE, REQUESTS = "4m", 32, 128, 64
CLIENTS, TURNS, SLOTS = (1, 32), 3, 32
OURS = "rl_reason"
SYSTEMS = {
    OURS: None,
    "transformers, one by one": 1,
    "transformers, batches": SLOTS,
}


def command(name: str, python: pathlib.Path, scratch: str) -> list[str]:
  """Returns the command of a server, which prints where it listens."""
  weights, batch = harness.weights(DIMS), SYSTEMS[name]
  if batch is not None:
    script = str(results.ROOT / "bench" / "peers" / "generate_server.py")
    return [str(python), script, str(weights), str(batch)]
  return ours(weights, scratch, PROMPT, RESPONSE)


def ours(
    weights: pathlib.Path, scratch: str, prompt: int, response: int
) -> list[str]:
  """Returns the command of our server, with limits in tokens."""
  return [
      *(sys.executable, "-m", "rl_reason.main", "--stage=serve"),
      *("--config=configs/serve.py", f"--config.model.path={weights}"),
      f"--config.rollout.max_prompt={prompt}",
      f"--config.rollout.max_tokens={response}",
      *(f"--config.serve.slots={SLOTS}", "--config.serve.port=0"),
      f"--workdir={scratch}",
  ]


class Server:
  """A server process; `ask` sends it a request and returns tokens, seconds.

  Attributes:
    address: host and port.
    pid: of the process.

  Args:
    command: starts it, and prints where it listens.
  """

  def __init__(self, command: list[str]):
    log = results.RUNS / "bench" / "serve.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as errors:
      self._process = subprocess.Popen(
          command,
          cwd=results.ROOT,
          stdout=subprocess.PIPE,
          stderr=errors,
          text=True,
      )
    assert self._process.stdout
    for line in self._process.stdout:
      if "listening at " in line:
        self._url = line.split("listening at ")[1].split("/v1")[0]
        host, _, port = self._url.rpartition("//")[2].rpartition(":")
        self.address, self.pid = (host, int(port)), self._process.pid
        return
    raise RuntimeError(f"{command[0]} died, see {log}")

  def ask(self, request: dict) -> tuple[int, float]:
    """Sends a request; returns the tokens of the response, and seconds."""
    start = time.monotonic()
    call = urllib.request.Request(
        f"{self._url}/v1/completions",
        json.dumps(request).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(call) as answer:
      tokens = json.load(answer)["usage"]["completion_tokens"]
    return tokens, time.monotonic() - start

  def close(self) -> None:
    """Ends the process."""
    self._process.terminate()
    self._process.wait(60)


def requests() -> list[dict]:
  """Returns requests whose limits have a heavy tail."""
  rng = np.random.default_rng(0)
  vocab = harness.shape(DIMS)["vocab"]
  limits = harness.lengths(REQUESTS, RESPONSE, RESPONSE / 5)
  return [
      dict(
          prompt=rng.integers(harness.FIRST, vocab, PROMPT).tolist(),
          max_tokens=limit,
          temperature=1.0,
          seed=number,
      )
      for number, limit in enumerate(limits)
  ]


def turn(server: Server, clients: int, todo: list[dict]) -> dict:
  """Returns tokens, seconds and latencies with `clients` concurrent clients."""
  start = time.monotonic()
  with concurrent.futures.ThreadPoolExecutor(clients) as pool:
    answers = list(pool.map(server.ask, todo))
  return dict(
      tokens=sum(tokens for tokens, _ in answers),
      seconds=time.monotonic() - start,
      latencies=[seconds for _, seconds in answers],
  )


def turns_of(python: pathlib.Path, numbers: Sequence[int] = CLIENTS) -> dict:
  """Returns the turns of all systems by number of clients."""
  todo = requests()
  turns: dict[str, dict] = {
      name: {clients: [] for clients in numbers} for name in SYSTEMS
  }
  load = results.load()
  with tempfile.TemporaryDirectory() as scratch:
    servers = {x: Server(command(x, python, scratch)) for x in SYSTEMS}
    try:
      for server in servers.values():
        turn(server, max(numbers), todo)  # warm
      for number in range(TURNS):
        for clients in numbers:
          for name, server in servers.items():
            turns[name][clients].append(turn(server, clients, todo))
            last = turns[name][clients][-1]
            print(f"{number} {name}, {clients}: {last['seconds']:.1f} s")
    finally:
      for server in servers.values():
        server.close()
  return dict(
      turns=turns,
      loads=[load, results.load()],
      environment=results.environment(load),
  )


def cells(name: str, clients: int, turns: list[dict]) -> tuple:
  """Returns a row of the table."""
  rates = [x["tokens"] / x["seconds"] for x in turns]
  latencies = [1000 * y for x in turns for y in x["latencies"]]
  p50, p99 = np.percentile(latencies, [50, 99])
  rate = (
      f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"
  )
  return name, clients, rate, f"{p50:.0f}", f"{p99:.0f}"


def page(result: dict) -> list[str]:
  """Returns lines of Markdown."""
  first, last = result["loads"]
  lines = [
      "| server | clients | tokens a second | p50, ms | p99, ms |",
      "|---|---|---|---|---|",
  ]
  for clients in next(iter(result["turns"].values())):
    for name, turns in result["turns"].items():
      lines.append(results.row(*cells(name, int(clients), turns[clients])))
  return results.document(
      "Serving",
      _finding(result["turns"]),
      "How many tokens a second does the server give, to one client and to"
      f" many? {REQUESTS} requests of {PROMPT} tokens and up to {RESPONSE}"
      " (log-normal), by clients that send one after the other; random weights"
      f" of 4M parameters, float32; {TURNS} alternating turns. Tokens a second:"
      f" median (least to most). The load of the machine was {first} at the"
      f" beginning and {last} at the end; the servers themselves are part of"
      " the second.",
      lines,
      made="Made by `python -m bench.serving.serve`.",
      versions=results.footer(result),
  )


def _finding(turns: dict) -> str:
  """Tokens a second relative to the fastest other server, by clients."""
  ours, *others = turns
  words = []
  for clients in turns[ours]:
    rates = {
        name: statistics.median(x["tokens"] / x["seconds"] for x in y[clients])
        for name, y in turns.items()
    }
    if not others:
      words.append(f"{rates[ours]:,.0f} tokens a second ({clients} clients)")
      continue
    best = max(others, key=rates.__getitem__)
    p50 = [
        np.median([y for x in turns[name][clients] for y in x["latencies"]])
        for name in (ours, best)
    ]
    words.append(
        f"{rates[ours] / rates[best]:.1f} times the tokens a second of `{best}`"
        f" at {p50[0] / p50[1]:.0%} of the median latency ({clients} client"
        f"{'s' * (int(clients) > 1)})"
    )
  return f"The server of {ours} gives {results.joined(words)}."


def flags(parser) -> None:
  """The flags."""
  usual = harness.ENVIRONMENTS / "trl" / "bin" / "python"
  parser.add_argument(
      "--python", type=pathlib.Path, default=usual, help="that has torch"
  )
  parser.add_argument(
      "--clients",
      type=int,
      help="only this number of clients; nothing is written",
  )


def measure(given) -> dict:
  """Measures all systems.

  Raises:
    SystemExit: --clients is given, and the page is printed.
  """
  if given.clients:
    print("\n".join(page(turns_of(given.python, [given.clients]))))
    raise SystemExit
  return turns_of(given.python)


if __name__ == "__main__":
  results.main(__doc__, "bench_serve", measure, page, flags=flags)
