"""Memory of --stage=size: by formula, by XLA's analysis, and measured.

  python -m bench.memory.size        # five minutes, on a CPU

Each config is a process of its own, which compiles the programs of a step, runs
them once, and tells its peaks. A tiny model of random weights stands for the
checkpoint of a recipe, so that rows and lengths are those of the recipe. Writes
results/size.{json,md}.
"""

import json
import subprocess
import sys

from bench import results

TINY = {
    "model.layers": 3,
    "model.width": 32,
    "model.heads": 4,
    "model.kv_heads": 2,
    "model.head_dim": 8,
    "model.mlp": 64,
}
# The rows of recipes/gsm8k_0_5b.py.
LONG = TINY | {
    "rollout.max_prompt": 384,
    "rollout.max_tokens": 1024,
    "rollout.batch": 1024,
    "rollout.slots": 256,
    "updates.minibatches": 4,
    "updates.token_budget": 16896,
}
WIDE = {
    "model.layers": 4,
    "model.width": 512,
    "model.heads": 8,
    "model.kv_heads": 4,
    "model.head_dim": 64,
    "model.mlp": 1536,
    "rollout.batch": 32,
    "rollout.max_tokens": 500,
    "updates.minibatches": 2,
    "updates.token_budget": 4096,
}
CASES = {
    "configs/dapo.py": ("dapo", {}),
    "configs/vapo.py": ("vapo", {}),
    "long rows, tiny model": ("grpo", LONG),
    "the same in bfloat16": ("grpo", LONG | {"model.dtype": "bfloat16"}),
    "a model of 12M parameters": ("grpo", WIDE),
}
PHASES = "update", "rollout", "evaluation"


def peaks(path: str, given: dict) -> dict:
  """The bytes of a config by formula, by XLA and measured, in this process.

  Args:
    path: of the config.
    given: full name of a field -> its value.
  """
  import jax

  from rl_reason.checks import config_checks
  from rl_reason.devices import device_mesh
  from rl_reason.lab import memory_formula, model_shapes, size as size_stage
  from rl_reason.monitoring.display import Display
  from rl_reason.stages.model import Model, critic_config

  c, _ = config_checks.checked(path, {k: str(x) for k, x in given.items()})
  cfg = model_shapes.shape(c)
  value = critic_config(c, cfg)
  mesh, _ = device_mesh.make_meshes(**c.mesh)
  backend = jax.default_backend()
  size = memory_formula.estimate(c, cfg, value, mesh, backend=backend)
  found = size_stage.of_programs(
      c, Model(cfg, value, mesh), size, sys.maxsize, Display(False)
  )
  formula = size.update_peak, size.rollout_peak, size.evaluation_peak
  return {
      phase: dict(formula=x, xla=peak[0], measured=peak[1])
      for phase, x, peak in zip(PHASES, formula, found, strict=True)
  }


def in_a_process(path: str, given: dict) -> dict:
  """`peaks` in a process of its own."""
  code = "import json, sys; from bench.memory import size;"
  code += "print(json.dumps(size.peaks(*json.loads(sys.argv[1]))))"
  done = subprocess.run(
      [sys.executable, "-c", code, json.dumps([path, given])],
      cwd=results.ROOT,
      check=True,
      stdout=subprocess.PIPE,
      text=True,
  )
  return json.loads(done.stdout.splitlines()[-1])


def measure(_) -> dict:
  """Runs all cases, each in a process of its own."""
  cases = {}
  for name in CASES:
    cases[name] = in_a_process(*CASES[name])
    print(name, cases[name], flush=True)
  return dict(cases=cases, environment=results.environment())


def page(result: dict) -> list[str]:
  """Returns the table in Markdown."""
  about = (
      "How close are the peaks that `--stage=size` shows to the measured ones?"
      " In MiB per device. Formula: from the shapes of the arrays. XLA:"
      " its analysis of the programs, compiled for this device. Measured: what"
      " the programs add to the memory of a process while they run once. Ratios"
      " are to the measured peak. Long rows: 1024 responses of 384 + 1024"
      " tokens in 256 slots."
  )
  out = [
      "| config | phase | formula | XLA | measured | formula, ratio"
      " | XLA, ratio |",
      "|---|---|---|---|---|---|---|",
  ]
  for name, phases in result["cases"].items():
    for phase, x in phases.items():
      sizes = [f"{x[k] / 2**20:.1f}" for k in ("formula", "xla", "measured")]
      ratios = [f"{x[k] / x['measured']:.2f}" for k in ("formula", "xla")]
      out.append(results.row(name, phase, *sizes, *ratios))
  words = []
  for kind, label in (("formula", "The formulas give"), ("xla", "XLA")):
    found = [
        x[kind] / x["measured"]
        for phases in result["cases"].values()
        for x in phases.values()
    ]
    words.append(f"{label} {min(found):.2f} to {max(found):.2f}")
  return results.document(
      "Memory by formula, by XLA and measured",
      f"{words[0]} times the measured peak, {words[1]} times.",
      about,
      out,
      made="Made by `python -m bench.memory.size`.",
      versions=results.footer(result),
  )


if __name__ == "__main__":
  results.main(__doc__, "size", measure, page)
