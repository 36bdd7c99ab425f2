"""Implementations of attention and their limits.

`choose` selects an implementation at the start of a run. "xla" runs everywhere:
`models.packed_attention` for packed rows, `models.attention` for decoding.
"""

from typing import NamedTuple


class Kernels(NamedTuple):
  """Limits of an implementation other than XLA.

  Attributes:
    backend: backend of JAX.
    head_dims: sizes of a head, in ascending order. Smaller heads are padded
      with zeros, which change neither scores nor outputs.
    block: largest block of tokens; packed rows are padded to a multiple of it.
    paged: whether decoding uses a paged kernel, which reads the cache of all
      layers.
    by_layer: whether decoding has weights and a cache for each layer, in a loop
      that is unrolled. XLA's GPU backend would copy a layer out of stacked
      arrays in each step, which takes longer than reading it.
    int8: whether decoding supports an int8 cache. The TPU kernel would
      broadcast each scale: for each layer of each step an array with four times
      the bytes of the cache.
  """

  backend: str
  head_dims: tuple[int, ...]
  block: int
  paged: bool
  by_layer: bool
  int8: bool


KERNELS = {
    # cuDNN's flash attention; XLA reads a cache of int8.
    "cudnn": Kernels("gpu", tuple(range(8, 129, 8)), 128, False, True, True),
    # Pallas on Triton, which JAX deprecates: never by default.
    "triton": Kernels("gpu", (64, 128), 128, True, False, True),
    # Pallas on Mosaic: splash and paged attention.
    "tpu": Kernels("tpu", (128, 256), 512, True, False, False),
}
DEFAULT = {"gpu": "cudnn", "tpu": "tpu"}  # backend -> choice for 'auto'


def paged(name: str) -> bool:
  """Whether decoding uses a paged kernel, with its own layout of the cache."""
  return name in KERNELS and KERNELS[name].paged


def by_layer(name: str) -> bool:
  """Whether the sampler has weights and a cache for each layer."""
  return name in KERNELS and KERNELS[name].by_layer


def padded(name: str, head_dim: int) -> int:
  """The padded size of a head in kernels, at least `head_dim`."""
  sizes = KERNELS[name].head_dims if name in KERNELS else ()
  return min((x for x in sizes if x >= head_dim), default=head_dim)


def cached(name: str, head_dim: int) -> int:
  """The size of a head in the cache, padded if kernels read the cache.

  Padding queries, keys and values of a step is cheap; padding a cache would
  copy it. A TPU pads arrays in memory to 128 numbers anyway.
  """
  reads = paged(name) or by_layer(name)
  return padded(name, head_dim) if reads else head_dim


def choose(
    wanted: str,
    backend: str,
    dtype: str,
    head_dim: int,
    *,
    whole_rows: bool = True,
) -> tuple[str, str]:
  """The implementation of attention for a run, and the reason for the choice.

  Args:
    wanted: model.attention: 'auto', 'xla', or a key of KERNELS.
    backend: backend of JAX.
    dtype: dtype of the matrix products.
    head_dim: size of a head of the model.
    whole_rows: whether each device has whole heads with mesh.sequence.

  Returns:
    'xla' or a key of KERNELS; and the reason.
  """
  if wanted == "xla":
    return "xla", "model.attention"
  name = DEFAULT.get(backend, "") if wanted == "auto" else wanted
  if name not in KERNELS or KERNELS[name].backend != backend:
    of = "" if wanted == "auto" else f"{wanted} "
    return "xla", f"no {of}kernels for {backend}"
  largest = KERNELS[name].head_dims[-1]
  reasons = {
      f"the kernels take bfloat16, not {dtype}": dtype != "bfloat16",
      f"the kernels take heads of at most {largest}, not {head_dim}": (
          head_dim > largest
      ),
      "mesh.sequence x mesh.tensor must divide model.kv_heads for kernels": (
          not whole_rows
      ),
  }
  for reason, holds in reasons.items():
    if holds:
      return "xla", reason
  reason = f"kernels for {backend}"
  if (size := padded(name, head_dim)) != head_dim:
    reason += f"; heads of {head_dim} are padded to {size}"
  return name, reason
