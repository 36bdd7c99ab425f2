"""Which implementation computes attention, and what each of them supports.

A run chooses once, at its start (`choose`); "xla" is `models.packed_attention`
for packed rows and `models.attention` for decoding, and runs everywhere.
"""

from typing import NamedTuple


class Kernels(NamedTuple):
  """What an implementation other than XLA's supports.

  Attributes:
    backend: of JAX, on which it runs.
    head_dims: sizes of a head, in ascending order. A smaller head is padded
      with zeros, which change no score and no output.
    block: most tokens that a kernel processes together; packed rows are padded
      to a multiple of it.
    paged: whether it decodes, too, from the pages of a cache; otherwise XLA
      does.
    int8: whether it decodes with an int8 cache. The TPU's kernel would
      broadcast each scale over the numbers that it scales: for each layer of
      each step an array of four times the bytes of the cache.
  """

  backend: str
  head_dims: tuple[int, ...]
  block: int
  paged: bool
  int8: bool


KERNELS = {
    # cuDNN's flash attention, and XLA for decoding.
    "cudnn": Kernels("gpu", tuple(range(8, 129, 8)), 128, False, True),
    # Pallas on Triton, which JAX deprecates: only by name.
    "triton": Kernels("gpu", (64, 128), 128, True, True),
    # Pallas on Mosaic: splash and paged attention.
    "tpu": Kernels("tpu", (128, 256), 512, True, False),
}
DEFAULT = {"gpu": "cudnn", "tpu": "tpu"}  # of a backend, for 'auto'


def paged(name: str) -> bool:
  """Whether kernels decode, for which a cache has a layout of its own."""
  return name in KERNELS and KERNELS[name].paged


def padded(name: str, head_dim: int) -> int:
  """The size of a head that kernels compute with, at least `head_dim`."""
  sizes = KERNELS[name].head_dims if name in KERNELS else ()
  return min((x for x in sizes if x >= head_dim), default=head_dim)


def cached(name: str, head_dim: int) -> int:
  """The size of a head in the cache: padded where kernels read the cache.

  To pad the queries, keys and values of a step costs little; to pad a cache
  would copy it. A TPU pads what it stores to 128 numbers anyway.
  """
  return padded(name, head_dim) if paged(name) else head_dim


def choose(
    wanted: str,
    backend: str,
    dtype: str,
    head_dim: int,
    *,
    whole_rows: bool = True,
) -> tuple[str, str]:
  """The implementation of attention for a run, and the reason in words.

  Args:
    wanted: model.attention: 'auto', 'xla', or a key of KERNELS.
    backend: of JAX.
    dtype: of the matrix products.
    head_dim: of the model.
    whole_rows: whether mesh.sequence leaves each device some heads of its own.

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
