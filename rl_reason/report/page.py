"""The self-contained HTML page of a run.

Names, numbers and text of models go into the page as JSON, from which
`report.html.in` draws tables, curves and groups of responses: text of a model
is never parsed as HTML. The page stays under 5 MB for runs of any length: long
curves become means with bands, and long responses are cut in the middle.
"""

import datetime
import pathlib
import shlex
from collections.abc import Callable
from typing import Any

import jax

from rl_reason import features
from rl_reason.base import (
    config as config_lib,
    errors,
    feature,
    fields as fields_lib,
    function_kinds,
    json_files,
)
from rl_reason.configs import base
from rl_reason.monitoring import bands, run_log
from rl_reason.report import (
    calibration,
    groups,
    head,
    machine,
    scores as scores_lib,
    terms,
)
from rl_reason.report.charts import COSTS, MAX_POINTS, charts_of, hours
from rl_reason.report.rendering import as_text, render
from rl_reason.report.scores import VALIDATION, of_stage, scores

GROUPS_BYTES = 3_300_000
PAIRS_BYTES = 250_000
DOUBTFUL_BYTES = 200_000

CONTENT = "content."  # prefix of fields with hashes of files

# Metrics whose sum over the RL steps is in the notes.
TOTALS = {
    "actor/update_skipped": (
        "updates skipped: gradient not finite, or no token in the loss"
    ),
    "train/groups_missing": "groups missing from batches",
    "train/verifier_failures": "failures of the verifier in training",
}


def write(
    workdir: pathlib.Path, say: Callable[[str], None] = lambda _: None
) -> pathlib.Path:
  """Writes workdir/report.html from the logs of the run.

  Args:
    workdir: of a run, finished or not; any file may be missing. What another
      file than metrics.jsonl says is left out where it is damaged.
    say: shows a line about each damaged file.

  Returns:
    the path of the page.

  Raises:
    RunError: metrics.jsonl is damaged.
  """
  path, (data, damaged) = workdir / "report.html", _data(workdir)
  for line in damaged:
    say(line)
  whole = data | dict(terms=terms.shown())  # the same for all runs
  json_files.write_text(path, render("report", whole))
  return path


def refresher(
    workdir: pathlib.Path, say: Callable[[str], None]
) -> Callable[[], None]:
  """A function that writes the page and never raises an exception.

  The first time that the page cannot be written, it says so.
  """
  failed = False

  def refresh() -> None:
    nonlocal failed
    try:
      if jax.process_index() == 0:
        write(workdir)
    except Exception as e:  # a full disk, or a damaged line of a log
      if not failed:
        say(f"warning: report.html is not written ({errors.one_line(e)})")
      failed = True

  return refresh


def data_of(workdir: pathlib.Path) -> dict[str, Any]:
  """The data that report.html.in shows."""
  return _data(workdir)[0]


def _data(workdir: pathlib.Path) -> tuple[dict[str, Any], list[str]]:
  """The data of the page, and a line for each damaged file."""
  lines, damaged = run_log.read_metrics(workdir), {}

  def part(read: Callable[..., Any], default: Any, *args: Any) -> Any:
    try:
      return read(*args)
    except errors.RunError as e:
      damaged[f"warning: left out of the report: {e}"] = None
      return default

  def of_samples(read: Callable[..., Any], default: Any, *args: Any) -> Any:
    def named() -> Any:
      with json_files.damage_named(samples):
        return read(samples, *args)

    return part(named, default)

  samples = workdir / "samples.jsonl"
  config = part(_config, {}, workdir / "config.json")
  axes, charts = charts_of(lines)
  more_axes, more_charts = part(calibration.charts, ({}, []), workdir)
  found = of_samples(groups.index, {})
  pairs, pairs_note = of_samples(groups.pairs, ([], ""), found, PAIRS_BYTES)
  rejected, all_rejected = of_samples(groups.doubtful, ([], 0), DOUBTFUL_BYTES)
  shown, groups_note = of_samples(groups.groups, ([], ""), found, GROUPS_BYTES)
  hashes = {k: v for k, v in config.items() if k.startswith(CONTENT)}
  fields = {k: v for k, v in config.items() if k not in hashes}
  rl = of_stage(lines, "rl")
  about = part(head.describe, [], workdir, config)
  run = part(_run, [], workdir, lines)
  of_machine = part(machine.read, {}, workdir)
  data = dict(
      title=workdir.resolve().name,
      running=(rl[-1]["step"] if rl else 0) < config.get("rl.steps", 0),
      about=about,
      notes=[*damaged, *_notes(lines, config)]
      + scores_lib.warnings(lines)
      + bands.of_run(lines, config)
      + [x for one in features.declared() for x in one.notes(lines, config)],
      tiles=_tiles(lines),
      scores=_score_table(lines, config),
      x=["step", *[x for x in (*COSTS, "hours") if any(axes["rl"][x])]],
      axes=axes | more_axes,
      charts=charts + more_charts,
      pairs=pairs,
      pairs_note=pairs_note,
      doubtful=rejected,
      doubtful_note=_doubtful_note(len(rejected), all_rejected),
      groups=shown,
      groups_note=groups_note,
      run=run,
      changed=changed(fields),
      config=as_text(fields),
      machine=as_text(of_machine | hashes),
  )
  return data, [*damaged]


