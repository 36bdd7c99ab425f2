"""Peak memory of one whole GRPO step in a fresh process, beside the peers'.

  python -m bench.memory --peer=tunix --peer=trl            # about 2 minutes

Options are those of `bench.rl_step`, where its sweep is.
"""

import dataclasses

from bench import harness, rl_step

TABLE = dataclasses.replace(
    rl_step.TABLE,
    name="memory",
    title="Memory of a GRPO step",
    about=(
        "The most memory resident at any time (VmHWM), from the start of the"
        " process to the end of the first step, compilation included. The step"
        " is that of [bench_rl_step.md](bench_rl_step.md), at its options."
    ),
)


def main() -> None:
  """One step of each system, then the table."""
  given = harness.arguments(TABLE)
  given.repeats = 0
  result = harness.compare(TABLE, given, warmups=1)
  for case in result["cases"].values():
    ours = case["systems"]["ours"]["peak_mib"]
    for x in case["systems"].values():
      x["share"] = ours / x["peak_mib"]
  columns = {
      "peak MiB": harness.COLUMNS["peak MiB"],
      "ours takes": lambda case, x: f"{x['share']:.0%} of it",
  }
  lines = harness.page(TABLE, result, columns)
  harness.write("bench_memory", result, lines)
  print("\n".join(lines))


if __name__ == "__main__":
  main()
