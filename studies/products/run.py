"""The matrix products and attention of an update: XLA and torch.

  python -m studies.products.run --peer=trl   # about 1 minute

Shapes as in `bench.libraries.update` with micro-batches of 16 rows.
"""

import pathlib
import statistics

from bench import harness, results

TOKENS, TURNS = 16 * 160, 6
# a @ b, or a.T @ b if transposed: [rows of the product, contracted, columns].
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


def times(names: list[str], environments: pathlib.Path) -> dict:
  """Returns the seconds of each part in each turn by system."""
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


def page(result: dict) -> list[str]:
  """Returns lines of Markdown."""
  found = result["seconds"]
  names = list(found)
  about = (
      "How fast are the products of XLA, relative to another library's, on two"
      f" cores? Float32, medians of {TURNS} turns of alternating systems; a"
      " turn is the minimum of 12"
      " calls. GFLOP/s; for attention, forward and backward, milliseconds:"
      " `full softmax` materializes the scores of all rows and uses autodiff."
  )
  lines = [
      "| | shape | " + " | ".join(NAMES[x] for x in names) + " |",
      "|---|---|" + "---|" * len(names),
  ]
  for part, (_, (rows, inner, columns)) in PRODUCTS.items():
    operations = 2e-9 * rows * inner * columns
    cells = [
        f"{operations / statistics.median(found[x][part]):.0f}" for x in names
    ]
    shape = f"{rows} x {inner} x {columns}"
    lines.append(results.row(part, shape, *cells))
  shape = " x ".join(map(str, ATTENTION.values()))
  for part in ("attention", "attention, full softmax"):
    cells = [
        f"{1e3 * statistics.median(found[x][part]):.1f} ms"
        if part in found[x]
        else ""
        for x in names
    ]
    lines.append(results.row(part, shape, *cells))
  ours, *peers = names
  words = []
  for peer in peers:
    ratios = [
        statistics.median(found[peer][x]) / statistics.median(found[ours][x])
        for x in PRODUCTS
    ]
    words.append(
        f"{min(ratios):.1f} to {max(ratios):.1f} times as fast as"
        f" {NAMES[peer]}'s"
    )
  if not peers:
    words = [f"measured for {len(PRODUCTS)} shapes, without another library"]
  return results.document(
      "Matrix products of an update",
      f"The products of {NAMES[ours]} are {results.joined(words)}.",
      about,
      lines,
      made="Made by `python -m studies.products.run`.",
      versions=results.footer(result),
  )


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--peer", action="append", choices=["trl"], default=[])
  parser.add_argument(
      "--environments", type=pathlib.Path, default=harness.ENVIRONMENTS
  )


def measure(given) -> dict:
  """Measures all parts of all systems."""
  (results.RUNS / "bench").mkdir(parents=True, exist_ok=True)
  load, place = results.load(), given.environments
  seconds = times(["ours", *given.peer], place)
  return dict(
      environment=results.environment(load),
      peers={x: harness.peer_versions(x, place) for x in given.peer},
      seconds=seconds,
  )


if __name__ == "__main__":
  results.main(__doc__, "products", measure, page, flags=flags)
