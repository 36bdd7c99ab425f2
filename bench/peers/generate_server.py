"""An HTTP server of transformers' `generate`: generate_server.py DIR BATCH.

Requests that wait are generated together, BATCH at most, padded to the longest;
1 is one after the other. It needs torch, transformers and the standard library.
"""

import http.server
import json
import queue
import sys
import threading

import torch
import transformers


def generate(model, batch: list[dict], eos: int) -> list[int]:
  """Returns the tokens of each response, EOS included."""
  width = max(len(x["prompt"]) for x in batch)
  pads = [width - len(x["prompt"]) for x in batch]
  ids = [[0] * pad + x["prompt"] for pad, x in zip(pads, batch, strict=True)]
  mask = [[0] * pad + [1] * (width - pad) for pad in pads]
  most = max(x["max_tokens"] for x in batch)
  out = model.generate(
      input_ids=torch.tensor(ids),
      attention_mask=torch.tensor(mask),
      max_new_tokens=most,
      do_sample=True,
      temperature=batch[0]["temperature"],
      top_k=0,
      eos_token_id=eos,
      pad_token_id=0,
  )[:, width:].tolist()
  counts = []
  for row, request in zip(out, batch, strict=True):
    row = row[: request["max_tokens"]]
    counts.append(row.index(eos) + 1 if eos in row else len(row))
  return counts


def work(model, waiting: queue.Queue, limit: int, eos: int) -> None:
  """Generates responses to waiting requests, forever."""
  with torch.no_grad():
    while True:
      batch = [waiting.get()]
      while len(batch) < limit and not waiting.empty():
        batch.append(waiting.get())
      counts = generate(model, [x for x, _ in batch], eos)
      for (_, answer), count in zip(batch, counts, strict=True):
        answer.put(count)


class Server(http.server.ThreadingHTTPServer):
  """A server that takes many connections at once."""

  daemon_threads = True
  request_queue_size = 256


def main() -> None:
  """Prints where it listens, and answers."""
  directory, limit = sys.argv[1], int(sys.argv[2])
  transformers.logging.set_verbosity_error()
  model = transformers.AutoModelForCausalLM.from_pretrained(
      directory, dtype=torch.float32
  ).eval()
  waiting: queue.Queue = queue.Queue()
  args = model, waiting, limit, model.config.eos_token_id
  threading.Thread(target=work, args=args, daemon=True).start()

  class Handler(http.server.BaseHTTPRequestHandler):
    """Answers /v1/completions with numbers of tokens."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
      """One request."""
      size = int(self.headers["Content-Length"])
      answer: queue.Queue = queue.Queue()
      waiting.put((json.loads(self.rfile.read(size)), answer))
      usage = dict(completion_tokens=answer.get())
      body = json.dumps(dict(usage=usage)).encode()
      self.send_response(200)
      self.send_header("Content-Length", str(len(body)))
      self.end_headers()
      self.wfile.write(body)

    def log_message(self, *_):
      """Says nothing."""

  server = Server(("127.0.0.1", 0), Handler)
  print(f"listening at http://127.0.0.1:{server.server_port}/v1", flush=True)
  server.serve_forever()


if __name__ == "__main__":
  main()
