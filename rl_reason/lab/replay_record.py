"""What a replay finds, as files and on the screen; see `replay`."""

import pathlib
from typing import Any

import numpy as np

from rl_reason.base import json_files
from rl_reason.base.structs import Array
from rl_reason.monitoring import run_log
from rl_reason.report import groups as groups_lib, machine

# Prefixes of metrics of the machine, which no replay repeats.
OF_MACHINE = ("timing_s/", "perf/")
OF_BATCH = ("perf/pack_fill",)  # though it begins like the former
# What `machine.describe` says without an influence on numbers.
IDLE = ("model commit", "cpu count", "platform")
DIGEST, VERSION = "rollout/policy_digest", "rollout/policy_version"


# --- the record of the run ----------------------------------------------------


def compare(
    workdir: pathlib.Path,
    copy: pathlib.Path,
    first: int,
    last: int,
    digest: int | None = None,
) -> dict[str, Any]:
  """Compares steps that were executed again with what the run has logged.

  Args:
    workdir: of the run.
    copy: the work directory where the steps were executed again.
    first: the step of the checkpoint.
    last: the step that is replayed.
    digest: of the policy after that step, by `Certificate.digest`.

  Returns:
    equal: True, False, or None if the run has not logged the last step;
    metrics and responses: the numbers of values and of responses that were
    compared; parameters: whether the policy after the step was compared, too;
    differences: step, metric, recorded and rebuilt value (None: not logged),
    the earliest step first; reasons: what has changed since, by name.
  """
  of_run = _of_rl(workdir)
  there, here = (_of_steps(x, first, last) for x in (of_run, _of_rl(copy)))
  differences = [
      dict(
          step=step,
          metric=name,
          recorded=value,
          rebuilt=here.get(step, {}).get(name),
      )
      for step in sorted(there)
      for name, value in sorted(there[step].items())
      if value != here.get(step, {}).get(name)
  ]
  responses, others = _compare_samples(workdir, copy, first, last)
  differences += others
  # The run says with which parameters it sampled after the step.
  sampled = [
      line[DIGEST]
      for line in of_run
      if line.get(VERSION) == last and DIGEST in line
  ]
  if sampled and sampled[-1] != digest:
    differences.append(
        dict(
            step=last,
            metric="digest of the policy after the step",
            recorded=sampled[-1],
            rebuilt=digest,
        )
    )
  return dict(
      equal=not differences if last in there else None,
      metrics=sum(map(len, there.values())),
      parameters=bool(sampled),
      responses=responses,
      differences=sorted(differences, key=lambda x: x["step"]),
      reasons=_reasons(workdir) if differences else {},
  )


