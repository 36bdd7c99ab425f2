"""A run from Python: `rl_reason.train`, for scripts and notebooks.

Rows, rewards, a task and loggers may be objects; mistakes are exceptions. The
run is the same as from the command line (`run.stages`). No device of JAX starts
before the config is checked.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_collections

from rl_reason import run, tasks, verifiers
from rl_reason.base import config as config_lib, errors
from rl_reason.base.errors import ConfigError
from rl_reason.checks import (
    command_line,
    config_files,
    installation,
    rules,
    run_directory,
)
from rl_reason.data import datasets, given_rows, known_sets
from rl_reason.monitoring import output_guard as screen_lib
from rl_reason.tasks import passed_objects

HELD_OUT_SHARE = 5  # one row in five, where no evaluation rows are given
# Of a run, and of one that has trained.
STAGES = (*run.TRAINS, "export", "generate")


@dataclasses.dataclass(frozen=True)
class Result:
  """What `train` returns.

  Attributes:
    workdir: everything that the run wrote, the report among it.
    config: of the run, as checked.
    params: parameters of the policy, a pytree of arrays; None of a stage that
      trains nothing.
    session: tokenizer, model shape, engine and so on, see `stages.session`;
      None of --stage=prepare.
  """

  workdir: pathlib.Path
  config: ml_collections.ConfigDict
  params: Any
  session: Any

  @functools.cached_property
  def history(self) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl: {"stage", "step", and metrics by name}."""
    from rl_reason.monitoring import run_log

    return run_log.read_metrics(self.workdir)

  @property
  def metrics(self) -> dict[str, Any]:
    """The last value of each metric: 'rl/critic/rewards/mean', ..."""
    return {
        f"{line['stage']}/{name}": value
        for line in self.history
        for name, value in line.items()
        if name not in ("stage", "step")
    }

  def sample(
      self,
      prompts: Sequence[str],
      *,
      count: int = 1,
      temperature: float = 1.0,
      seed: int = 0,
  ) -> list[list[str]]:
    """Responses of the trained policy.

    Args:
      prompts: texts as the model reads them, of rollout.max_prompt tokens at
        most; `row.prompt` of prepared rows is one.
      count: responses to each prompt.
      temperature: 0 is greedy.
      seed: of the sampling noise.

    Returns:
      `count` texts for each prompt.
    """
    import jax
    import numpy as np

    from rl_reason.data import pipelines, tokenizer
    from rl_reason.devices import sharding
    from rl_reason.devices.randomness import key

    tok, engine = self.session.tok, self.session.engine
    slots, mesh = self.config.rollout.max_prompt, engine.mesh
    # Rows are split over the devices: the last ones may be repetitions.
    filled = [
        *prompts,
        *[prompts[0]] * (-len(prompts) % sharding.num_shards(mesh, "batch")),
    ]
    packed = pipelines.pack_prompts(tok, filled, range(len(filled)), slots)
    with jax.set_mesh(mesh):
      rollouts = sharding.fetch(
          engine.sample(
              engine.weights(self.params),
              packed,
              key(mesh, seed, "sample"),
              np.float32(temperature),
              group_size=count,
          )
      )
    texts = tokenizer.decode(
        tok, rollouts.tokens_BL[:, slots:], rollouts.lengths_B
    )
    return [texts[n * count : (n + 1) * count] for n in range(len(prompts))]


Reward = str | Callable | tuple[Callable | str, float]


