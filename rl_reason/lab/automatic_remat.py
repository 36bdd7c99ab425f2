"""model.remat = "auto": the fastest rematerialization whose update fits.

The formulas of `memory_formula` decide before anything compiles. The choice
replaces "auto" in the config, so a resumed run reads it from its config.json.
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
from rl_reason.checks import config_facts
from rl_reason.devices import axes
from rl_reason.lab import memory_formula, model_shapes
from rl_reason.models import critic, decoder
from rl_reason.stages.model import critic_config

GIB = 1 << 30
MARGIN = 0.9  # usable share of the memory; formulas do not count everything
REMAT = ("none", "dots", "full", "sqrt")  # fastest first, smallest last


def fill_in(
    config, workdir: pathlib.Path, mesh, say: Callable[[str], None]
) -> None:
  """Replaces model.remat = "auto" by the chosen value and reports it.

  Args:
    config: checked; gets model.remat and updates.token_budget.
    workdir: work directory; a resumed run keeps its choice.
    mesh: the devices that learn.
    say: reports one line.

  Raises:
    ConfigError: no update fits into the memory of a device.
  """
  saved = workdir / "config.json"
  if saved.exists():
    fields, budget = config_lib.load(saved), config.updates.token_budget
    config.model.remat = fields["model.remat"]
    budget = min(budget, fields["updates.token_budget"])
    config.updates.token_budget = budget
    say(f"{_choice(config)}, as at the start of this run")
    return
  cfg = model_shapes.shape(config)
  # The minimum over all hosts, so that all hosts choose the same value. MiB fit
  # into int32.
  mib = np.int32(device_bytes() >> 20)
  memory = int(np.min(multihost_utils.process_allgather(mib))) << 20
  backend = jax.default_backend()
  say(choose(config, cfg, critic_config(config, cfg), mesh, memory, backend))


def choose(
    config,
    cfg: decoder.ModelConfig,
    critic_cfg: critic.CriticConfig,
    mesh,
    memory: int,
    backend: str = "",
) -> str:
  """Sets the fastest model.remat with which an update fits.

  If none fits, the function sets the value that needs the least memory, and the
  largest updates.token_budget that fits.

  Args:
    config: checked; both fields are set in place.
    cfg: static shape of the policy.
    critic_cfg: static shape of the critic.
    mesh: mesh of the devices that learn; may be abstract.
    memory: bytes of a device, of which 1 - MARGIN stay free.
    backend: see `memory_formula.estimate`.

  Returns:
    a line for the user.

  Raises:
    ConfigError: an update of a single row does not fit.
  """
  limit = MARGIN * memory

  def peak(remat: str, token_budget: int = 0) -> int:
    other = dataclasses.replace(cfg, remat=remat)
    return memory_formula.estimate(
        config,
        other,
        critic_cfg,
        mesh,
        token_budget=token_budget,
        backend=backend,
    ).update_peak

  remat = next((x for x in REMAT if peak(x) <= limit), None)
  if remat is None:
    config.model.remat = remat = min(REMAT, key=peak)
    length = config_facts.row_slots(config)
    rows = largest(
        lambda n: peak(remat, n * length) <= limit,
        config.updates.token_budget // length,
    )
    if not rows:
      raise ConfigError(
          "model.remat = 'auto': by formula one row of an update needs"
          f" {peak(remat, length) / GIB:.3g} GiB per device, of"
          f" {limit / GIB:.3g}: raise {axes.fields('embed', 'or')}, or set"
          f" {memory_formula.smaller_state()}; --stage=size shows what takes"
          " the memory"
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
  """The largest number from 1 to `most` that fits, by bisection; 0 if none."""
  low, high = 0, most
  while low < high:
    middle = (low + high + 1) // 2
    low, high = (middle, high) if fits(middle) else (low, middle - 1)
  return low


def device_bytes() -> int:
  """Bytes of memory of a device; on a CPU, the memory of the machine."""
  stats = jax.local_devices()[0].memory_stats() or {}
  physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  return stats.get("bytes_limit") or physical // jax.local_device_count()
