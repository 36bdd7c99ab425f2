"""The rules of optimizers, by NumPy."""

import golden
import jax
import jax.numpy as jnp
import numpy as np
import tiny

from rl_reason.training import optimizer

LAYERS, EXPERTS, IN, OUT = 2, 3, 6, 4


def _orthogonal(x, steps=5):
  """The quintic Newton-Schulz iteration of Jordan (2024) on one matrix."""
  x = x / np.linalg.norm(x)
  for _ in range(steps):
    square = x.T @ x
    x = 3.4445 * x + x @ (-4.775 * square + 2.0315 * square @ square)
  return x


def test_muon_of_each_matrix_of_the_layers_by_hand():
  """Momentum .95 with Nesterov's step, made orthogonal, at AdamW's size."""
  rng = np.random.default_rng(0)
  shapes = dict(q=(LAYERS, IN, OUT), up=(LAYERS, EXPERTS, IN, OUT))
  params = {
      "layers": {k: rng.normal(size=x) for k, x in shapes.items()},
      "embed": rng.normal(size=(5, IN)),
  }
  params["layers"]["norm"] = rng.normal(size=(LAYERS, IN))
  params = jax.tree.map(jnp.float32, params)
  lr, decay = 0.01, 0.1
  tx = golden.optimizer("muon", lr=lr, weight_decay=decay, clip_norm=0.0)
  state = tx.init(params)
  mean = dict.fromkeys(shapes, 0.0)
  for count in 1, 2:
    grads = jax.tree.map(
        lambda x: jnp.float32(rng.normal(size=x.shape)), params
    )
    moved, state = jax.jit(tx.update)(grads, state, params)
    for name in shapes:
      grad = np.float64(grads["layers"][name])
      mean[name] = 0.95 * mean[name] + 0.05 * grad
      ahead = 0.95 * mean[name] / (1 - 0.95 ** (count + 1))
      ahead += 0.05 * grad / (1 - 0.95**count)
      for index in np.ndindex(*grad.shape[:-2]):
        expected = -lr * (
            0.2 * IN**0.5 * _orthogonal(ahead[index])
            + decay * np.asarray(params["layers"][name][index])
        )
        np.testing.assert_allclose(
            moved["layers"][name][index], expected, rtol=1e-3, atol=1e-6
        )
  for x in moved["embed"], moved["layers"]["norm"]:  # Adam: of any gradient
    assert 0.1 * lr < np.sqrt(np.mean(np.square(x))) < 2 * lr


def test_muon_keeps_one_number_of_a_matrix_and_two_of_the_rest():
  params, tx = tiny.params(), tiny.optimizer(name="muon")
  flat = jax.tree.leaves_with_path(params)
  matrices = [x for k, x in flat if optimizer.is_layer_matrix(k, x.shape)]
  assert len(matrices) == 7  # q, k, v, o, gate, up, down
  twice = 2 * sum(x.size for x in jax.tree.leaves(params))
  kept = sum(x.size for x in jax.tree.leaves(tx.init(params)) if x.ndim > 1)
  vectors = 2 * params["norm"].size  # their moments have one axis
  assert kept == twice - sum(x.size for x in matrices) - vectors