def train(
    config: str | ml_collections.ConfigDict = "dapo",
    rows: Any = None,
    *,
    evaluate_rows: Any = None,
    reward: Reward | Sequence[Reward] = (),
    task: Any = None,
    logger: Any = (),
    overrides: Mapping[str, Any] | None = None,
    workdir: str | pathlib.Path | None = None,
    stage: str = "all",
    devices: list | None = None,
    show: bool = True,
) -> Result:
  """Trains a model: SFT if the config has it, RL, evaluation before and after.

  The same run as from the command line, in this process:

    result = rl_reason.train(
        "dapo_qwen",
        rows=[{"question": "1+1?", "answer": "2"}, ...],
        reward=lambda response, row: -len(response.text) / 1000,
        overrides={"model.path": "Qwen/Qwen2.5-0.5B"},
    )

  Args:
    config: a preset such as 'dapo', a file 'my_config.py', or a ConfigDict.
    rows: training rows with the columns that a data file would have, as a path,
      a dict of columns, a table, or any iterable of dicts, such as a Dataset of
      Hugging Face; see `given_rows.rows_of`. Rows without a reference answer
      are judged by `reward` alone (data.kind = 'none').
    evaluate_rows: held-out rows; if None, every fifth of `rows`.
    reward: a function, (function, weight), or several of them, in any of the
      forms of `tasks.reward_terms`; a text is a term of the config, such as
      'length*-0.1'. They are added to the verdict of the verifier.
    task: an object or a module with `problem` and `verify`; see `tasks`.
    logger: a function of (metrics, step), an object with `write` and `close`, a
      name such as 'wandb', or several; see `monitoring.loggers`. They come
      in addition to log.loggers.
    overrides: full names of fields -> their values.
    workdir: resumed if it holds a run of this config; if None, a new directory
      runs/train-1, runs/train-2, ...
    stage: 'all', or one of `STAGES`.
    devices: of jax that the run uses; None for all.
    show: whether to print progress.

  Raises:
    ConfigError: a field or an argument cannot work.
    RunError, DataError: the run cannot go on; its state is saved.
    Stopped: SIGTERM or Ctrl-C; the same call with this workdir resumes.
  """
  if stage not in STAGES:
    raise ConfigError(f"stage = {stage!r}: must be one of {', '.join(STAGES)}")
  if workdir is not None and (why := run_directory.why_no_name(str(workdir))):
    raise ConfigError(f"workdir = {str(workdir)!r}: {why}")
  path = pathlib.Path(workdir or _new_directory()).expanduser()
  usual = config_files.read(config) if isinstance(config, str) else config
  fields, notes = dict(overrides or {}), []
  if task is not None:
    fields["task.name"] = (
        task if isinstance(task, str) else passed_objects.name_of(task)
    )
  if rows is not None:
    found, said = _row_fields(usual, fields, path, rows, evaluate_rows)
    fields, notes = fields | found, said
  elif evaluate_rows is not None:
    raise ConfigError("evaluate_rows: rows are missing, to train on")
  terms = _terms(reward)
  many = logger if isinstance(logger, list | tuple) else (logger,)
  named = [x for x in many if isinstance(x, str)]
  for name, added in {"reward.functions": terms, "log.loggers": named}.items():
    if added:
      before = fields.get(name, config_lib.at(usual, name))
      fields[name] = ",".join([*filter(None, [before]), *added])
  faults = rules.Faults()
  c, _, remarks = command_line.examine(config, fields, path, stage, faults)
  faults.end()

  with screen_lib.guarded(path), run.stopping(stage) as stop:
    installation.start_devices()
    import jax

    from rl_reason.monitoring import display

    screen = display.Display(show and jax.process_index() == 0)
    try:
      for line in (
          f"rl_reason: {stage}, work directory {path}",
          *notes,
          *remarks,
      ):
        screen.say(line)
      session, params = run.stages(
          c.copy_and_resolve_references(),
          path,
          screen,
          stop,
          stage=stage,
          logger=[x for x in many if not isinstance(x, str)],
          devices=devices,
      )
    finally:
      screen.close()
  return Result(path, c, params, session)


def _new_directory() -> pathlib.Path:
  """The first of runs/train-1, runs/train-2, ... that is not there."""
  number = 1
  while (path := pathlib.Path("runs") / f"train-{number}").exists():
    number += 1
  return path


def _terms(reward: Any) -> list[str]:
  """One reward, or several, as terms of reward.functions."""
  pair = isinstance(reward, tuple) and len(reward) == 2
  pair = pair and isinstance(reward[1], int | float)
  one = pair or isinstance(reward, str) or not isinstance(reward, Sequence)
  return [_term(x) for x in ([reward] if one else reward)]