def _config(path: pathlib.Path) -> dict[str, Any]:
  """The flat config of a run, whose values have the types of their fields.

  Raises:
    RunError: it is damaged.
  """
  config = json_files.read_object(path)
  base.get_config()
  with json_files.damage_named(path):
    for name, value in config.items():
      if (spec := fields_lib.FIELDS.get(name)) is None:
        continue
      plain = tuple(value) if isinstance(value, list) else value
      only_type = fields_lib.Spec(kind=spec.kind or type(spec.default))
      if problem := only_type.problem(plain):
        raise TypeError(f"{name} = {value!r}: {problem}")
  return config


def _doubtful_note(shown: int, total: int) -> str:
  """The number of doubtful responses, and of those on the page."""
  if shown == total:
    return f"{total} responses." if total else "None were found."
  return f"The newest {shown} of {total}; samples.jsonl has all."


def doubtful_summary(workdir: pathlib.Path) -> list[str]:
  """One line on rejected responses that may be correct; [] without any."""
  samples = workdir / "samples.jsonl"
  with json_files.damage_named(samples):
    _, total = groups.doubtful(samples, 0)
  if not total:
    return []
  return [
      f"rejected, perhaps right: {total} responses equal their reference answer"
      " if it is read leniently; they are listed in report.html"
  ]


def _run(workdir: pathlib.Path, lines: list[dict]) -> list[tuple[str, str]]:
  """The command, the dates and the duration of a run."""
  starts = run_log.starts(workdir)
  spent = max((x or 0 for x in hours(lines).values()), default=0)
  now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
  out = {"work directory": str(workdir.resolve())}
  if starts:
    out |= {"command": starts[-1]["command"], "begun": starts[0]["date"]}
  if starts[1:]:
    resumed = ", ".join(x["date"] for x in starts[1:][-3:])
    out["resumed"] = f"{len(starts) - 1} times, last {resumed}"
  seconds = round(spent * 3600)
  out["RL steps and evaluations"] = str(datetime.timedelta(seconds=seconds))
  rl = of_stage(lines, "rl")
  if rl and not any("perf/mfu" in x for x in rl):
    out["model FLOPs utilization"] = "unknown: no peak of this device is known"
  return [*out.items(), ("this page", now)]


def changed(config: dict[str, Any]) -> list[tuple[str, str, str]]:
  """The fields in which a flat config differs from configs/base.py.

  Returns:
    name, value, and the value of the base config; '–' for an argument of a
    function that the base config does not use.
  """
  default = base.get_config()
  plain = config_lib.flat(config_lib.with_defaults(default))
  # Arguments of other functions are compared with their own defaults.
  for known in function_kinds.KINDS.values():
    part = config_lib.at(default, known.field)
    name = config.get(f"{known.field}.name", part.name)
    part.name = part.name if ":" in name else name  # a report imports no code
  try:
    same = config_lib.flat(config_lib.with_defaults(default))
  except errors.ConfigError:  # a function that this version lacks
    same = plain
  names = [
      name
      for name, value in config.items()
      if value != {}
      and value != plain.get(name)
      and value != same.get(name)
      or name in plain
      and name.endswith(".name")
      and value != plain[name]
  ]
  shown = dict(as_text({k: config[k] for k in names}))
  before = dict(as_text(plain))
  return [(name, shown[name], before.get(name, "–")) for name in names]


