"""Seeds and keys of a run, one for each purpose.

All randomness of a run follows from `config.seed` and the name of a purpose, so
that two purposes never share noise and a resumed run repeats its own.
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
  """A JAX random key, replicated over the mesh if there is one."""
  seed_and_purpose = np.int64(seed).astype(np.int32), np.uint32(
      zlib.crc32(purpose.encode())
  )
  return _key(*sharding.put(mesh, seed_and_purpose))


@jax.jit
def _key(seed, purpose):
  return jax.random.fold_in(jax.random.key(seed), purpose)
