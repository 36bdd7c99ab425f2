"""The kinds of functions that a config names."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rl_reason import features


class Kind(NamedTuple):
  """A choice of a function.

  Attributes:
    field: the section of the config, with fields `name` and `args`.
    modules: of the package; their functions that take only `inputs` can be
      named.
    inputs: what a run supplies, by name.
    off: the name that stands for no function; '' if there is none.
    aliases: other names of functions.
    removed: names of earlier versions -> what is closest now; the attic of
      docs/scope.md has the last commit.
    results: the axes of the array that a function returns, or alternatives; a
      user's function is traced with them before a run, and not at all without.
  """

  field: str
  modules: tuple[str, ...]
  inputs: tuple[str, ...]
  off: str = ""
  aliases: Mapping[str, str] = {}
  removed: Mapping[str, str] = {}
  results: tuple[Any, ...] = ()


# Further entries of a surrogate's dict are not read.
OF_SURROGATE = ("BT", dict(clipped="BT", clipped_lower="BT"))
OWN_TERMS = "loss.terms"  # functions of the user, which are of no kind
_ADVANTAGES = ("advantages", "advantage_variants", "process")
_VARIANTS = ("algorithms.variants",)
_CORE = {
    "advantage": Kind(
        "advantage",
        tuple(f"algorithms.{x}" for x in _ADVANTAGES),
        tuple("""rewards_B rewards_BT groups_B valid_B types_B problems_B
        lengths_B mask_BT logps_BT entropy_BT squares_BT values_BT
        step_rewards_BT step_ends_BT progress parts""".split()),
        results=("B", "BT", "B1"),
    ),
    "surrogate": Kind(
        "surrogate",
        ("algorithms.surrogates", "algorithms.surrogate_variants"),
        (
            *("logps_BT", "old_logps_BT", "advantages_BT", "mask_BT"),
            "sampler_logps_BT",
        ),
        results=(OF_SURROGATE,),
    ),
    "reduction": Kind(
        "reduction",
        ("algorithms.reductions",),
        ("mask_BT", "groups_B"),
        results=("BT",),
    ),
    "engine": Kind("rollout.engine", ("rollout.vllm",), (), off="own"),
    "outcome": Kind(
        "reward.outcome",
        ("algorithms.rewards",),
        ("correct_B", "correct", "incorrect", "lengths_B", "max_tokens"),
        removed={
            "cosine": (
                "reward.length_penalty.name 'logquad' is closest, or"
                " reward.overlong_buffer"
            )
        },
        results=("B",),
    ),
    "length_penalty": Kind(
        "reward.length_penalty",
        _VARIANTS,
        ("rewards_B", "correct_B", "lengths_B", "max_tokens"),
        off="none",
        results=("B",),
    ),
    "critic_head": Kind("critic.head", ("models.critic",), ("trunk",)),
}


class _Kinds(Mapping[str, Kind]):
  """The kinds of the core, and those of features, which load at first use."""

  @functools.cached_property
  def _all(self) -> dict[str, Kind]:
    out = dict(_CORE)
    for one in features.declared():
      out |= one.kinds
      for kind, names in one.inputs.items():
        if kind == OWN_TERMS:
          continue
        out[kind] = out[kind]._replace(inputs=(*out[kind].inputs, *names))
      for kind, modules in one.functions.items():
        out[kind] = out[kind]._replace(modules=(*out[kind].modules, *modules))
    return out

  def __getitem__(self, kind: str) -> Kind:
    return self._all[kind]

  def __iter__(self) -> Iterator[str]:
    return iter(self._all)

  def __len__(self) -> int:
    return len(self._all)


KINDS = _Kinds()
