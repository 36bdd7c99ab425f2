"""LoRA: low-rank factors for the matrices of a frozen base model.

Hu et al., arXiv:2106.09685. The trainable factors are a separate pytree, so
that optimizer state and checkpoints are small; the base is also the reference
policy of a KL penalty. `a` is initialized at random and `b` at zero: the
initial policy is bit-identical to the base.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rl_reason.base import feature
from rl_reason.base.errors import RunError
from rl_reason.base.structs import Array, Tree
from rl_reason.devices.randomness import key
from rl_reason.models import checksums, decoder, linear, parameters
from rl_reason.training import learned_parameters


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class LowRank(linear.Composed):
  """A weight `base + scale * a @ b` (arXiv:2106.09685, eq 3).

  Attributes:
    base: the frozen weight.
    a: [..., in, rank].
    b: [..., rank, out].
    scale: alpha / rank; static.
  """

  base: Any
  a: Any
  b: Any
  scale: float = dataclasses.field(metadata=dict(static=True))

  def product(self, x: Array) -> Array:
    """x times the base, and x times the factors."""
    low = (x @ self.a.astype(x.dtype)) @ self.b.astype(x.dtype)
    return linear.product(x, self.base) + self.scale * low

  def merged(self) -> Array:
    """Adds the factors to the base, in fp32.

    Rounding the sum to bfloat16 loses most of a small adapter: at
    |sAB| / |W| = 1e-3 most sums round to W, and the error is 0.79 of the effect
    (results/precision.md). So trainer and sampler keep them separate.
    """
    product = jnp.matmul(self.a, self.b, precision="highest")
    return self.base.astype(jnp.float32) + self.scale * product

  def quantized(self, dtype: str) -> "LowRank":
    """With the base in int8."""
    return LowRank(
        linear.quantize(self.base),
        self.a.astype(dtype),
        self.b.astype(dtype),
        self.scale,
    )

  def table(self, row: parameters.Param, matrix: Any) -> "LowRank":
    """Rows of the factors beside `matrix`."""
    return LowRank(matrix, **_rows(row, self.a.shape[-1]), scale=self.scale)


def _rows(row: parameters.Param, rank: int) -> dict[str, parameters.Param]:
  (count, wide, out), (_, axis_in, axis_out), *_ = row
  return dict(
      a=parameters.Param(
          (count, wide, rank), (None, axis_in, None), "normal", wide
      ),
      b=parameters.Param((count, rank, out), (None, None, axis_out), "zeros"),
  )


def table(
    cfg: decoder.ModelConfig, rank: int, targets: tuple[str, ...]
) -> dict[str, dict]:
  """The table of the factors a and b of each target of `decoder.MATRICES`."""
  layers = decoder.table(cfg)["layers"]
  return dict(layers={name: _rows(layers[name], rank) for name in targets})


def join(base: Tree, factors: Tree, scale: float) -> Tree:
  """Parameters for `decoder.forward`, without copies.

  Args:
    base: the frozen parameters.
    factors: in the layers of `table`.
    scale: alpha / rank.
  """
  layers = base["layers"]
  low_rank = {
      name: LowRank(layers[name], **ab, scale=scale)
      for name, ab in factors["layers"].items()
  }
  return base | dict(layers=layers | low_rank)


class Factors(learned_parameters.Learned):
  """Factors are learned beside the frozen parameters that RL starts from.

  Args:
    rank: of the factors.
    alpha: times 1 / rank, the scale of their product.
    targets: names of the matrices that have factors.
    seed: of the run.
  """

  needs_start = "as the base of lora.rank"
  no_mean = (
      "the mean of LoRA factors is not the factors of the mean policy: name one"
      " step"
  )

  def __init__(
      self, rank: int, alpha: float, targets: tuple[str, ...], seed: int
  ):
    self._rank, self._targets, self._seed = rank, targets, seed
    self._scale = alpha / rank

  def table(self, cfg: decoder.ModelConfig) -> Tree:
    """The table of the factors."""
    return table(cfg, self._rank, self._targets)

  def frozen(self, params: Tree, dtype: str) -> Tree:
    """The base, in the dtype of the matrix products.

    Only matrix products read it, so the cast changes no number.
    """
    return linear.cast(params() if callable(params) else params, dtype)

  def first(
      self, params: Tree, cfg: decoder.ModelConfig, mesh: jax.sharding.Mesh
  ) -> Tree:
    """Random `a` and zeros `b`, initialized in their shards."""
    rows = self.table(cfg)
    make = jax.jit(
        lambda x: parameters.init_table(rows, x),
        out_shardings=parameters.shardings(rows, mesh),
    )
    return make(key(mesh, self._seed, "factors"))

  def read(self, learned: Tree, frozen: Tree | None) -> Tree:
    """The base with its factors."""
    return join(frozen, learned, self._scale)

  def check(self, host: dict[str, Any], frozen: Tree | None) -> None:
    """Refuses factors that were trained on another base model.

    Raises:
      RunError: the checksum of the base is another one.
    """
    require_base(host, checksums.digest(frozen))


def require_base(host: dict[str, Any], digest: int) -> None:
  """Refuses a checkpoint of factors of another base; `digest` is of this one.

  Raises:
    RunError: names what has changed.
  """
  if host["base_digest"] != digest:
    raise RunError(
        "the LoRA factors of this run's checkpoint belong to another model: the"
        " model that model.path or sft.reuse names has changed; choose another"
        " --workdir"
    )


class Base(feature.Part):
  """The checksum of the frozen base, in each checkpoint.

  Args:
    frozen: the base.
  """

  def __init__(self, frozen: Tree):
    self._digest = checksums.digest(frozen)

  def host(self) -> dict[str, Any]:
    """The checksum."""
    return dict(base_digest=self._digest)

  def restore(self, arrays: dict[str, Any], host: dict[str, Any]) -> None:
    """Refuses a checkpoint of another base, as `require_base`."""
    require_base(host, self._digest)
