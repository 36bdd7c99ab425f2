"""RL in phases: a curriculum, then a hard reset, with forgetting measured.

  python examples/phases.py --workdir=runs/phases   # the same command resumes
  python examples/phases.py --workdir=runs/small --smoke   # a minute

GRPO learns sums of 2 or 3 operands, then of 4 to 6 with the policy so far as
the reference of the KL, then of all lengths after a reset of reference and
optimizer, as in ProRL (arXiv:2505.24864, section 3.2). Each phase is a run of
its own in WORKDIR/phase-K. It starts from the last state of the run before, and
evaluates the sums of the phases before, too: docs/phases.md.
"""

import argparse
import pathlib

import rl_reason
from rl_reason.base import config as config_lib
from rl_reason.checks import config_checks, config_files, run_directory
from rl_reason.configs import base
from rl_reason.devices.randomness import host_seed
from rl_reason.report import compare

# Of each phase: RL steps, operands of the sums, other fields, and what is new
# at its start: the reference, which is then the policy of the phase before, or
# the state of the optimizers.
PHASES = (
    (15, (2, 3), {}, ()),
    (15, (4, 5, 6), {}, ("reference",)),
    (15, (2, 3, 4, 5, 6), {}, ("reference", "optimizer")),
)


def get_config():
  """GRPO with a small KL, of all phases."""
  c = base.arithmetic()
  c.kl.kind, c.kl.coef = "k3", 0.01
  return c


def of_phase(whole, number: int, workdir: pathlib.Path):
  """The config of the run of a phase."""
  steps, operands, fields, new = PHASES[number]
  sets = [f"arithmetic({'+'.join(map(str, x))})" for _, x, *_ in PHASES]
  c = whole.copy_and_resolve_references()
  c.rl.steps = min(steps, c.rl.steps)
  c.task.difficulties = operands
  c.evaluate.tasks = ",".join(dict.fromkeys(sets[: number + 1]))
  if number:
    c.seed = host_seed(c.seed, f"phase {number}")  # other prompts and noise
    c.sft.reuse = str(workdir / "phase-0")
    c.rl.init = str(workdir / f"phase-{number - 1}")
    c.rl.init_optimizer = "optimizer" not in new
    # The newest reference stays; without one, it is the policy before RL.
    renewed = [i for i in range(1, number + 1) if "reference" in PHASES[i][3]]
    if renewed:
      c.kl.reference = str(workdir / f"phase-{renewed[-1] - 1}")
  config_lib.override(c, fields)
  config_checks.fields(c)
  return config_lib.with_defaults(c)


def main(workdir: pathlib.Path, c) -> None:
  """Runs or resumes all phases."""
  places = [workdir / f"phase-{number}" for number in range(len(PHASES))]
  # All of them are made, and so checked, before the first one starts.
  configs = [of_phase(c, number, workdir) for number in range(len(PHASES))]
  for number, (c, place) in enumerate(zip(configs, places, strict=True)):
    if any(x.exists() for x in places[number + 1 :]):
      run_directory.check(place, c)  # the same phase as then
      print(f"phase {number} is finished: {place}")
      continue
    new = " and ".join(PHASES[number][3]) or "nothing"
    print(f"phase {number}: {c.rl.steps} steps, sums of", end=" ")
    print(f"{c.task.difficulties} operands, new at its start: {new}")
    rl_reason.train(c, workdir=place)
  print(f"all phases side by side: {compare.write(places)}")


if __name__ == "__main__":
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument("--workdir", type=pathlib.Path, default="runs/phases")
  parser.add_argument("--smoke", action="store_true")
  flags = parser.parse_args()
  config = get_config()
  main(flags.workdir, config_files.smoke(config) if flags.smoke else config)
