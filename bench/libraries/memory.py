"""Peak memory of one complete GRPO step in a fresh process, with the peers.

  python -m bench.libraries.memory --peer=tunix --peer=trl  # about 2 minutes

The options are taken from the sweep of `bench.libraries.rl_step`.
"""

import dataclasses

from bench import results, tables
from bench.libraries import rl_step

TABLE = dataclasses.replace(
    rl_step.TABLE,
    name="memory",
    title="Memory of a GRPO step",
    about=(
        "How much memory does a step need? Peak resident memory (VmHWM) from"
        " the start of the process to the end"
        " of the first step, compilation included. Step and options are those"
        " of [bench_rl_step.md](bench_rl_step.md)."
    ),
)

COLUMNS = {
    "peak MiB": tables.COLUMNS["peak MiB"],
    "ours relative to it": lambda case, x: f"{x['share']:.0%}",
}


def main() -> None:
  """Runs one step of each system, then writes the table."""
  flags = tables.arguments(TABLE)
  flags.repeats = 0
  result = tables.compare(TABLE, flags, warmups=1)
  for case in result["cases"].values():
    ours = case["systems"]["ours"]["peak_mib"]
    for x in case["systems"].values():
      x["share"] = ours / x["peak_mib"]
  lines = tables.page(TABLE, result, COLUMNS)
  results.write("bench_memory", result, lines)
  print("\n".join(lines))


if __name__ == "__main__":
  main()