def _term(reward: Any) -> str:
  if isinstance(reward, str):
    return reward
  function, weight = reward if isinstance(reward, tuple) else (reward, 1.0)
  if isinstance(function, str):
    return f"{function}*{weight}"
  if not callable(function):
    raise ConfigError(
        f"reward = {function!r}: must be a function, (function, weight), a term"
        " such as 'length*-0.1', or several of them"
    )
  return f"{passed_objects.name_of(function)}*{weight}"


def _row_fields(
    usual: ml_collections.ConfigDict,
    fields: Mapping[str, Any],
    workdir: pathlib.Path,
    rows: Any,
    evaluate_rows: Any,
) -> tuple[dict[str, Any], list[str]]:
  """Writes rows to files; returns the fields that name them, and remarks."""
  if found := {*run_directory.ENDS_SOURCE} & {*str(workdir)}:
    raise ConfigError(
        f"workdir = {str(workdir)!r}: the rows become files there, and the path"
        f" of a source has no {' '.join(sorted(found))}: choose another workdir"
    )
  for name in ("task.name", "data.train", "data.evaluate"):
    if fields.get(name, tasks.FILES) != tasks.FILES:
      raise ConfigError(
          f"rows: {name} = {fields[name]!r} is given, too; leave one of them"
          " out (data.kind = 'module:function' is a verifier of your own for"
          " rows)"
      )
  train, notes = given_rows.rows_of(rows, "rows"), []
  out = {"task.name": tasks.FILES}
  if evaluate_rows is None:
    # Every fifth row, or else the last one.
    evaluate = train[HELD_OUT_SHARE - 1 :: HELD_OUT_SHARE]
    del train[HELD_OUT_SHARE - 1 :: HELD_OUT_SHARE]
    evaluate = evaluate or [train.pop() for _ in train[:1]]
    notes.append(
        f"evaluate_rows: none are given, so {len(evaluate)} rows are held out,"
        f" and {len(train)} rows train"
    )
  else:
    evaluate = given_rows.rows_of(evaluate_rows, "evaluate_rows")
  columns = fields.get("data.columns", config_lib.at(usual, "data.columns"))
  answers = datasets.columns(columns)["answer"]
  names = [y for x in answers for y in known_sets.columns_of(x)]
  everything = [*train, *evaluate]
  kind = fields.get("data.kind", config_lib.at(usual, "data.kind"))
  answered = any(_has(row, names) for row in everything)
  if kind in verifiers.KINDS and not answered:  # one's own may need no answers
    out["data.kind"] = verifiers.NONE
    notes.append(
        "data.kind = 'none': no row has a reference answer"
        f" ({', '.join(names)}), so the functions alone give the reward"
    )
  out["data.train"] = _write_rows(workdir, "rows", train)
  out["data.evaluate"] = _write_rows(workdir, "evaluate_rows", evaluate)
  return out, notes


def _has(row: Mapping[str, Any], names: Iterable[str]) -> bool:
  found = [row.get(x.partition(".")[0]) for x in names]
  return any(
      x is not None and not (isinstance(x, str) and not x) for x in found
  )


def _plain(value: Any) -> Any:
  """Arrays and scalars of NumPy, tensors: as lists and numbers."""
  if not hasattr(value, "tolist"):
    raise TypeError(f"{str(value)[:40]} is of the type {type(value).__name__}")
  return value.tolist()


def _write_rows(workdir: pathlib.Path, name: str, rows: list) -> str:
  """Writes rows as JSON lines, in a file that is named by their content."""
  lines = []
  for number, row in enumerate(rows):
    try:
      lines.append(json.dumps(dict(row), default=_plain))
    except (TypeError, ValueError) as e:
      raise ConfigError(
          f"{name}: row {number} is no dict of JSON values"
          f" ({errors.one_line(e)}); leave out columns of other types"
      ) from None
  if not lines:
    raise ConfigError(f"{name}: too few rows: at least 2 are needed")
  text = "".join(f"{line}\n" for line in lines)
  digest = hashlib.sha256(text.encode()).hexdigest()[:8]
  path = workdir / "rows" / digest / f"{name}.jsonl"
  if not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return str(path)
