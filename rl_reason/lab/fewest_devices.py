"""The smallest number of devices on which a run fits, by formula."""

import functools
from collections.abc import Iterator

from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_facts, machine_checks
from rl_reason.devices import axes, sharding
from rl_reason.lab import memory_formula
from rl_reason.models import critic, decoder

MOST = 4096
TENSOR = (1, 2, 4, 8)  # of one host, in the order of their communication


def meshes(c) -> Iterator[tuple[int, dict[str, int]]]:
  """Numbers of devices in ascending order, each with its meshes.

  The mesh of the config comes first, if it has a free axis (-1); then mesh.fsdp
  with the smallest mesh.tensor.
  """
  given = {name: c.mesh[name] for name in config_facts.mesh_axes(c)}
  others = {x: n for x, n in given.items() if x not in ("data", "fsdp")}
  count = 1
  while count <= MOST:
    yield count, given
    for tensor in TENSOR:
      mesh = others | dict(data=1, fsdp=-1, tensor=tensor)
      yield count, mesh
    count *= 2


def search(
    c,
    cfg: decoder.ModelConfig,
    critic_cfg: critic.CriticConfig,
    limit: int,
) -> int:
  """Returns the smallest number of devices; sets `c.mesh` to its mesh.

  Numbers are powers of two. Only the mesh changes: batches, token budget, slots
  and rematerialization are the config's.

  Args:
    c: checked.
    cfg: static shape of the policy.
    critic_cfg: static shape of the critic.
    limit: bytes of a device.

  Raises:
    ConfigError: the run fits on no number of devices.
  """
  given, estimate = dict(c.mesh), functools.partial(
      memory_formula.estimate, c, cfg, critic_cfg
  )
  least = None
  for count, mesh in meshes(c):
    c.mesh.update(given | mesh)
    try:
      machine_checks.devices(c, count)
    except ConfigError:
      continue
    size = estimate(sharding.abstract_mesh(**config_facts.mesh_sizes(c, count)))
    peak = size.peak
    if peak <= limit:
      return count
    least = min(least or peak, peak)
  c.mesh.update(given)
  needs = f"the least that a mesh needs is {(least or 0) / 2**30:.3g} GiB"
  if least is None:
    needs = f"no mesh with {axes.fields('embed', 'and')} splits its batches"
  raise ConfigError(
      f"--devices = -1: the run fits on no number of devices up to {MOST} with"
      f" {limit / 2**30:.3g} GiB each: {needs}; lower updates.token_budget,"
      " rollout.slots or evaluate.batch, or set model.remat = 'full',"
      f" {memory_formula.smaller_state()}"
  )
