"""How sets are sampled by their published protocols, and what differs.

`data/published.py` has the prompts and the numbers of the protocols.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl_reason.base import config as config_lib, feature
from rl_reason.data import templates
from rl_reason.data.published import PUBLISHED, Protocol


class Protocols(feature.Evaluator):
  """Samples sets by their protocols, and says whether scores are comparable.

  Args:
    c: the config.
    say: shows a line.
    replaces: whether a protocol replaces the fields of the config.
  """

  def __init__(self, c, say: Callable[[str], None], *, replaces: bool):
    self._fields, self._say = config_lib.flat(c), say
    self._replaces = replaces

  def sampling(self, row: Any) -> dict[str, Any]:
    """The fields of the protocol of a row's set; {} without one."""
    return sampling(row.source, self._fields) if self._replaces else {}

  def metrics(
      self, found: Any, sets: Any, earlier: Sequence[Any]
  ) -> dict[str, float]:
    """Says of each known set whether its score is the published one."""
    for x in sets:
      if "~" in x.name:  # copies, whose problems no source has
        continue
      fields = {**self._fields, **x.sampling}
      if text := line(x.name, x.rows[0], len(x.rows), fields):
        self._say(text)
    return {}


def metric(protocol: Protocol) -> str:
  """The name of the published score among the metrics of a set."""
  return f"mean@{protocol.samples}" if protocol.temperature else "greedy"


def fields_of(protocol: Protocol) -> dict[str, Any]:
  """Fields of a config for sampling as the source does."""
  out: dict[str, Any] = {"evaluate.repetition_penalty": 1.0}
  if protocol.temperature:
    out |= {
        "evaluate.samples": protocol.samples,
        "evaluate.mean_of": protocol.samples,
        "evaluate.temperature": protocol.temperature,
        "evaluate.top_p": protocol.top_p,
        "evaluate.top_k": 0,
        "evaluate.min_p": 0.0,
    }
  if protocol.tokens:
    out["rollout.max_tokens"] = protocol.tokens
  return out


def sampling(source: str, fields: Mapping[str, Any]) -> dict[str, Any]:
  """Fields that replace those of a config for the protocol of a set.

  They are {} without a protocol. The maximum length stays that of the config,
  if that is shorter: the sampler has room for no more tokens.

  Args:
    source: of the rows of the set.
    fields: the flat config.
  """
  protocol = PUBLISHED.get(source)
  if protocol is None or not protocol.prompts:
    return {}
  out, name = fields_of(protocol), "rollout.max_tokens"
  if name in out:
    out[name] = min(out[name], fields[name])
  return out


def differences(
    protocol: Protocol,
    kind: str,
    prompts: int,
    fields: Mapping[str, Any],
    prompt: str = "",
) -> list[str]:
  """In what an evaluation differs from a protocol, 'field = value, not value'.

  Args:
    protocol: of the set.
    kind: of its rows.
    prompts: number of prompts that were evaluated.
    fields: the flat config of the evaluation.
    prompt: one of them, which shows how many solved tasks it begins with.
  """
  used: dict[str, Any] = dict(fields)
  wanted: dict[str, Any] = {"data.chat": protocol.chat, "data.system": ""}
  if not templates.choose(used["data.template"], kind).published:
    wanted["data.template"] = templates.PUBLISHED
  wanted |= fields_of(protocol)
  if protocol.temperature:  # samples beyond its own are not in the mean
    most = max(protocol.samples, used["evaluate.samples"])
    wanted["evaluate.samples"] = most
  out = [
      f"{name} = {used[name]!r}, not {value!r}"
      for name, value in wanted.items()
      if name in used and used[name] != value
  ]
  wanted_shots = len(protocol.shots.rows) if protocol.shots else 0
  shots = protocol.solved(prompt)
  if shots != wanted_shots:
    out.append(
        f"{shots or 'no'} solved tasks in the prompt, not {wanted_shots}"
    )
  if prompts != protocol.prompts:
    out.append(f"{prompts:,} prompts, not {protocol.prompts:,}")
  return out


def line(name: str, row: Any, prompts: int, fields: Mapping[str, Any]) -> str:
  """What the screen says of the scores of a set; '' without a protocol.

  Args:
    name: of the set in metrics.
    row: one of its rows, with `source`, `kind` and `prompt`.
    prompts: number of prompts that were evaluated.
    fields: the flat config of the evaluation.
  """
  protocol = PUBLISHED.get(row.source)
  if protocol is None or not protocol.prompts:
    return ""
  score = f"{metric(protocol)} of {protocol.source}"
  found = differences(protocol, row.kind, prompts, fields, row.prompt)
  if found:
    return f"{name}: not comparable with {score}: {'; '.join(found)}"
  return f"{name}: {metric(protocol)} is the score of {protocol.source}"
