"""Seeds and random keys of a run, one for each purpose.

`config.seed` and the name of a purpose determine all random numbers, so that
purposes do not share noise, and a resumed run repeats its noise.
"""

import zlib

import jax
import numpy as np

from rl_reason.base.structs import Array
from rl_reason.devices import sharding


def host_seed(seed: int, purpose: str) -> int:
  """A seed for NumPy or grain on the host."""
  return zlib.crc32(f"{purpose} {seed}".encode())


def key(mesh: jax.sharding.Mesh | None, seed: int, purpose: str) -> Array:
  """A JAX random key, replicated over the mesh if there is a mesh."""
  seed_and_purpose = np.int64(seed).astype(np.int32), np.uint32(
      zlib.crc32(purpose.encode())
  )
  return _key(*sharding.put(mesh, seed_and_purpose))


@jax.jit
def _key(seed, purpose):
  return jax.random.fold_in(jax.random.key(seed), purpose)
