"""Rejection-sampled SFT in rounds: STaR, RAFT, expert iteration.

  python examples/rejection_sampling.py --workdir=runs/rejection_sampling
  python examples/rejection_sampling.py --workdir=runs/small --smoke

A round samples 8 responses to each of 1,024 prompts, keeps the correct ones
without duplicates, and trains the policy of the round before on them by SFT.
Round K is the run in WORKDIR/round-K; round 0 is the SFT of the base config.
The same command resumes, with the same bits.

Held-out accuracy: 23% to 58% and 79% in two rounds (5 seeds,
studies/rounds/rounds.md), 91% in four rounds (seed 0), 3 minutes of CPU time.
"""

import argparse
import pathlib

import rl_reason
from rl_reason.base import config as config_lib
from rl_reason.checks import config_checks, config_files, run_directory
from rl_reason.configs import base
from rl_reason.devices.randomness import host_seed
from rl_reason.report import compare

ROUNDS, STEPS, LR = 4, 200, 1e-3  # SFT steps of a round, and their rate


def get_config():
  """The task and SFT of the base config, without RL."""
  c = base.arithmetic()
  c.generate.keep = "correct"  # best: one per prompt; majority: no verifier
  c.rl.steps = 0
  return c


def of_round(whole, number: int, workdir: pathlib.Path):
  """The config of the run of a round."""
  c = whole.copy_and_resolve_references()
  if number:
    c.seed = host_seed(c.seed, f"round {number}")  # other prompts and noise
    c.model.path = str(workdir / f"round-{number - 1}" / "export" / "policy")
    c.sft.update(steps=min(STEPS, c.sft.steps), lr=LR, threshold=0.0)
    c.sft.update(warmup_steps=0, difficulties=())
    c.sft.habits.steps = 0
  config_checks.fields(c)
  return config_lib.with_defaults(c)


def main(workdir: pathlib.Path, whole, rounds: int = ROUNDS) -> None:
  """Runs or resumes all rounds."""
  places = [workdir / f"round-{number}" for number in range(rounds + 1)]
  # All of them are made, and so checked, before the first one starts.
  configs = [of_round(whole, number, workdir) for number in range(rounds + 1)]
  for number, (c, place) in enumerate(zip(configs, places, strict=True)):
    if number:
      c.sft.samples = f"{places[number - 1]}/generated/0*1"
    if any(x.exists() for x in places[number + 1 :]):
      run_directory.check(place, c)  # the same round as then
      print(f"round {number} is finished: {place}")
      continue
    if number:
      print(f"round {number}: samples of the policy of round {number - 1}")
      policy, where = configs[number - 1], places[number - 1]
      rl_reason.train(policy, workdir=where, stage="export")
      rl_reason.train(policy, workdir=where, stage="generate")
    what = "the correct samples" if number else "demonstrations"
    print(f"round {number} of {rounds}: {c.sft.steps} steps of SFT on {what}")
    rl_reason.train(c, workdir=place)
  print(f"all rounds side by side: {compare.write(places)}")


if __name__ == "__main__":
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument(
      "--workdir", type=pathlib.Path, default="runs/rejection_sampling"
  )
  parser.add_argument("--smoke", action="store_true", help="within a minute")
  flags = parser.parse_args()
  if flags.smoke:
    main(flags.workdir, config_files.smoke(get_config()), rounds=2)
  else:
    main(flags.workdir, get_config())
