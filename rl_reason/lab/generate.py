"""The generate stage: samples of a policy, graded, as files that prepare reads.

  WORKDIR/generated/STEP/part-FIRST.jsonl (or .parquet)  rows, by first prompt
  WORKDIR/generated/STEP.json                            their hashes and counts

A file gets its name when it is complete, and the manifest is written after it:
the same command continues behind the last whole file, with the same samples.
"""

import functools
import json
import operator
import pathlib
from typing import Any

import jax
import numpy as np

from rl_reason import tasks
from rl_reason.base import config as config_lib, errors, json_files
from rl_reason.base.errors import RunError
from rl_reason.base.structs import Rollouts, Tree
from rl_reason.checkpointing import checkpoint
from rl_reason.checkpointing.resumable import check_stop
from rl_reason.collect import grading
from rl_reason.collect.reward_runner import Rewards
from rl_reason.data import pipelines
from rl_reason.devices import sharding
from rl_reason.devices.randomness import key
from rl_reason.lab import kept_samples
from rl_reason.lab.kept_samples import Sample
from rl_reason.stages import build_step, policy
from rl_reason.stages.session import Session

PURPOSE = "generate"  # of prompts and of keys
# Fields that change which prompts or samples are written.
FIELDS = (
    *("seed", "tokenizer", "model.path", "task.", "data.", "reward."),
    *("rollout.max_prompt", "rollout.max_tokens", "rollout.stop_tokens"),
    *("rollout.weights", "rollout.cache", "generate."),
)
FREE = ("generate.prompts",)  # more of them continue


def run(session: Session, which: str) -> pathlib.Path:
  """Writes the samples; returns their directory.

  Args:
    session: of the run.
    which: as in `policy.load`.

  Raises:
    ConfigError: the task is an environment of several turns.
    RunError: there is no such checkpoint, or another config wrote there.
    Stopped: SIGTERM; the same command continues.
  """
  c, g = session.config, session.config.generate
  if session.environments is not None:
    raise errors.ConfigError(
        f"environment.name = {c.environment.name!r}: --stage=generate samples"
        " responses of a single turn; it does not play environments yet"
    )
  params, step, about = policy.load(session, which)
  weights = session.engine.weights(params, c.rollout.weights)
  del params
  out = session.workdir / "generated" / str(step)
  manifest = _opened(out, config_lib.flat(c), step)
  session.display.say(f"generating with {about}")
  source, _ = session.rows.prompts(PURPOSE)
  rewards = functools.cache(functools.partial(build_step.make_rewards, session))
  totals = manifest["totals"]
  for first in range(0, g.prompts, g.batch):
    check_stop(session.stop)
    name = f"part-{first:09d}.{g.format}"
    # A part that is complete, by its hash, was written before the run stopped.
    if _is_whole(out / name, manifest["files"].get(name)):
      continue
    session.display.doing(f"generating: prompt {first:,} of {g.prompts:,}")
    ids = range(first, min(first + g.batch, g.prompts))
    rows = [source[i][1] for i in ids]
    groups = _sample(session, weights, ids, rows, rewards)
    lines = [
        _prompt(row) | columns
        for row, samples in zip(rows, groups, strict=True)
        for columns in kept_samples.NAMES[g.keep](samples)
    ]
    counts = dict(
        prompts=len(rows),
        responses=sum(map(len, groups)),
        correct=sum(x.correct is True for group in groups for x in group),
        rows=len(lines),
    )
    # The part first, then its entry: a kill in between leaves a part that is
    # sampled again, to the same bytes.
    if jax.process_index() == 0:
      digest = _write(out / name, lines)
      manifest["files"][name] = dict(sha256=digest) | counts
      manifest["totals"] = _totals(manifest["files"])
      json_files.write_json(_manifest(out), manifest)
    totals = _totals(manifest["files"])
  session.display.say(
      f"generated: {totals['rows']:,} rows of {totals['responses']:,} responses"
      f" to {totals['prompts']:,} prompts, {totals['correct']:,} correct; they"
      f" are a source of data.train: {out}"
  )
  return out


def _opened(out: pathlib.Path, fields: dict[str, Any], step: int) -> dict:
  """The manifest of a directory, or a new one.

  Raises:
    RunError: its files are of another config.
  """
  fields = {
      name: list(x) if isinstance(x, tuple) else x
      for name, x in fields.items()
      if name.startswith(FIELDS) and name not in FREE
  }
  path = _manifest(out)
  if not path.exists():
    out.mkdir(parents=True, exist_ok=True)
    return dict(step=step, fields=fields, files={}, totals=_totals({}))
  manifest = json.loads(path.read_text())
  for name, value in fields.items():
    if manifest["fields"].get(name) != value:
      raise RunError(
          f"{out}: was written with {name} = {manifest['fields'].get(name)!r},"
          f" and it is {value!r} here; move the directory, or make them equal"
      )
  return manifest


