"""Expected bands: whether a run stays where recorded runs of its config were.

bands.json has the band of each recorded config: for a metric, the lowest and
the highest value at each step. `python -m bench.training.bands` makes it from
results/. A band holds all steps of a run at once: beside N recorded runs, a
further one leaves it by chance with a probability of about 1 in N + 1.
"""

import functools
import json
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rl_reason.base import resume_rules

ACCURACY = "accuracy"  # mean@k of an evaluation; other names are of an RL step
_MEAN = re.compile(r"val-core/(.+)/acc/mean@\d+")
# Fields that decide how, but not what, is measured; besides those that a
# resumed run may change.
MEASURES = (
    "seed",
    "sft.reuse",
    "critic.reuse",
    "evaluate.batch",
    "evaluate.every",
    "evaluate.interim_prompts",
    "evaluate.prompts",
    "evaluate.samples",
    "evaluate.validation",
)


class Band(NamedTuple):
  """The recorded runs of a config.

  Attributes:
    config: its name.
    seeds: N, the number of runs; 0: none is recorded yet.
    metrics: {metric: {step: (lowest value, highest value)}}.
  """

  config: str
  seeds: int
  metrics: dict[str, dict[int, tuple[float, float]]]

  def about(self) -> str:
    """What is known, in one line."""
    if not self.seeds:
      return f"expected band: no runs of {self.config} are recorded yet"
    last = max(max(steps) for steps in self.metrics.values())
    return (
        f"expected band: {', '.join(self.metrics)} of {self.seeds} runs of"
        f" {self.config}, steps 0 to {last}"
    )

  def left(self, metric: str, step: int, value: float) -> str:
    """How a value is outside the band, in one line; '' if it is not."""
    low, high = self.metrics.get(metric, {}).get(step, (value, value))
    if low <= value <= high:
      return ""
    form = ".1%" if metric == ACCURACY else ".4g"
    return (
        f"outside the expected band at step {step}: {metric} {value:{form}};"
        f" the band of {self.seeds} runs of {self.config} is {low:{form}} to"
        f" {high:{form}}. One run in {self.seeds + 1} leaves it by chance;"
        " otherwise look for what differs from the recorded runs in code,"
        " versions or machine"
    )


@functools.cache
def recorded() -> dict[str, Any]:
  """The content of bands.json."""
  path = pathlib.Path(__file__).with_suffix(".json")
  return json.loads(path.read_text("utf-8"))


def find(fields: Mapping[str, Any]) -> Band | None:
  """The band of the config that a run has; None for a config of one's own.

  Args:
    fields: the flat config. Fields of `MEASURES`, and fields that a resumed run
      may change, are not compared.
  """
  data = recorded()
  now = json.loads(json.dumps(dict(fields)))
  for name, x in data["configs"].items():
    known = {k: y for k, y in data["base"].items() if k not in x["absent"]}
    differs = resume_rules.differences(known | x["fields"], now)
    if all(text.split(":")[0] in MEASURES for text in differs):
      return of(name, x)
  return None


def of(name: str, entry: Mapping[str, Any]) -> Band:
  """The band of a config, from its entry in bands.json."""
  metrics = {}
  for metric, x in entry["metrics"].items():
    rows = zip(x["step"], x["low"], x["high"], strict=True)
    metrics[metric] = {step: (low, high) for step, low, high in rows}
  return Band(name, entry["seeds"], metrics)


def values(line: Mapping[str, Any]) -> dict[str, float]:
  """The metrics of a line that a band may have."""
  if line["stage"] != "evaluate":
    return {k: x for k, x in line.items() if isinstance(x, int | float)}
  found = {m[1]: line[k] for k in line if (m := _MEAN.fullmatch(k))}
  # A score of held-out prompts, or of the prompts that choose a checkpoint.
  names = sorted(found, key=lambda x: x.startswith("validation"))
  return {ACCURACY: found[names[0]]} if names else {}


class Watch:
  """Says once for each metric that a run has left the band of its config.

  Args:
    fields: the flat config.
    say: writes a line to the screen.
  """

  def __init__(self, fields: Mapping[str, Any], say: Callable[[str], None]):
    self.band, self._say = find(fields), say
    self._left: set[str] = set()

  def check(self, line: Mapping[str, Any]) -> None:
    """Checks a line of metrics.jsonl."""
    for metric, text in _exits(self.band, line):
      if metric not in self._left:
        self._say(f"warning: {text}")
      self._left.add(metric)


def _exits(
    band: Band | None, line: Mapping[str, Any]
) -> Iterable[tuple[str, str]]:
  if band is None or line["stage"] not in ("rl", "evaluate"):
    return
  for metric, value in values(line).items():
    if value is not None and (text := band.left(metric, line["step"], value)):
      yield metric, text


def of_run(
    lines: Iterable[Mapping[str, Any]], fields: Mapping[str, Any]
) -> list[str]:
  """What the report says: the first step of each metric outside the band."""
  band = find(fields)
  if band is None:
    return []
  if not band.seeds:
    return [band.about()]
  found: dict[str, str] = {}
  compared: dict[str, int] = {}  # metric -> the last step
  for line in lines:
    if line["stage"] not in ("rl", "evaluate"):
      continue
    for metric, value in values(line).items():
      if value is not None and line["step"] in band.metrics.get(metric, {}):
        compared[metric] = max(line["step"], compared.get(metric, 0))
    for metric, text in _exits(band, line):
      found.setdefault(metric, text)
  if found:
    return [f"warning: {text}" for text in found.values()]
  if not compared:
    return [
        f"{band.about()}: nothing of this run was compared, which has no step"
        " of RL and no evaluation at these steps"
    ]
  last = ", ".join(f"{metric} to step {x}" for metric, x in compared.items())
  rest = ", ".join(x for x in band.metrics if x not in compared)
  ends = {x: max(steps) for x, steps in band.metrics.items()}
  if compared == ends:
    return [f"{band.about()}: the run is within it"]
  return [
      f"{band.about()}: the run is within it so far ({last})"
      + (f"; not compared: {rest}" if rest else "")
  ]