def _of_rl(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The logged steps of RL."""
  return [x for x in run_log.read_metrics(workdir) if x["stage"] == "rl"]


def _of_steps(
    lines: list[dict[str, Any]], first: int, last: int
) -> dict[int, dict[str, Any]]:
  """Step -> its metrics, without the metrics of the machine."""
  return {
      line["step"]: {
          name: x
          for name, x in line.items()
          if name in OF_BATCH or not name.startswith(OF_MACHINE)
      }
      for line in lines
      if first < line["step"] <= last
  }


def _compare_samples(
    workdir: pathlib.Path, copy: pathlib.Path, first: int, last: int
) -> tuple[int, list[dict]]:
  """The number of responses that both logged, and differences."""
  found: list[dict[tuple, list[dict]]] = []
  for place in (workdir, copy):
    path = place / "samples.jsonl"
    found.append(
        {
            key: groups_lib.read(path, places)
            for key, places in groups_lib.index(path).items()
            if key[0] == "rl" and first < key[1] <= last
        }
    )
  there, here = found
  differences = [
      dict(
          step=key[1],
          metric=f"samples.jsonl, prompt {key[2]}",
          recorded=len(there[key]),
          rebuilt=len(here.get(key, [])),
      )
      for key in there
      if there[key] != here.get(key)
  ]
  return sum(map(len, there.values())), differences


def _reasons(workdir: pathlib.Path) -> dict[str, list]:
  """What differs between the machine of the run and this one, by name."""
  before, now = machine.read(workdir), machine.describe()
  changed = {
      name: [before[name], now[name]]
      for name in before.keys() & now.keys()
      if before[name] != now[name]
  }
  important = {k: x for k, x in changed.items() if k not in IDLE}
  return dict(sorted((important or changed).items()))


def verdict(recorded: dict[str, Any], step: int) -> str:
  """One sentence about `compare`."""
  if recorded["equal"] is None and not recorded["differences"]:
    return f"the run has not logged step {step}: nothing to compare it with"
  counts = f"{recorded['metrics']} metrics, {recorded['responses']} responses"
  if recorded["parameters"]:
    counts += ", and the policy after the step"
  if recorded["equal"]:
    return f"equal to the record of the run, to the bit: {counts}"
  first, *others = recorded["differences"]
  reasons = [
      f"{name} {before} -> {now}"
      for name, (before, now) in recorded["reasons"].items()
  ]
  why = "; ".join(reasons) or (
      "none is known: the machine and the versions are those of the run. A"
      " reward, a tool or an engine that answers differently each time is the"
      " usual reason"
  )
  return (
      f"warning: this is not what the run recorded: step {first['step']},"
      f" {first['metric']}: {first['recorded']} there, {first['rebuilt']} here"
      f" ({len(others)} more differences). Probable reasons: {why}"
  )


# --- the files ----------------------------------------------------------------


def write(place: pathlib.Path, found: Any, head: dict[str, Any]) -> list[str]:
  """Writes arrays.npz and replay.json; returns what the screen says of them.

  Args:
    place: folder of the files.
    found: `replay.Found`.
    head: command, step, checkpoint, overrides, and recorded of `compare`.
  """
  np.savez(place / "arrays.npz", **_arrays(found))
  record = head | _update(found)
  record["gradients"] = found.written or "gradient-M.npz, M from 1 on"
  begin = f"step {head['step']}: "
  said = [begin + verdict(head["recorded"], head["step"])]
  said.append(begin + _text(found, record))
  if found.other is not None:
    record["other"] = _update(found.other) | dict(
        gradient_cosines=[*map(_number, found.cosines)],
        change_cosine=_number(found.cosine),
    )
    overrides = ", ".join(f"{k} = {x}" for k, x in head["overrides"].items())
    said.append(f"{begin}{overrides}: {_text(found.other, record['other'])}")
  json_files.write_json(place / "replay.json", record)
  return [*said, f"replay: {place}: replay.json, arrays.npz"]


def _arrays(found: Any) -> dict[str, Array]:
  """The arrays of the batch, in the order of its rows."""
  rows, batch, rollouts = found.rows, found.batch, found.rows.rollouts
  order_MB = found.order_MB
  out = dict(
      tokens_BL=rollouts.tokens_BL,
      start_B=rollouts.start_B,
      groups_B=rollouts.ids_B,
      lengths_B=rollouts.lengths_B,
      truncated_B=rollouts.truncated_B,
      correct_B=rows.correct_B,
      age_B=rows.age_B,
      rewards_B=found.credit["rewards_B"],
      mask_BT=batch.mask_BT,
      sampler_logps_BT=rollouts.logps_BT,
      old_logps_BT=batch.old_logps_BT,
      ref_logps_BT=batch.ref_logps_BT,
      values_BT=batch.values_BT,
      returns_BT=batch.returns_BT,
      advantages_BT=batch.advantages_BT,
      ratio_after_BT=found.ratio_BT,
      order_MB=order_MB,
  )
  # Of each optimizer step, in the order of the rows of its minibatch.
  for name in ("logps_BT", "ratio_BT", "weight_BT", "clipped_BT", "share_BT"):
    by_step = [getattr(x.tokens, name) for x in found.steps]
    out[name.replace("_BT", "_MBT")] = np.stack(by_step)
  if found.other is not None:
    for name in ("mask_BT", "advantages_BT", "returns_BT"):
      out[f"other_{name}"] = getattr(found.other.batch, name)
    out["other_rewards_B"] = found.other.credit["rewards_B"]
  return {name: np.asarray(x) for name, x in out.items()}


def _update(found: Any) -> dict[str, Any]:
  """The metrics of each optimizer step, and the change of the parameters."""
  return dict(
      optimizer_steps=[
          dict(
              updated=step.updated,
              metrics={k: _number(x) for k, x in sorted(step.metrics.items())},
              norms={k: _number(x) for k, x in norms.items()},  # by layer
          )
          for step, norms in zip(found.steps, found.norms, strict=True)
      ],
      parameter_change=_number(found.change),
  )


def _number(x: Any) -> float | None:
  return None if x is None else json_files.number(x)


def _text(found: Any, update: dict[str, Any]) -> str:
  """A line about the batch and the update."""
  mask_BT, steps = found.batch.mask_BT, update["optimizer_steps"]
  # The record has None for numbers that are not finite: NaN here.
  norms, clipped = (
      ", ".join(f"{x:.4g}" for x in np.array(values, float))
      for values in (
          [x["metrics"][name] for x in steps]
          for name in ("grad_norm", "pg_clipfrac")
      )
  )
  return (
      f"{(found.rows.age_B >= 0).sum()} responses, {mask_BT.sum()} tokens in"
      f" the loss, advantages {_ends(found.batch.advantages_BT[mask_BT])};"
      f" gradient norms {norms} and clip fractions {clipped} of"
      f" {len(steps)} optimizer steps"
  )


def _ends(x: Array) -> str:
  return f"{x.min():.4g} to {x.max():.4g}" if x.size else "none"
