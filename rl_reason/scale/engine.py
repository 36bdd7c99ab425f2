"""The rollout engine: the sampler of one model with its compiled programs."""

import functools
from collections.abc import Iterator
from typing import Any

import jax

from rl_reason.models import decoder, parameters
from rl_reason.rollout import sampler, sampler_weights
from rl_reason.scale import sharding
from rl_reason.scale.compiled import CompiledOnce, Display
from rl_reason.structs import Array, Prompts, Rollouts, Tree


class RolloutEngine:
  """Samples responses with any parameters of one model.

  Args:
    cfg: static shape of the model.
    mesh: devices that sample.
    eos: tokens that end a response.
    pad: token that fills unused places.
    max_tokens: longest response, EOS included.
    slots: rows that decode together; 0 decodes all rows at once.
    display: where compile times are reported.
  """

  def __init__(
      self,
      cfg: decoder.ModelConfig,
      mesh: jax.sharding.Mesh,
      *,
      eos: tuple[int, ...],
      pad: int,
      max_tokens: int,
      slots: int,
      display: Display,
  ):
    self._cfg, self._mesh, self._display = cfg, mesh, display
    self._static: dict[str, Any] = dict(
        eos=eos, pad=pad, max_tokens=max_tokens, slots=slots
    )
    self._programs: dict = {}

  def weights(self, params: Tree, kind: str = "same") -> Tree:
    """The sampler weights of a policy: cast or quantised, gathered over fsdp.

    Args:
      params: of the policy.
      kind: 'same', 'bfloat16' or 'int8'; see `sampler_weights`.
    """
    if kind == "same" and self._cfg.dtype == "float32":
      if self._mesh.shape["fsdp"] == 1:
        return params  # the parameters can be sampled with as they are
    signature = kind, _signature(params)
    if signature not in self._programs:
      make = functools.partial(
          sampler_weights.make, cfg=self._cfg, weights=kind
      )
      table = sampler_weights.table(self._cfg, kind)
      fn = jax.jit(make, out_shardings=parameters.shardings(table, self._mesh))
      self._programs[signature] = CompiledOnce(
          "sampler weights", fn, self._display
      )
    return self._programs[signature](params)

  def stream(
      self,
      params: Tree,
      prompts: Prompts,
      key: Array,
      temperature: Array,
      sizes_N: Array | None = None,
      *,
      expected_B: Array | None = None,
      resumed: tuple[Rollouts, Array] | None = None,
      **options,
  ) -> Iterator[tuple[Rollouts, Array]]:
    """`sampler.stream` of host arrays, which are placed on the mesh here.

    Args:
      params: see `sampler.stream`; the other arguments likewise.
      prompts: on the host.
      key: on the mesh.
      temperature: on the host, scalar or [G].
      sizes_N: on the host, or None.
      expected_B: on the host, expected lengths of responses, or None.
      resumed: on the host, partial rollouts to resume, or None.
      **options: further keywords of `sampler.stream`.
    """
    by_row = functools.partial(sharding.put, self._mesh)
    return sampler.stream(
        params,
        by_row(prompts, "batch"),
        key,
        sharding.put(self._mesh, temperature),
        None if sizes_N is None else sharding.put(self._mesh, sizes_N),
        expected_B=None if expected_B is None else by_row(expected_B, "batch"),
        resumed=None if resumed is None else by_row(resumed, "batch"),
        program=functools.partial(self._program, _signature(params)),
        cfg=self._cfg,
        **self._static,
        **options,
    )

  def sample(self, *args, **options) -> Rollouts:
    """All responses at once: the last item that `stream` yields."""
    *_, (rollouts, _) = self.stream(*args, **options)
    return rollouts

  def _program(self, signature, static, name: str, shape) -> CompiledOnce:
    kind = signature, static, name, shape
    if kind not in self._programs:
      fn = sampler.program(static, name, shape)
      self._programs[kind] = CompiledOnce(f"sampler: {name}", fn, self._display)
    return self._programs[kind]


def _signature(params: Tree):
  """Equal for parameters that one compiled program can take."""
  return jax.tree.structure(params), *(x.dtype for x in jax.tree.leaves(params))