def _manifest(out: pathlib.Path) -> pathlib.Path:
  return out.with_name(f"{out.name}.json")  # beside it: out holds rows only


def _totals(files: dict[str, dict]) -> dict[str, int]:
  names = "prompts", "responses", "correct", "rows"
  return {name: sum(x[name] for x in files.values()) for name in names}


def _is_whole(path: pathlib.Path, entry: dict | None) -> bool:
  return (
      entry is not None
      and path.exists()
      and checkpoint.sha256(path) == entry["sha256"]
  )


def _prompt(row: tasks.Row) -> dict[str, Any]:
  """The columns of a prompt, which data.template = 'plain' leaves as it is."""
  prompt = [dict(x) for x in row.messages] if row.messages else row.prompt
  return dict(
      prompt=prompt,
      answer=row.answer,
      difficulty=row.difficulty,
      kind=row.kind,
      source=row.source,
  )


def _sample(
    session: Session,
    weights: Tree,
    ids: range,
    rows: list[tasks.Row],
    rewards,
) -> list[list[Sample]]:
  """Samples and grades the responses to some prompts, in groups."""
  c, g, tok, task = (
      session.config,
      session.config.generate,
      session.tok,
      session.task,
  )
  # The last batch is filled up, so that one program serves all.
  padding = [rows[0]] * (g.batch - len(rows))
  prompts = pipelines.pack_prompts(
      tok,
      [row.prompt for row in [*rows, *padding]],
      range(ids.start, ids.start + g.batch),
      c.rollout.max_prompt,
  )
  rollouts = sharding.fetch(
      session.engine.sample(
          weights,
          prompts,
          key(session.mesh, c.seed, PURPOSE),
          np.float32(g.temperature),
          group_size=g.samples,
          top_p=g.top_p,
          cache=c.rollout.cache,
      )
  )
  all_rows, count = [*rows, *padding], len(rows) * g.samples
  rewards_B, unrewarded = _function_rewards(
      session, rewards, rollouts, all_rows, count
  )
  real = operator.itemgetter(slice(count))
  rollouts = jax.tree.map(real, rollouts)
  texts, correct_B, unverified = grading.start_grading(
      task, tok, rollouts, rows
  )()
  if unverified or unrewarded:
    session.display.say(
        f"warning: prompts {ids[0]} to {ids[-1]}: the verifier failed on"
        f" {unverified:,} of {count:,} responses, which have no verdict, and"
        f" reward functions {unrewarded:,} times, which counts as 0"
    )
  tokens_BT = rollouts.tokens_BL[:, c.rollout.max_prompt :]
  groups: list[list[Sample]] = [[] for _ in rows]
  for b, text in enumerate(texts):
    row, length = rows[b // g.samples], int(rollouts.lengths_B[b])
    # A verifier that failed says nothing: neither correct nor incorrect.
    judged = tasks.has_verifier(task, row) and correct_B[b] >= 0
    outcome = 0.0
    if judged:
      outcome = c.reward.correct if correct_B[b] else c.reward.incorrect
    groups[b // g.samples].append(
        Sample(
            response=text,
            final=task.answer(text, row),
            correct=bool(correct_B[b]) if judged else None,
            reward=float(outcome + rewards_B[b]),
            truncated=bool(rollouts.truncated_B[b]),
            ids=tokens_BT[b, :length].tolist(),
            logps=rollouts.logps_BT[b, :length].tolist(),
        )
    )
  return groups


def _function_rewards(
    session: Session,
    rewards,
    rollouts: Rollouts,
    rows: list[tasks.Row],
    count: int,
) -> tuple[np.ndarray, int]:
  """The weighted terms of reward.functions, zeros without any; failures.

  The first `count` responses are real.
  """
  size = session.config.generate.samples
  if not session.config.reward.functions:
    return np.zeros(count), 0
  terms: Rewards = rewards()
  rows_B = [row for row in rows for _ in range(size)]
  return terms.of_all(session.tok, rollouts, rows_B, count)


def _write(path: pathlib.Path, rows: list[dict]) -> str:
  """Writes a file, whole or not at all; returns its SHA-256."""
  if path.suffix == ".jsonl":
    json_files.write_text(path, "".join(json.dumps(x) + "\n" for x in rows))
  else:
    import pyarrow
    import pyarrow.parquet

    new = path.with_name(path.name + ".tmp")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), new)
    new.replace(path)
  return checkpoint.sha256(path)
