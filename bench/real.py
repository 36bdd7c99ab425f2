"""Sampling, update and step at the shapes of a real model, with the peers.

  python -m bench.real --peer=trl    # about 25 minutes on two cores; 8 GB
  python -m bench.real --case "update, 16 rows" --repeats=3

The shapes are those of SmolLM2-135M, with random weights. In the updates of
this package a packed row holds the prompt of a group once, as in runs. Writes
results/bench_real.{json,md}.
"""

import argparse
import dataclasses
import math
import statistics
from typing import Any

from bench import harness, results, tables

Size = harness.Size
# Case -> its task, its size and the options of this package. `slots`: slots
# that are idle are given up. `micro`: the token budget in rows of full length,
# of which one row holds a group of 1,088 tokens, or two of 320; slots without a
# token would be computed, too.
CASES = {
    "sampling, 128 tokens": ("rollout", Size(64, 64, 128, tail=False), {}),
    "sampling, tail": (
        *("rollout", Size(64, 64, 128, tail=True)),
        dict(slots=64),
    ),
    "update, 16 rows": (
        *("update", Size(16, 64, 128, tail=False)),
        dict(micro=6, share=True),
    ),
    "update, short responses": (
        *("update", Size(16, 64, 32, tail=False)),
        dict(micro=7, share=True),
    ),
    "step, 32 rows": (
        *("rl_step", Size(32, 64, 32, tail=False)),
        dict(micro=7, share=True),
    ),
}
TABLES = [
    tables.Table(
        name="real",
        package="bench",
        title="Sampling, update and step at the shapes of SmolLM2-135M",
        about=(
            "Does the lead over other libraries hold at the shapes of a real"
            " model? 135 million parameters, vocabulary 49,152, heads of 64,"
            " float32,"
            " temperature 1. Sampling: 8 responses to each of 8 prompts of 64"
            " tokens; `tail`: lengths are log-normal, and every system ends"
            " each response at the same length. Update: one optimizer step on"
            " 2 groups of 8 fixed responses. Step: sample 8 responses to each"
            " of 4 prompts, and update once. Tokens/s counts response tokens."
        ),
        task=task,
        cases={name: size},
        options=dict(
            ours=[options],
            trl=[dict(batch=64) if task == "rollout" else dict(micro=16)],
        ),
    )
    for name, (task, size, options) in CASES.items()
]
ALL = dataclasses.replace(
    TABLES[0], cases={k: v for x in TABLES for k, v in x.cases.items()}
)


def measure(flags) -> dict[str, Any]:
  """Runs the cases of all tables; cases that are not run keep their data."""
  known = results.read("bench_real").get("cases", {})
  load = results.load()  # later, it is that of the cases before
  out: dict[str, Any] = {}
  for table in TABLES:
    own = argparse.Namespace(**vars(flags))
    own.case = [x for x in table.cases if x in flags.case]
    if own.case:
      found = tables.compare(table, own, load=load)
      known |= found.pop("cases")
      out |= found
  return out | dict(cases={x: known[x] for x in ALL.cases if x in known})


GOALS = dict(rollout=2.5, update=2.0, rl_step=2.5)  # times TRL's speed
BODY = 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)  # parameters
HEAD = 49_152 * 576
COUNTED = ("sampling, 128 tokens", "update, 16 rows", "update, short responses")


def positions(size: Size, options: dict) -> int:
  """Positions of the forward pass of an update, empty slots included."""
  length = size.prompt + size.response
  if not options.get("share"):
    return size.rows * length
  slots = options["micro"] * length
  group = size.prompt - 1 + size.group * (size.response + 1)
  return math.ceil(size.rows / size.group / (slots // group)) * slots


def products(result: dict) -> list[str]:
  """The table of the speed of the matrix products that weights take part in."""
  out = [
      *("Matrix products with weights, without those of attention:", ""),
      "| case | system | positions | 10^12 FLOPs | GFLOP/s |",
      "|---|---|---|---|---|",
  ]
  for name in COUNTED:
    task, size, _ = CASES[name]
    tokens = size.rows * size.response
    for system, x in result["cases"][name]["systems"].items():
      count = tokens if task == "rollout" else positions(size, x["options"])
      flops = (2 if task == "rollout" else 6) * (BODY * count + HEAD * tokens)
      speed = flops / statistics.median(x["seconds"]) / 1e9
      cells = f"{count:,}", f"{flops / 1e12:.2f}", f"{speed:.0f}"
      out.append(results.row(name, system, *cells))
  return out


def goals(result: dict) -> list[str]:
  """The table of the goals that were set before the measurement."""
  out = [
      *("Goals set before the measurement, compared with TRL:", ""),
      "| case | speedup | goal | peak memory | goal |",
      "|---|---|---|---|---|",
  ]
  for name, (task, _, _) in CASES.items():
    ours, trl = (result["cases"][name]["systems"][x] for x in ("ours", "trl"))
    speedup, least = trl["ratio"][0], GOALS[task]
    share = ours["peak_mib"] / trl["peak_mib"]
    memory = ("", "")
    if task != "rollout":
      memory = f"{share:.0%}", f"at most 50%: {reached(share <= 0.5)}"
    goal = f"at least {least}: {reached(speedup >= least)}"
    out.append(results.row(name, f"{speedup:.2f}", goal, *memory))
  return [
      *out,
      "",
      "Where both systems spend their time in products with weights, the ratio"
      " of their positions bounds the speedup.",
  ]


def reached(yes: bool) -> str:
  """The verdict about a goal."""
  return "reached" if yes else "not reached"


def page(result: dict) -> list[str]:
  """Returns lines of Markdown."""
  more = products(result), goals(result)
  return tables.page(ALL, result, more=more)


def main() -> None:
  """Measures, then writes the table."""
  flags = tables.arguments(ALL, dims="smollm2-135m")
  result = measure(flags)
  results.write("bench_real", result, page(result))


if __name__ == "__main__":
  main()