def to_talk(workdir: pathlib.Path) -> str:
  """A line with the command whose page talks to the policy of a run."""
  command = "python -m rl_reason.main --stage=serve"
  return f"talk to it: {command} --workdir={shlex.quote(str(workdir))}"


def _tiles(lines: list[dict]) -> list[dict[str, Any]]:
  """The headline: a few numbers before and after RL."""
  before, after = scores_lib.before_after(lines)
  if before is None:
    return []
  old, new = scores(before), scores(after or {})
  mean, best = scores_lib.headline(old)
  what = "reward" if old[mean].unit == "reward" else "accuracy"
  labels = {
      mean: f"held-out {what}, {mean}",
      "greedy": f"held-out {what}, greedy",
      best: f"held-out {best}",
      "response length": "tokens per response",
  }
  tiles = []
  for name in [x for x in labels if x in old]:
    values, note = [old[name].text(" ± ")], ""
    if name in new:
      values.append(new[name].text(" ± "))
      note = scores_lib.difference(old[name], new[name])
      if name == best:
        note = scores_lib.coverage(old[name], new[name])
    tiles.append(dict(label=labels[name], values=values, note=note))
  return tiles


def _score_table(lines: list[dict], config: dict[str, Any]) -> dict[str, Any]:
  """The scores before RL, after RL, and after the first stage of SFT."""
  before, after = scores_lib.before_after(lines)
  sft = [x for x in of_stage(lines, "sft") if scores(x)]
  further = [
      name
      for name, x in feature.stages().items()
      if x.policy and of_stage(lines, name)
  ]
  old, new = scores(before or {}), scores(after or {})
  columns: dict[str, dict] = {}
  if before:
    learned = any("sft/loss" in x for x in lines) or config.get("sft.reuse")
    stages = [*["SFT"] * bool(learned), *further]
    after_them = f"after {' and '.join(stages)}, " * bool(stages)
    columns[f"{after_them}before RL"] = old
  if after:
    columns[f"after {after['step']} steps"] = new
    columns["change"] = {}
  if sft and of_stage(lines, "habits"):
    columns["after SFT, before the habits"] = scores(sft[-1])
  elif sft and (further or not before):
    columns["after SFT"] = scores(sft[-1])

  def cell(head, name):
    if head == "change" and name in old and name in new:
      return scores_lib.difference(old[name], new[name]), None
    if name not in columns[head]:
      return "–", None
    score = columns[head][name]
    return score.text(" ± "), score.value if score.share else None

  rows = [
      dict(
          name=name,
          about=scores_lib.meaning(name),
          cells=[cell(head, name) for head in columns],
      )
      for name in dict.fromkeys(name for x in columns.values() for name in x)
      if not name.startswith(VALIDATION)
      or name.split()[1].startswith(("mean@", "greedy"))
  ]
  return dict(head=["", *columns], rows=rows)


def _notes(lines: list[dict], config: dict[str, Any]) -> list[str]:
  """Caveats: an unfinished run, skipped updates, averaged curves."""
  rl = of_stage(lines, "rl")
  at, steps = (rl[-1]["step"] if rl else 0), config.get("rl.steps", 0)
  before, after = scores_lib.before_after(lines)
  notes = []
  if config.get("reward.shuffle"):
    notes.append("Control experiment: the verdicts are shuffled.")
  if at < steps:
    notes.append(f"RL is at step {at} of {steps}: stopped or still running.")
  if before is None:
    notes.append("There is no evaluation yet.")
  elif after is None:
    notes.append(
        "Held-out prompts were evaluated only once: there is no comparison."
    )
  elif after["step"] < steps:
    notes.append(
        f"The last evaluation is an interim one at step {after['step']}, on"
        f" {config['evaluate.interim_prompts']} prompts."
    )
  for name, words in TOTALS.items():
    total = sum(line.get(name) or 0 for line in rl)
    if total:
      notes.append(f"{total:g} {words}.")
  if len(rl) > MAX_POINTS:
    notes.append(
        f"Each of the {MAX_POINTS} points of a curve is the mean over"
        f" {len(rl) / MAX_POINTS:.1f} of {len(rl)} steps; bands show the"
        " minimum and the maximum."
    )
  return notes
