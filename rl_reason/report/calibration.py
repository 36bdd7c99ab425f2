"""Calibration of a policy, as a curve of the report.

The confidence in the majority answer of a prompt is its share of the samples. A
policy is calibrated if majority answers with the share s are correct with the
probability s.
"""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rl_reason.base import json_files

FILE = "calibration.json"  # step of RL -> set -> bins
# A bin: prompts, mean confidence, accuracy, and half of its 95% interval.
Bins = Sequence[tuple[int, float, float, float]]
_ABOUT = (
    "The share of the most frequent answer among the samples of a held-out"
    " prompt, in ten bins, against how often it is correct, with 95% intervals"
    " and numbers of prompts. A calibrated policy lies on the diagonal; below"
    " it the policy is too sure of its answers."
)


def write(
    workdir: pathlib.Path, step: int, of_sets: Mapping[str, Bins]
) -> None:
  """Adds the bins of an evaluation to the file of a run."""
  found = read(workdir) | {str(step): dict(of_sets)}
  json_files.write_json(workdir / FILE, found)


def read(workdir: pathlib.Path) -> dict[str, dict[str, Bins]]:
  """The bins by step and set; {} if the run has none."""
  return json_files.read_object(workdir / FILE)


def charts(workdir: pathlib.Path) -> tuple[dict[str, Any], list[dict]]:
  """Axes and charts, as `charts.charts_of`, one for each set.

  A chart has the first and the last evaluation, and the diagonal.
  """
  with json_files.damage_named(workdir / FILE):
    return _charts(read(workdir))


def _charts(
    found: Mapping[str, Mapping[str, Bins]],
) -> tuple[dict[str, Any], list[dict]]:
  steps = sorted(found, key=int)
  axes: dict[str, Any] = {"diagonal": dict(step=[0, 1])}
  out = []
  for of_set in found[steps[0]] if steps else ():
    series: list[dict[str, Any]] = []
    for step in dict.fromkeys((steps[0], steps[-1])):
      if bins := found[step].get(of_set):
        numbers = [tuple(map(float, x)) for x in bins]
        if not all(math.isfinite(x) for one in numbers for x in one):
          raise ValueError(f"a bin of step {step} is not finite")
        counts, confidence, accuracy, half = zip(*numbers, strict=True)
        axis = f"evaluate calibration {of_set} {step}"
        axes[axis] = dict(step=confidence)
        label = f"step {step}"
        one = dict(label=label, name=label, axis=axis, color=len(series))
        series.append(one | dict(y=accuracy, half=half, counts=counts))
    line = dict(label="calibrated", name="calibrated", axis="diagonal", color=5)
    out.append(
        dict(
            title=f"Calibration of {of_set}",
            about=_ABOUT,
            unit="% of majority answers that are correct",
            x="share of the majority answer",
            percent=True,
            series=[*series, line | dict(y=[0, 1])],
        )
    )
  return axes if out else {}, out
