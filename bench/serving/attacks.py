"""Requests that try to stop a server, and the longest silence of /health.

  python -m bench.serving.attacks

Each attack runs for some seconds at most, against a server of this machine
alone, while another connection asks /health again and again. The table has the
longest time until an answer, and by how much the memory of the server grew.
"""

import argparse
import contextlib
import http.client
import json
import pathlib
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from bench import harness, results
from bench.serving import serve

MIB = 1 << 20
SECONDS = 10.0  # of an attack, at most
LIMIT = 2048  # tokens of a prompt, and of a response
OPEN = 1024  # connections of the slow attacks
PATHS = dict(
    completions="/v1/completions",
    chat="/v1/chat/completions",
    generate="/inference/v1/generate",
    feedback="/feedback",
)
Address = tuple[str, int]


class Attack(NamedTuple):
  """One attack.

  Attributes:
    name: of a line of the table.
    data: bytes that are sent; beyond a second connection, each of them.
    connections: that send them.
    reads: whether the answer is read.
    status: of the answer; 0 for any, or none.
  """

  name: str
  data: bytes
  connections: int = 1
  reads: bool = True
  status: int = 400


def request(path: str, body: bytes, *heads: str) -> bytes:
  """A request of HTTP with a body of JSON."""
  lines = [
      f"POST {path} HTTP/1.1",
      "Host: localhost",
      "Content-Type: application/json",
      *(heads or [f"Content-Length: {len(body)}"]),
  ]
  return "\r\n".join([*lines, "", ""]).encode() + body


def repeated(before: str, part: str, after: str, size: int) -> bytes:
  """JSON of a size, with many equal parts and commas between them."""
  count = (size - len(before) - len(after)) // (len(part.encode()) + 1)
  return f"{before}{','.join([part] * count)}{after}".encode()


