"""What the tests of the algorithms share: calls under jit, and strategies."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.extra import numpy as hnp

# In float64 behind `-m slow`: the programs compile once more.
DTYPES = pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)]
)
NEAR = {
    "float32": dict(rtol=1e-5, atol=2e-6),
    "float64": dict(rtol=1e-11, atol=1e-12),
}
QUICK = settings(max_examples=12, deadline=None, derandomize=True)
# Eighths are exact in fp32, and so are their sums.
EIGHTHS = st.integers(-16, 16).map(lambda n: n / 8)
close = np.testing.assert_allclose
same = np.testing.assert_array_equal


def floats(*shape):
  return hnp.arrays(float, shape, elements=EIGHTHS)


def bools(*shape):
  return hnp.arrays(bool, shape)


def ids(*shape, names=(0, 9, -1, 2**31 - 1, -(2**31))):
  """Few ids, so that groups repeat; negative and extreme ones too."""
  return hnp.arrays(np.int32, shape, elements=st.sampled_from(names))


# Optimised code gives the same numbers, and takes longer to compile.
quick_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)


@functools.cache
def _program(function, static):
  return quick_jit(functools.partial(function, **dict(static)))


def call(function, *inputs, dtype="float32", static=(), **keywords):
  """A function under jit, in one precision.

  Args:
    function: of rl_reason/algorithms.
    *inputs: floats become `dtype`, whatever their own precision.
    dtype: of the result, which is checked.
    static: names of keywords that shape the program; strings always do.
    **keywords: its other keywords.
  """
  fixed = {
      k: x
      for k, x in keywords.items()
      if k in static or isinstance(x, str | bool)
  }
  free = {k: x for k, x in keywords.items() if k not in fixed}
  with jax.enable_x64(dtype == "float64"):
    arrays = (
        jnp.array(x, dtype if np.asarray(x).dtype.kind == "f" else None)
        for x in inputs
    )
    out = _program(function, tuple(fixed.items()))(*arrays, **free)
  for x in jax.tree.leaves(out):
    assert x.dtype in (dtype, bool)
  return jax.tree.map(np.asarray, out)


def public(module):
  """Names of the public functions that a module defines."""
  return {
      name
      for name, x in vars(module).items()
      if inspect.isfunction(x)
      and x.__module__ == module.__name__
      and name[0] != "_"
  }
