"""Time and memory of RL steps of a recipe, with a model of random weights.

  python -m bench.speed.recipe                 # five minutes on an H100

Nothing is learned: random weights and questions of random words stand for what
comes from the hub, and rewards are noise. Almost no response ends by itself, so
each step takes the most time and memory that it can. Writes
results/recipe.{json,md}.
"""

import argparse
import json
import pathlib
import random
import shutil
import statistics
import string
import subprocess
import sys
import zlib
from typing import Any

from bench import harness, results
from bench.memory import size
from rl_reason.monitoring import run_log

CONFIG = "configs/recipes/gsm8k_0_5b.py"
KEPT = ("timing_s/", "perf/", "tokens/", "response_length/", "rollout/logp_gap")
PHASES = {
    "gen": "sampling",
    "score": "rewards",
    "old_log_prob": "old log-probs",
    "update_actor": "update",
    "step": "step",
}
GIB = 2**30
LETTERS = 60  # of a question


def noise(response: Any, row: Any) -> float:
  """A reward that depends on the text of a response alone, from 0 to 1."""
  del row
  return zlib.crc32(response.text.encode()) / 2**32


def save_tokenizer(folder: pathlib.Path, vocab: int) -> None:
  """Saves a tokenizer of bytes, and of words that no text has."""
  import tokenizers
  import transformers

  letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
  names = ["<pad>", "<eos>", *letters]
  names += [f"<{n}>" for n in range(len(names), vocab)]
  fast = tokenizers.Tokenizer(
      tokenizers.models.BPE({name: n for n, name in enumerate(names)}, [])
  )
  fast.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(False)
  fast.decoder = tokenizers.decoders.ByteLevel()
  transformers.PreTrainedTokenizerFast(
      tokenizer_object=fast, pad_token="<pad>", eos_token="<eos>"
  ).save_pretrained(folder)


def questions(path: str, count: int, seed: int) -> None:
  """Writes rows with questions of random letters."""
  rng = random.Random(seed)
  with open(path, "w") as f:
    for n in range(count):
      text = "".join(rng.choices(string.ascii_lowercase, k=LETTERS))
      row = dict(problem=text, answer=str(n))
      f.write(json.dumps(row) + "\n")


def fields(flags: argparse.Namespace) -> dict[str, str]:
  """Returns the overrides of the recipe."""
  folder = results.RUNS / "bench" / "recipe"
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  train, held_out = (str(folder / f"{x}.jsonl") for x in ("train", "held_out"))
  questions(train, 60 * flags.prompts, 0)
  questions(held_out, 16, 1)
  save_tokenizer(folder / "tokenizer", harness.shape(flags.dims)["vocab"])
  given = {
      "model.path": str(harness.weights(flags.dims)),
      "tokenizer": str(folder / "tokenizer"),
      "data.train": train,
      "data.evaluate": held_out,
      "dynamic_sampling.enabled": False,  # noise is never all correct
      "reward.functions": "bench.speed.recipe:noise*1",
      "rl.steps": flags.steps,
      "optimizer.warmup_steps": 0,
      "checkpoint.every": flags.steps,
      "evaluate.prompts": 16,
      "evaluate.interim_prompts": 16,
      "evaluate.samples": 1,
      "evaluate.mean_of": 1,
      "evaluate.batch": 16,
      "evaluate.every": 0,
      "evaluate.validation": False,
  }
  given = {name: str(value) for name, value in given.items()}
  return given | dict(x.split("=", 1) for x in flags.set)


def measure(flags: argparse.Namespace) -> dict:
  """Runs the recipe, and compares its peak with those of --stage=size."""
  load, given = results.load(), fields(flags)
  workdir = results.RUNS / "bench" / "recipe" / "run"
  command = [sys.executable, "-m", "rl_reason.main", f"--config={flags.config}"]
  command += [f"--config.{name}={value}" for name, value in given.items()]
  command += [f"--workdir={workdir}"]
  subprocess.run(command, cwd=results.ROOT, check=False)
  steps = []
  if (workdir / "metrics.jsonl").exists():
    steps = [x for x in run_log.read_metrics(workdir) if x["stage"] == "rl"]
  if len(steps) != flags.steps:
    raise SystemExit(
        f"{len(steps)} of {flags.steps} steps: see the run's output"
    )
  return dict(
      command=" ".join(["python -m bench.speed.recipe", *sys.argv[1:]]),
      config=flags.config,
      dims=flags.dims,
      fields=given,
      steps=[
          {k: v for k, v in step.items() if k.startswith(KEPT)}
          for step in steps
      ],
      size=size.in_a_process(flags.config, given),
      environment=results.run_environment(workdir) | dict(load=load),
  )


def page(result: dict) -> list[str]:
  """Returns the tables in Markdown."""
  steps = result["steps"][1:]  # the first one compiles
  tokens = statistics.median(x["tokens/step"] for x in steps)
  out = ["| phase | seconds |", "|---|---|"]
  for name, words in PHASES.items():
    values = [x[f"timing_s/{name}"] for x in steps]
    median = statistics.median(values)
    span = f"({min(values):.2f} to {max(values):.2f})"
    out.append(results.row(words, f"{median:.2f} {span}"))
  last = steps[-1]
  seconds = statistics.median(x["timing_s/step"] for x in steps)
  facts = [
      f"A step takes {seconds:.2f} s: {tokens / seconds:,.0f} response tokens"
      " per second"
  ]
  if "perf/mfu" in last:
    facts.append(f"model FLOPs utilization {last['perf/mfu']:.1%} of the step")
  if "perf/energy_j" in last:
    facts.append(f"{last['perf/energy_j'] / last['timing_s/step']:,.0f} W")
  gap = max(x["rollout/logp_gap_mean"] for x in steps)
  facts.append(f"sampler and trainer differ by {gap:.4f} nats per token")
  out += [
      "",
      "Peaks in GiB by formula, by XLA's analysis, and measured while the"
      " programs of `--stage=size` run once; the run's own peak was"
      f" {last['perf/memory_gib']:.1f}.",
      "",
      "| phase | formula | XLA | measured |",
      "|---|---|---|---|",
  ]
  for phase, found in result["size"].items():
    cells = (f"{found[x] / GIB:.1f}" for x in ("formula", "xla", "measured"))
    out.append(results.row(phase, *cells))
  return results.document(
      "RL steps of a recipe",
      f"{'; '.join(facts)}.",
      results.busy(result["environment"]),
      f"What does a step of a large run cost? `{result['config']}` with random"
      f" weights of {result['dims']}, random questions, and noise as reward."
      " Nothing is learned, and almost no response ends by itself:"
      f" {tokens:,.0f} tokens of responses in a step. Medians of"
      f" steps 2 to {len(result['steps'])}, with minimum and maximum.",
      out,
      made=f"Made by `{result['command']}`.",
      versions=results.footer(result),
  )


def arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the flags."""
  parser.add_argument("--config", default=CONFIG)
  parser.add_argument("--dims", choices=harness.DIMS, default="qwen2.5-0.5b")
  parser.add_argument("--steps", type=int, default=4)
  parser.add_argument("--prompts", type=int, default=128, help="of a step")
  parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")


if __name__ == "__main__":
  results.main(__doc__, "recipe", measure, page, flags=arguments)