def attacks(
    size: int = MIB, most: int = 1024, limit: int = LIMIT, open_: int = OPEN
) -> list[Attack]:
  """All attacks.

  Args:
    size: bytes that a request may have.
    most: responses that a request may have.
    limit: tokens that a prompt and a response may have.
    open_: connections of the slow attacks.
  """
  size -= 64

  def post(name: str, route: str, body, **options) -> Attack:
    if not isinstance(body, bytes):
      body = json.dumps(body).encode()
    return Attack(name, request(PATHS[route], body), **options)

  text = "1+" * (size // 2)
  numbers = ",".join(f'"{n}":1' for n in range(size // 10))
  stop = dict(prompt="1+2=", stream=True, n=4)
  tiny = b"".join(b"1\r\n \r\n" for _ in range(size))
  head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
  lists = dict(before='{"prompt":[', after="]}", size=size)
  return [
      post(
          "2,000 prompts x n = 1024",
          "completions",
          dict(prompt=["1"] * 2000, n=1024),
      ),
      post(
          "the same, max_tokens = 0",
          "completions",
          dict(prompt=["1"] * 2000, n=1024, max_tokens=0),
      ),
      post(
          "prompts of one token", "completions", repeated(part='"1"', **lists)
      ),
      post("prompts of one id", "completions", repeated(part="[1]", **lists)),
      post("empty prompts", "completions", repeated(part="[]", **lists)),
      post("one prompt of ids", "completions", repeated(part="1", **lists)),
      post("one prompt", "completions", dict(prompt=text)),
      post(
          "one prompt without a blank", "completions", dict(prompt="1" * size)
      ),
      post(
          "as many prompts as fit",
          "completions",
          repeated(part=f'"{"1+" * (size // most // 2)}"', **lists),
          status=0,
      ),
      post(
          "one stop text, in a stream",
          "completions",
          stop | dict(stop=["1" * (size - 99)]),
      ),
      post(
          "stop texts",
          "completions",
          repeated('{"prompt":"1","stop":[', '"1"', "]}", size),
      ),
      post(
          "stop ids",
          "completions",
          repeated('{"prompt":"1","n":64,"stop_token_ids":[', "9", "]}", size),
      ),
      post(
          "16 stop texts of 256 characters, in a stream",
          "completions",
          stop
          | dict(
              max_tokens=limit, stop=[f"{'1' * 254}{n:02}" for n in range(16)]
          ),
          status=200,
      ),
      post(
          "messages",
          "chat",
          repeated(
              '{"messages":[', '{"role":"user","content":"1"}', "]}", size
          ),
      ),
      post(
          "one message",
          "chat",
          dict(messages=[dict(role="user", content=text)]),
      ),
      post(
          "one message of many parts",
          "chat",
          repeated(
              '{"messages":[{"role":"user","content":[',
              '{"text":""}',
              "]}]}",
              size,
          ),
      ),
      post("lists in lists", "completions", b'{"prompt":' + b"[" * size),
      post(
          "objects in objects",
          "chat",
          b'{"messages":[' + b'{"a":' * (size // 5),
      ),
      post("objects", "chat", repeated('{"messages":[', "{}", "]}", size)),
      post("one number", "completions", b'{"max_tokens":' + b"9" * size + b"}"),
      post(
          "numbers of 4,000 digits",
          "generate",
          repeated('{"token_ids":[', "9" * 4000, "]}", size),
      ),
      post(
          "a number of 4,000 digits",
          "completions",
          b'{"prompt":"1","n":' + b"9" * 4000 + b"}",
      ),
      post(
          "logit_bias",
          "completions",
          f'{{"prompt":"1","logit_bias":{{{numbers}}}}}'.encode(),
      ),
      post("fields", "completions", f"{{{numbers}}}".encode()),
      post(
          "the name of a model",
          "completions",
          dict(prompt="1", model="m" * size),
      ),
      post(
          "the name of a field", "completions", {"f" * size: 1, "prompt": "1"}
      ),
      post("a comment", "feedback", dict(id="x", rating=1, comment="c" * size)),
      post(
          "n responses, echoed with 20 alternatives",
          "completions",
          dict(
              prompt="1+2=" * (limit // 4),
              n=most,
              echo=True,
              logprobs=20,
              max_tokens=0,
          ),
          status=0,
      ),
      post(
          "n responses of a chat with 20 alternatives",
          "chat",
          dict(
              messages=[dict(role="user", content="1+2")],
              n=most,
              logprobs=True,
              top_logprobs=20,
              max_tokens=limit,
          ),
          status=0,
      ),
      post(
          "n responses in a stream that is not read",
          "completions",
          dict(
              prompt="1+2=", n=most, stream=True, logprobs=0, max_tokens=limit
          ),
          reads=False,
          status=0,
      ),
      Attack(
          "a body in chunks of a byte",
          request(PATHS["completions"], tiny, "Transfer-Encoding: chunked"),
          status=411,
      ),
      Attack(
          "lines of a head",
          head.encode() + b"a: b\r\n" * (size // 6) + b"\r\n",
          status=0,
      ),
      Attack(
          "one line of a head",
          head.encode() + b"a: " + b"b" * size + b"\r\n\r\n",
          status=0,
      ),
      Attack(
          "10,000 requests at once",
          b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10_000,
          status=0,
      ),
      Attack("heads that never end", head.encode(), open_, status=0),
      Attack(
          "bodies that never end",
          request(PATHS["completions"], b"{", f"Content-Length: {size}"),
          open_,
          status=0,
      ),
  ]


def strike(attack: Attack, address: Address, seconds: float) -> bytes:
  """Sends an attack; returns the first bytes of the last answer.

  Args:
    attack: of `attacks`.
    address: of the server.
    seconds: to wait for an answer, and that connections stay open.
  """
  end, got = time.monotonic() + seconds, b""
  with contextlib.ExitStack() as stack:
    for number in range(attack.connections):
      place = stack.enter_context(socket.create_connection(address, seconds))
      with contextlib.suppress(OSError):  # refused before all of it was sent
        place.sendall(attack.data)
      if number % 128 == 127:
        time.sleep(0.1)  # the kernel holds no more than this many
    while attack.reads and (left := end - time.monotonic()) > 0:
      place.settimeout(left)
      with contextlib.suppress(OSError):
        if part := place.recv(1 << 20):
          got = got or part[:64]
          if attack.status and part.endswith((b"}", b"\r\n0\r\n\r\n")):
            break
          continue
      break
    else:
      time.sleep(max(0.0, end - time.monotonic()))
  return got


class Watch:
  """Asks /health in a thread.

  Attributes:
    longest: seconds until an answer, at most.
    answers: how many there were.
    grown: bytes by which the memory of a process grew, at most.

  Args:
    address: of the server.
    pid: of the process; 0: do not look.
  """

  def __init__(self, address: Address, pid: int = 0):
    self.longest, self.answers, self.grown = 0.0, 0, 0
    self._address, self._pid = address, pid
    self._begun, self._end = threading.Event(), threading.Event()
    self._thread = threading.Thread(target=self._look, daemon=True)

  def __enter__(self) -> "Watch":
    self._first = self._memory()
    self._thread.start()
    self._begun.wait()
    return self

  def __exit__(self, *_) -> None:
    self._end.set()
    self._thread.join()

  def _memory(self) -> int:
    if not self._pid:
      return 0
    fields = pathlib.Path(f"/proc/{self._pid}/statm").read_text().split()
    return int(fields[1]) * 4096

  def _look(self) -> None:
    while not self._end.wait(0.005):
      start, answer = time.monotonic(), None
      while answer is None:  # a connection may be closed; that costs time, too
        # Each time a new connection: an open one has its place already.
        connection = http.client.HTTPConnection(*self._address)
        with contextlib.closing(connection):
          try:
            connection.request(
                "GET", "/health", headers=dict(Connection="close")
            )
            answer = connection.getresponse()
            answer.read()
          except (OSError, http.client.HTTPException):
            time.sleep(0.005)
      self.answers += answer.status == 200
      self.longest = max(self.longest, time.monotonic() - start)
      self.grown = max(self.grown, self._memory() - self._first)
      self._begun.set()


def measure(
    address: Address, pid: int, seconds: float, found: list[Attack]
) -> Iterator[tuple[Attack | None, Watch, bytes]]:
  """Runs attacks one after the other; first nothing at all, for comparison."""
  for attack in (None, *found):
    with Watch(address, pid) as watch:
      got = b""
      if attack is None:
        time.sleep(3)
      else:
        got = strike(attack, address, seconds)
      time.sleep(0.5)
    yield attack, watch, got
    time.sleep(1)


def main() -> None:
  """Measures, and writes results/bench_attacks.{json,md}."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--only", default="", help="a part of a name")
  flags = parser.parse_args()
  load = results.load()
  rows = []
  with tempfile.TemporaryDirectory() as scratch:
    weights = with_words(pathlib.Path(scratch) / "model")
    limit = "prlimit", f"--nofile={OPEN}:{OPEN}"  # fewer than are opened
    server = serve.Server([*limit, *serve.ours(weights, scratch, LIMIT, LIMIT)])
    try:
      warm(server)
      found = [x for x in attacks() if flags.only in x.name]
      for attack, watch, got in measure(
          server.address, server.pid, SECONDS, found
      ):
        rows.append(
            dict(
                attack=attack.name if attack else "nothing, for comparison",
                bytes=len(attack.data) if attack else 0,
                connections=attack.connections if attack else 0,
                answer=got[:12].decode(errors="replace").partition(" ")[2],
                longest=watch.longest,
                grown=watch.grown,
            )
        )
        print(line(rows[-1]), flush=True)
    finally:
      server.close()
  if not flags.only:
    after = results.load()
    result = dict(rows=rows, environment=results.environment(load))
    result["load_after"] = after
    results.write("bench_attacks", result, page(result))


def with_words(directory: pathlib.Path) -> pathlib.Path:
  """Saves the weights of `serve` with a tokenizer of pieces of words."""
  import tokenizers
  import transformers

  shutil.copytree(harness.weights(serve.DIMS), directory)
  bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
  bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
  bpe.decoder = tokenizers.decoders.ByteLevel()
  bpe.train(
      [str(x) for x in sorted(results.ROOT.glob("docs/*.md"))],
      tokenizers.trainers.BpeTrainer(
          vocab_size=harness.shape(serve.DIMS)["vocab"] - 8,
          special_tokens=["<pad>", "<eos>"],
          initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
          show_progress=False,
      ),
  )
  transformers.PreTrainedTokenizerFast(
      tokenizer_object=bpe, pad_token="<pad>", eos_token="<eos>"
  ).save_pretrained(directory)
  return directory


def warm(server: serve.Server) -> None:
  """Asks for what compiles at its first request: log-probs of a prompt."""
  for length in (8, 65, 129, 257, 513, 1025, LIMIT):
    how = dict(max_tokens=8, echo=True, logprobs=1)
    server.ask(dict(prompt=[harness.FIRST] * length, **how))


def line(row: dict) -> str:
  """Returns the line of a table."""
  count = f" x {row['connections']:,}" if row["connections"] > 1 else ""
  return (
      f"| {row['attack']} | {row['bytes']:,}{count} | {row['answer'] or '-'} |"
      f" {1000 * row['longest']:.0f} | {row['grown'] / 1e6:.0f} |"
  )


def page(result: dict) -> list[str]:
  """Returns lines of Markdown."""
  rows, load = result["rows"], result["environment"]["load"]
  worst = max(rows[1:], key=lambda x: x["longest"])
  largest = max(rows[1:], key=lambda x: x["grown"])
  return results.document(
      "The server under attack",
      f"Under {len(rows) - 1} attacks the server is silent for at most"
      f" {1000 * worst['longest']:.0f} ms ({worst['attack']}), and its memory"
      f" grows by at most {largest['grown'] / 1e6:.0f} MB"
      f" ({largest['attack']}).",
      "Does one client keep the server from answering others? Each attack lasts"
      f" {SECONDS:g} seconds at most, while another connection asks /health; a"
      f" server of 4M parameters with {serve.SLOTS} slots, prompts and"
      f" responses of {LIMIT:,} tokens, and {OPEN:,} open files. Milliseconds"
      " until the slowest answer of /health, and megabytes by which the memory"
      " of the server grew. The load of the machine was"
      f" {load} at the beginning and {result['load_after']} at the end; attacks"
      " and server share its processors.",
      [
          "| attack | bytes | answer | longest silence, ms | memory, MB |",
          "|---|---|---|---|---|",
          *map(line, rows),
      ],
      made="Made by `python -m bench.serving.attacks`.",
      versions=results.footer(result),
  )


if __name__ == "__main__":
  main()
