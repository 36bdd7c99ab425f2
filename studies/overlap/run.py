"""The overlap of sampling and learning: step times on two virtual devices.

  python -m studies.overlap.run            # 5 minutes on 2 quiet cores
  python -m studies.overlap.run --table    # only the table, from JSON

Runs of GRPO on the built-in task, from one SFT for each seed: one after the
other, batches ahead on the same devices, and one device that samples while the
other one learns. The rows alternate within a seed. Writes
studies/overlap/overlap.{json,md}.
"""

import pathlib
import statistics
import tempfile

from bench import results, runs
from rl_reason.lab.ablate import fresh_seeds
from rl_reason.monitoring import run_log

SEEDS = fresh_seeds("rl_reason overlap", 3)
STEPS, WARMUP = 16, 4  # programs are compiled in the first steps
ROWS = {
    "S = 0: sampling, then learning": {},
    "S = 1, the same two devices": {"rl.staleness": 1},
    "S = 1, one samples, one learns": {"rl.staleness": 1, "mesh.rollout": 1},
}
COMMON = {
    "rl.steps": STEPS,
    "rl.old_logps": "sampler",  # no forward pass of the policy that sampled
    "evaluate.every": 0,
    "evaluate.prompts": 8,
    "evaluate.interim_prompts": 8,
    "evaluate.samples": 1,
    "evaluate.mean_of": 1,
    "checkpoint.every": STEPS,
    "log.loggers": "",
}


def train(workdir: pathlib.Path, fields: dict) -> list[dict]:
  """Runs GRPO with two devices of one core each; its steps."""
  one = runs.run("configs/grpo.py", workdir, fields)
  runs.make([one], JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="2")
  lines = run_log.read_metrics(workdir)
  return [x for x in lines if x["stage"] == "rl"][WARMUP:]


def measure(_) -> dict:
  """Measures all rows with all seeds."""
  load, rows = results.load(), {name: [] for name in ROWS}
  with tempfile.TemporaryDirectory() as scratch:
    for seed in SEEDS:
      sft = pathlib.Path(scratch, f"sft-{seed}")
      common = COMMON | {"seed": seed}
      train(sft, common | {"rl.steps": 0})
      for i, (name, fields) in enumerate(ROWS.items()):
        fields = common | fields | {"sft.reuse": str(sft)}
        found = train(pathlib.Path(scratch, f"{seed}-{i}"), fields)
        keys = ("timing_s/step", "timing_s/wait", "perf/overlap")
        rows[name].append(
            {k: [x[k] for x in found if x.get(k) is not None] for k in keys}
            | dict(seed=seed)
        )
        print(f"{seed}: {name}", flush=True)
  return dict(rows=rows, environment=results.environment(load))


def page(result: dict) -> list[str]:
  """Returns the table in Markdown."""
  rows = result["rows"]
  first = _medians(next(iter(rows.values())), "timing_s/step")
  about = (
      "How much faster is a step if one device samples while the other learns?"
      " GRPO on the built-in task,"
      f" {STEPS} steps, the first {WARMUP} left out; medians over steps, then"
      " mean (least to most) over seeds"
      f" {', '.join(str(x['seed']) for x in next(iter(rows.values())))}. Two"
      " virtual devices share the cores of one machine, which both phases fill:"
      " little is to be gained but the work of the host."
  )
  out = [
      "| | seconds of a step | speed | both work |",
      "|---|---|---|---|",
  ]
  words = []
  for name, of_seeds in rows.items():
    seconds = _medians(of_seeds, "timing_s/step")
    speed = [a / b for a, b in zip(first, seconds, strict=True)]
    both = _medians(of_seeds, "perf/overlap")
    columns = (seconds, ".2f"), (speed, ".2f"), (both, ".0%")
    out.append(results.row(name, *(results.spread(*x) for x in columns)))
    words.append(f"{results.spread(speed, '.2f')} times ({name})")
  return results.document(
      "Sampling while learning, on two virtual devices",
      f"The speed of a step is {results.joined(words[1:])} that of"
      f" {next(iter(rows))}.",
      results.busy(result["environment"]),
      about,
      out,
      made="Made by `python -m studies.overlap.run`.",
      versions=results.footer(result),
  )


def _medians(of_seeds: list[dict], name: str) -> list[float]:
  return [statistics.median(x[name] or [0.0]) for x in of_seeds]


if __name__ == "__main__":
  results.main(__doc__, "overlap", measure, page)
