"""What the certificate of the policy costs of a step of RL.

  python -m studies.certificate.run          # two minutes on 2 cores
  python -m studies.certificate.run --table  # only the page, from JSON

Runs `configs/dapo.py` at its default size, and waits for the arguments and the
results of each program of checksums, which in a run overlaps with other work. A
step is the time from one call of the certificate to the same call of the next
step. Writes studies/certificate/certificate.{json,md}.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax

import rl_reason
from bench import results
from rl_reason.models import checksums
from rl_reason.training.certificate import Certificate

STEPS, SKIPPED = 24, 3  # the first ones compile
WEIGHTS = Certificate.weights
METHODS = WEIGHTS, Certificate.of_weights, Certificate.of_logps


def measure(_) -> dict[str, Any]:
  """Seconds of each step, and of the certificate in it."""
  load, begins = results.load(), []
  spent: list[float] = []
  inside: list[Callable] = []  # calls within each other count once

  def timed(fn: Callable) -> Callable:
    def call(*args):
      jax.block_until_ready(args)  # what they wait for is no part of the cost
      start = time.perf_counter()
      if fn is WEIGHTS:
        begins.append(start)
        spent.append(0.0)
      inside.append(fn)
      out = jax.block_until_ready(fn(*args))
      inside.pop()
      if spent and not inside:
        spent[-1] += time.perf_counter() - start
      return out

    return call

  methods = {x.__name__: timed(x) for x in METHODS}
  with (
      tempfile.TemporaryDirectory() as scratch,
      mock.patch.multiple(Certificate, **methods),
      mock.patch.object(checksums, "on_device", timed(checksums.on_device)),
  ):
    rl_reason.train(
        "dapo",
        workdir=scratch,
        overrides={
            "rl.steps": STEPS,
            "sft.steps": 100,
            "sft.threshold": 0.0,
            "evaluate.every": 0,
        },
    )
  steps = [b - a for a, b in itertools.pairwise(begins)]
  return dict(
      command="python -m studies.certificate.run",
      environment=results.environment(load),
      steps=steps[SKIPPED:],
      spent=spent[SKIPPED : len(steps)],
  )


def page(result: dict) -> list[str]:
  """The page in Markdown."""
  step, spent = (statistics.median(result[x]) for x in ("steps", "spent"))
  shares = [
      y / x for x, y in zip(result["steps"], result["spent"], strict=True)
  ]
  share, least, most = statistics.median(shares), min(shares), max(shares)
  return results.document(
      "What the certificate of the policy costs",
      f"The certificate costs {share:.1%} of a step ({least:.1%} to"
      f" {most:.1%}): {spent * 1e3:.1f} of {step * 1e3:.0f} ms (medians).",
      "What does it cost to prove in each step that the policy is what samples?"
      f" {len(shares)} steps of `configs/dapo.py` at its default size, of a"
      " policy after 100 steps of SFT. Each program of checksums is waited for;"
      " in a run it overlaps with other work. Data in `certificate.json`.",
      made="Made by `python -m studies.certificate.run`.",
      versions=results.footer(result),
  )


if __name__ == "__main__":
  results.main(__doc__, "certificate", measure, page)
