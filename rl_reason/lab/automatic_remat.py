"""model.remat = "auto": what is recomputed, so that an update fits.

The formulas decide, before anything compiles, and the choice takes the place of
"auto" in the config: a run that resumes finds it in its config.json.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from rl_reason.base import config as config_lib
from rl_reason.base.errors import ConfigError
from rl_reason.devices import axes
from rl_reason.lab import memory_formula, model_shapes
from rl_reason.models import critic, decoder
from rl_reason.stages.model import critic_config

GIB = 1 << 30
MARGIN = 0.9  # of the memory, for what the formulas do not count
REMAT = ("none", "dots", "full", "sqrt")  # from the fastest to the smallest


def fill_in(
    config, workdir: pathlib.Path, mesh, say: Callable[[str], None]
) -> None:
  """Replaces model.remat = "auto" by a choice, and says which.

  Args:
    config: checked; gets model.remat and updates.token_budget.
    workdir: of the run; if it has begun, its choice is kept.
    mesh: the devices that learn.
    say: gets one line.

  Raises:
    ConfigError: no update fits into the memory of a device.
  """
  saved = workdir / "config.json"
  if saved.exists():
    fields, budget = config_lib.load(saved), config.updates.token_budget
    config.model.remat = fields["model.remat"]
    budget = min(budget, fields["updates.token_budget"])
    config.updates.token_budget = budget
    say(f"{_choice(config)}, as this run began")
    return
  cfg = model_shapes.shape(config)
  # The least of all hosts, so that all choose alike; as MiB they are int32.
  mib = np.int32(device_bytes() >> 20)
  memory = int(np.min(multihost_utils.process_allgather(mib))) << 20
  say(choose(config, cfg, critic_config(config, cfg), mesh, memory))


def choose(
    config,
    cfg: decoder.ModelConfig,
    critic_cfg: critic.CriticConfig,
    mesh,
    memory: int,
) -> str:
  """Sets the fastest model.remat with which an update fits.

  Where none does, it is the one that needs least, and updates.token_budget the
  largest that fits.

  Args:
    config: checked; gets both fields.
    cfg: of the policy.
    critic_cfg: of the critic.
    mesh: of the devices that learn, which may be abstract.
    memory: bytes of a device, of which a share stays free.

  Returns:
    the line to show.

  Raises:
    ConfigError: one row of tokens is too much.
  """
  limit = MARGIN * memory

  def peak(remat: str, token_budget: int = 0) -> int:
    other = dataclasses.replace(cfg, remat=remat)
    return memory_formula.estimate(
        config, other, critic_cfg, mesh, token_budget=token_budget
    ).update_peak

  remat = next((x for x in REMAT if peak(x) <= limit), None)
  if remat is None:
    config.model.remat = remat = min(REMAT, key=peak)
    length = config.rollout.max_prompt + config.rollout.max_tokens
    rows = largest(
        lambda n: peak(remat, n * length) <= limit,
        config.updates.token_budget // length,
    )
    if not rows:
      raise ConfigError(
          "model.remat = 'auto': by formula one row of an update needs"
          f" {peak(remat, length) / GIB:.3g} GiB per device, of"
          f" {limit / GIB:.3g}: raise {axes.fields('embed', 'or')}, or set"
          " optimizer.offload or lora.rank; the table of --stage=size says what"
          " takes how much"
      )
    config.updates.token_budget = rows * length
  config.model.remat = remat
  return (
      f"{_choice(config)}: by formula an update needs"
      f" {peak(remat) / GIB:.3g} of {limit / GIB:.3g} GiB per device"
  )


def _choice(config) -> str:
  budget = config.updates.token_budget
  return (
      f"model.remat = {config.model.remat!r}, updates.token_budget = {budget}"
  )


def largest(fits: Callable[[int], bool], most: int) -> int:
  """The largest number from 1 to `most` that fits, by bisection; or 0."""
  low, high = 0, most
  while low < high:
    middle = (low + high + 1) // 2
    low, high = (middle, high) if fits(middle) else (low, middle - 1)
  return low


def device_bytes() -> int:
  """Memory that a device of this machine offers; on a CPU, all of it."""
  stats = jax.local_devices()[0].memory_stats() or {}
  physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  return stats.get("bytes_limit") or physical // jax.local_device_count()
