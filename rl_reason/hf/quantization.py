"""Weights of 8 or 4 bits in the format of compressed-tensors.

vLLM reads the format natively, and transformers with the package
compressed-tensors: in place of the tensor NAME.weight, a file has

  NAME.weight_packed   int32 [out, ceil(in * bits / 32)]: values plus
                       2 ** (bits - 1), the first one in the lowest bits
  NAME.weight_scale    bfloat16 [out, groups]
  NAME.weight_shape    int64 [2]: out, in

A weight is its value times the scale of its group. Matrices of the layers are
rounded to the nearest value; embeddings, the LM head, norms, biases and routers
stay in bfloat16. The shapes of a matrix here are those of the files.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.base.errors import ConfigError
from rl_reason.base.structs import Array, Tree
from rl_reason.models import decoder, linear

BITS = {"int8": 8, "int4": 4}  # by the name of the precision
# Groups of inputs for which vLLM has kernels on all its GPUs; large ones first.
GROUPS = (128, 64, 32)
MATRIX = "_proj.weight"  # how the names of quantized tensors end
# Modules of PyTorch that are linear, too, and stay in bfloat16.
IGNORED = ["lm_head", r"re:.*mlp\.gate$"]


class Scheme(NamedTuple):
  """How matrices are rounded.

  Attributes:
    bits: of a value.
    group: adjacent inputs of an output that share a scale; 0: all of them.
  """

  bits: int
  group: int = 0


def inputs(cfg: decoder.ModelConfig) -> dict[str, int]:
  """The numbers of inputs of the matrices, by the fields that decide them."""
  return {
      "model.width": cfg.width,
      "model.heads * model.head_dim": cfg.heads * cfg.head_dim,
      "model.mlp": cfg.mlp,
  }


def scheme(cfg: decoder.ModelConfig, precision: str) -> Scheme | None:
  """The scheme of a precision: the largest groups that divide all matrices.

  Args:
    cfg: shape of the model.
    precision: 'int8' has a scale for each output, 'int4' for each group; others
      have none.

  Raises:
    ConfigError: no group divides the inputs of a matrix.
  """
  if precision != "int4":
    return Scheme(BITS[precision]) if precision in BITS else None
  sizes = inputs(cfg)
  for group in GROUPS:
    if not any(size % group for size in sizes.values()):
      return Scheme(BITS[precision], group)
  name, size = next(x for x in sizes.items() if x[1] % GROUPS[-1])
  raise ConfigError(
      f"export.precision = {precision!r}: groups have at least"
      f" {GROUPS[-1]} inputs, which do not divide {name} = {size}; 'int8' has"
      " no groups"
  )


def quantize(w_OI: Array, scheme: Scheme) -> tuple[Array, Array]:
  """Rounds matrices to the nearest values, symmetrically.

  A scale is the largest magnitude over the half of the range, as in the
  observers of compressed-tensors: the largest magnitude may be clipped by half
  a step, and all other steps are smaller for it.

  Args:
    w_OI: float32 [..., out, in], of NumPy or JAX.
    scheme: bits and groups.

  Returns:
    values, int8 [..., out, in], and scales, bfloat16 [..., out, groups].
  """
  half = 2 ** (scheme.bits - 1)
  groups = w_OI.reshape(*w_OI.shape[:-1], -1, scheme.group or w_OI.shape[-1])
  scale = (abs(groups).max(-1) / (half - 0.5)).astype(jnp.bfloat16)
  # The values belong to the scale of the file, which is rounded already.
  step = scale.astype(np.float32)
  step += step == 0  # of a group of zeros
  values = (groups / step[..., None]).round().clip(-half, half - 1)
  return values.reshape(w_OI.shape).astype(np.int8), scale


def dequantize(values_OI: Array, scale: Array) -> Array:
  """The matrices, float32 [..., out, in], of the results of `quantize`."""
  values = values_OI.reshape(*scale.shape, -1).astype(np.float32)
  return (values * scale.astype(np.float32)[..., None]).reshape(values_OI.shape)


def pack(values_OI: np.ndarray, bits: int) -> np.ndarray:
  """Packs values int8 [out, in] into int32 [out, ceil(in * bits / 32)]."""
  raw = (values_OI.astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8)
  raw = np.pad(raw, ((0, 0), (0, -raw.shape[1] % (32 // bits))))
  if bits == 4:
    raw = raw[:, ::2] | raw[:, 1::2] << 4
  return np.ascontiguousarray(raw).view("<i4")


def config(scheme: Scheme) -> dict[str, Any]:
  """The field quantization_config of config.json."""
  weights = dict(
      num_bits=scheme.bits,
      type="int",
      symmetric=True,
      dynamic=False,
      strategy="group" if scheme.group else "channel",
      group_size=scheme.group or None,
  )
  group = dict(
      targets=["Linear"],
      weights=weights,
      input_activations=None,
      output_activations=None,
  )
  return dict(
      quant_method="compressed-tensors",
      format="pack-quantized",
      quantization_status="compressed",
      ignore=IGNORED,
      kv_cache_scheme=None,
      config_groups=dict(group_0=group),
  )


def sizes(
    name: str, shape: tuple[int, ...], scheme: Scheme
) -> dict[str, tuple[str, int]]:
  """The tensors of a matrix: name -> its part, and its bytes."""
  outputs, size = shape
  words = -(-size * scheme.bits // 32)
  groups = size // scheme.group if scheme.group else 1
  parts = dict(packed=4 * outputs * words, scale=2 * outputs * groups, shape=16)
  return {f"{name}_{part}": (part, size) for part, size in parts.items()}


def tensors(w_OI: np.ndarray, scheme: Scheme) -> dict[str, np.ndarray]:
  """The tensors of a matrix by their part: packed, scale and shape."""
  values, scale = quantize(w_OI, scheme)
  shape = np.array(w_OI.shape, np.int64)
  return dict(packed=pack(values, scheme.bits), scale=scale, shape=shape)


def rounded(params: Tree, cfg: decoder.ModelConfig, precision: str) -> Tree:
  """The parameters of a policy as an export of a precision has them, float32.

  Args:
    params: of a policy whose weights are arrays.
    cfg: its shape.
    precision: 'bfloat16', 'int8' or 'int4'.

  Raises:
    ConfigError: as `scheme`.
  """
  found = scheme(cfg, precision)
  out = jax.tree.map(lambda x: linear.rounded(x, "bfloat16"), params)
  if found is None:
    return out
  layers = dict(out["layers"])
  for name in decoder.MATRICES:
    w_OI = params["layers"][name].swapaxes(-1, -2)
    layers[name] = dequantize(*quantize(w_OI, found)).swapaxes(-1, -2)
  return out | dict(layers=layers)
