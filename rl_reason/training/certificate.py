"""The certificate of a step: what sampled is the policy that learns.

Each RL step has two proofs. Checksums: the weights that the engine sampled with
have the same ones as the policy's parameters, cast or quantised as the config
asks for it, in each layer of each array. Log-probs: trainer and sampler give
the sampled tokens the same ones, up to the precision of the run. Checksums show
any change of a weight, log-probs what an engine does with the weights. A fault
is an alert of `monitoring/alerts.toml`.
"""

import functools
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.base.structs import Array, Experience, Tree
from rl_reason.devices import sharding
from rl_reason.models import checksums, decoder
from rl_reason.monitoring.alerts import HEALTH
from rl_reason.rollout import sampler_weights

KEPT = 4  # RL steps whose checksums are known, beyond those in flight
PLACES = 3  # that a line names
ROUNDED = 2**-7  # relative; bfloat16 rounds by half of it


class Certificate:
  """Certifies each step of a run.

  Args:
    engine: gives the weights of a policy to the sampler.
    frozen: parameters beside those that are learned, if these are an adapter;
      else None.
    cfg: shape of the policy.
    kind: of the sampler weights: 'same', 'bfloat16' or 'int8'.
    lag: RL steps, at most, from the policy that samples a batch to its update.
    gap_bound: of the gap between log-probs, see `bound`.
  """

  def __init__(
      self,
      engine: Any,
      frozen: Tree | None,
      *,
      cfg: decoder.ModelConfig,
      kind: str,
      lag: int,
      gap_bound: float,
  ):
    self._engine, self._frozen, self._kind = engine, frozen, kind
    self._make: Callable[[Tree], Tree] = functools.partial(
        sampler_weights.make, cfg=cfg, weights=kind
    )
    if engine.takes_parameters(kind):
      self._make = checksums.as_they_are
    self._lag, self._bound = lag, gap_bound
    self._meant: dict[int, Any] = {}  # checksums by RL step, device or host

  def weights(self, step: int, params: Tree) -> Tree:
    """The sampler weights of a step, of which the certificate takes note."""
    self._meant[step] = checksums.on_device(params, self._make)
    for old in sorted(self._meant)[1 : -KEPT - self._lag]:
      del self._meant[old]  # the first and the newest ones stay
    return self._engine.weights(params, self._kind)

  def of_weights(
      self, counts: dict[str, Any], params: Tree, weights: Tree
  ) -> dict[str, Any]:
    """Compares the weights that sampled a batch with the policy.

    Args:
      counts: of `RolloutCollector.counts`, and `version`: the RL step whose
        policy was to sample. A batch that groups of earlier steps have filled
        was sampled, and certified, then. `faults` are of features, in words.
      params: of the policy of this step.
      weights: that `weights` returned in this step.

    Returns:
      metrics; what is wrong, in words, for its alert.
    """
    out: dict[str, Any] = {HEALTH + "gap_bound": self._bound}
    version, held, faults = counts.get("version"), counts.get("held"), []
    if held and version in self._meant:  # else saved before there were any
      out["rollout/policy_version"] = version
      out["rollout/policy_digest"] = _digest(held[-1]["sums"])
      for x in held:
        fault = self._fault(x["sums"], version, params, weights)
        faults += [y for y in (fault, x["fault"]) if y]
    faults += counts.get("faults", ())
    if faults:
      out[HEALTH + "other_weights"] = "; ".join(faults)
    return out

  def of_logps(
      self, rows: Experience, logps_BT: Array | None
  ) -> dict[str, float]:
    """Compares the log-probs of sampler and trainer.

    Compared are the tokens of this step's policy. Without `logps_BT`, the
    update compares them itself.
    """
    if logps_BT is None:
      return {}
    sampler_BT, mask_BT = rows.rollouts.logps_BT, rows.rollouts.mask_BT
    gap = np.abs(sampler_BT - logps_BT)[mask_BT & (rows.age_B == 0)[:, None]]
    return {"rollout/logp_gap_mean": gap.mean()} if gap.size else {}

  def digest(self, params: Tree) -> Any:
    """`rollout/policy_digest` of a step that samples with these parameters."""
    return _digest(checksums.host_sums(checksums.on_device(params, self._make)))

  def host(self) -> dict[str, checksums.Sums]:
    """The checksums that are known, as JSON."""
    return {str(step): self._sums(step) for step in self._meant}

  def restore(self, host: dict[str, checksums.Sums]) -> None:
    """Restores what `host` returned at the save."""
    self._meant = {int(step): sums for step, sums in host.items()}

  def _sums(self, step: int) -> checksums.Sums:
    """The checksums of a step, on the host."""
    found = self._meant[step]
    if not isinstance(next(iter(found.values())), list):
      found = self._meant[step] = checksums.host_sums(found)
    return found

  def _fault(
      self, held: checksums.Sums, version: int, params: Tree, weights: Tree
  ) -> str:
    """How weights differ from a step's policy; '' if they do not."""
    meant = self._sums(version)
    if held == meant:
      return ""
    # Weights of another policy, all of them or some?
    steps = [x for x in sorted(self._meant, reverse=True) if x != version]
    known = {f"of RL step {x}": self._sums(x) for x in steps}
    if self._frozen is not None:
      base = checksums.host_sums(checksums.on_device(self._frozen, self._make))
      known["of the base, without the adapter"] = base
    for name, sums in known.items():
      if held == sums:
        return f"all weights are {name}, in place of RL step {version}"
    # Only the policy of this step is there to be compared with.
    here = _flat(weights) if version == max(self._meant) else {}
    found: dict[str, list[tuple[str, int]]] = {}
    for path, wanted in meant.items():
      theirs = held.get(path, [])
      if theirs == wanted:
        continue
      merged = path.rpartition("/")[0] in held
      names = ["merged into one matrix" if merged else "missing"] * len(wanted)
      if theirs:
        names = self._causes(
            path, wanted, theirs, known, params, here.get(path)
        )
      for n, name in enumerate(names):
        if theirs[n : n + 1] != [wanted[n]]:
          found.setdefault(name, []).append((path, n))
    parts = [f"{_places(x, meant)} {cause}" for cause, x in found.items()]
    if added := sorted(held.keys() - meant.keys()):
      parts.append(f"{', '.join(added[:PLACES])} added")
    count, total = sum(map(len, found.values())), sum(map(len, meant.values()))
    return (
        f"{count} of {total} arrays differ from RL step {version}:"
        f" {'; '.join(parts)}"
    )

  def _causes(
      self,
      path: str,
      wanted: list[int],
      theirs: list[int],
      known: dict[str, checksums.Sums],
      params: Tree,
      got: Array | None,
  ) -> list[str]:
    """What each layer of an array is in place of the policy's.

    Checksums of its layers are `wanted`, `theirs` of what sampled, and `known`
    of other policies. `got` is the array of what sampled; None: it is gone.
    """
    found: dict[str, Array] = {}
    if got is not None:
      found = sharding.fetch(_compare(params, got, path, self._make))
    names = []
    for n in range(len(wanted)):
      theirs_n = theirs[n : n + 1]
      of = [
          k for k, x in known.items() if x.get(path, [])[n : n + 1] == theirs_n
      ]
      is_ = [
          text for name, text in RELATIONS if name in found and found[name][n]
      ]
      names.append((of + is_ + ["other numbers"])[0])
    return names


