"""What an update is made of, one by one: XLA's products beside torch's.

  python -m bench.products --peer=trl   # about 1 minute

Shapes are those of `bench.update` with micro-batches of 16 rows.
"""

import argparse
import pathlib
import statistics

from bench import harness

TOKENS, TURNS = 16 * 160, 6
# a @ b, or a.T @ b if transposed: [rows of the product, shared, columns].
PRODUCTS = {
    "gate, up": (False, [TOKENS, 256, 1024]),
    "down": (False, [TOKENS, 1024, 256]),
    "q, o": (False, [TOKENS, 256, 256]),
    "k, v": (False, [TOKENS, 256, 128]),
    "gradient of gate, up": (True, [256, TOKENS, 1024]),
    "gradient of down": (True, [1024, TOKENS, 256]),
    "gradient of q, o": (True, [256, TOKENS, 256]),
    "gradient of k, v": (True, [256, TOKENS, 128]),
}
ATTENTION = dict(rows=16, length=160, kv=4, group=2, dim=32)
NAMES = {"ours": "XLA", "trl": "torch"}


def measure(names: list[str], environments: pathlib.Path) -> dict:
  """By system, seconds of each part in each turn; the systems take turns."""
  job = dict(task="products", products=PRODUCTS, attention=ATTENTION)
  workers = {name: harness.Worker(name, job, environments) for name in names}
  try:
    turns = [{n: w.turn() for n, w in workers.items()} for _ in range(TURNS)]
  finally:
    for worker in workers.values():
      worker.close()
  return {
      name: {
          part: [turn[name]["parts"][part] for turn in turns]
          for part in turns[0][name]["parts"]
      }
      for name in names
  }


def page(found: dict) -> list[str]:
  """The lines of the page."""
  names = list(found)
  lines = [
      "# Products of an update",
      "",
      "Made by `python -m bench.products`; float32, medians of"
      f" {TURNS} turns, the systems one after the other; each turn the least of"
      " some. GFLOP/s; of attention, forward and backward, milliseconds: `rows"
      " at once` is a softmax over the scores of all rows, by autodiff.",
      "",
      "| | shape | " + " | ".join(NAMES[x] for x in names) + " |",
      "|---|---|" + "---|" * len(names),
  ]
  for part, (_, (rows, shared, columns)) in PRODUCTS.items():
    operations = 2e-9 * rows * shared * columns
    cells = [
        f"{operations / statistics.median(found[x][part]):.0f}" for x in names
    ]
    shape = f"{rows} x {shared} x {columns}"
    lines.append(f"| {part} | {shape} | {' | '.join(cells)} |")
  shape = " x ".join(map(str, ATTENTION.values()))
  for part in ("attention", "attention, rows at once"):
    cells = [
        f"{1e3 * statistics.median(found[x][part]):.1f} ms"
        if part in found[x]
        else ""
        for x in names
    ]
    lines.append(f"| {part} | {shape} | {' | '.join(cells)} |")
  return lines


def main() -> None:
  """Measures and writes the page."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--peer", action="append", choices=["trl"], default=[])
  parser.add_argument(
      "--environments", type=pathlib.Path, default=harness.ENVIRONMENTS
  )
  given = parser.parse_args()
  (harness.RUNS / "bench").mkdir(parents=True, exist_ok=True)
  before = harness.load()
  found = measure(["ours", *given.peer], given.environments)
  peers = {x: harness.peer_versions(x, given.environments) for x in given.peer}
  result = dict(
      environment=harness.environment(before), peers=peers, seconds=found
  )
  lines = [*page(found), "", *harness.footer(result)]
  harness.write("bench_products", result, lines)
  print("\n".join(lines))


if __name__ == "__main__":
  main()