def _digest(sums: checksums.Sums) -> int:
  """One number for all weights."""
  every = [x for _, layers in sorted(sums.items()) for x in layers]
  return zlib.crc32(np.array(every, np.uint32).tobytes())


def _flat(tree: Tree) -> dict[str, Array]:
  """Arrays by the paths of `checksums`, of all layers."""
  return {
      name: jnp.stack(x) if isinstance(x, list) else x
      for name, x in checksums.flat(tree).items()
  }


def _places(found: list[tuple[str, int]], meant: checksums.Sums) -> str:
  """Arrays by their layers: 'q, k of layers 0, 3', 'all of layer 1'."""
  of_layer: dict[int, list[str]] = {}
  names = []
  for path, n in found:
    if path.startswith(checksums.LAYERS):
      of_layer.setdefault(n, []).append(path.removeprefix(checksums.LAYERS))
    else:
      names.append(path)
  with_names: dict[str, list[str]] = {}
  every = sum(path.startswith(checksums.LAYERS) for path in meant)
  for n, inside in sorted(of_layer.items()):
    text = "all" if len(inside) == every else ", ".join(inside)
    with_names.setdefault(text, []).append(str(n))
  for text, layers in with_names.items():
    shown = ", ".join(layers[:PLACES])
    more = f" and {len(layers) - PLACES} more" * (len(layers) > PLACES)
    names.append(f"{text} of layer{'s' * (len(layers) > 1)} {shown}{more}")
  return ", ".join(names)


RELATIONS = (  # the first that holds
    ("same", "right as they left the trainer"),
    ("zeros", "all zeros"),
    ("transposed", "transposed"),
    ("rounded", "rounded"),
    ("unrelated", "unrelated numbers"),
)


@functools.partial(jax.jit, static_argnames=("path", "make"))
def _compare(
    params: Tree, got: Array, path: str, make: Callable[[Tree], Tree]
) -> dict[str, Array]:
  """Whether each of `RELATIONS` holds, by layer; {} of other shapes."""
  want = _flat(make(params))[path]
  if want.shape != got.shape:
    return {}
  if not path.startswith(checksums.LAYERS):
    want, got = want[None], got[None]
  want, got = want.astype(jnp.float32), got.astype(jnp.float32)
  axes = tuple(range(1, want.ndim))
  gap = jnp.abs(got - want)
  turned = jnp.zeros(len(want), bool)
  if want.ndim == 3 and want.shape[1] == want.shape[2]:
    turned = jnp.all(got == want.swapaxes(1, 2), axes)
  return dict(
      same=jnp.all(gap == 0, axes),
      zeros=jnp.all(got == 0, axes),
      transposed=turned,
      rounded=jnp.all(gap <= ROUNDED * jnp.abs(want), axes),
      unrelated=jnp.sum(gap**2, axes) >= jnp.sum(want**2, axes),
  )


def bound(
    precisions: set[str],
    dtype: str,
    *,
    own_engine: bool,
    has_experts: bool,
    backend: str,
) -> float:
  """The largest mean |log p sampler - log p trainer| of a sound step, in nats.

  The measurements are in docs/monitoring.md.

  Args:
    precisions: of the sampler weights and of the key/value cache.
    dtype: of the model.
    own_engine: whether this package samples.
    has_experts: whether the model has experts.
    backend: of jax.
  """
  same = dtype == "float32" and precisions == {"same"} and own_engine
  # Backends other than a CPU compute products of float32 in less precision.
  if same and backend == "cpu":
    return 1e-4
  return 0.2 if "int8" in precisions or not own_engine or has_experts else 0.1
