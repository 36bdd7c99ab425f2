"""The replay stage: one step of RL again, and what else it might have been.

  WORKDIR/replay/step-N/replay.json     the metrics of each optimizer step
  WORKDIR/replay/step-N/arrays.npz      the batch, its credit, and its tokens
  WORKDIR/replay/step-N/gradient-M.npz  the gradient of each optimizer step

The steps after the nearest checkpoint are executed again, in a work directory
of their own (`Copy`), by the loop that trained. What they log is compared with
what the run has logged. Overrides then give the batch of the step another
credit and another update: `step-N,FIELD=VALUE`.
"""

import contextlib
import functools
import hashlib
import itertools
import math
import os
import pathlib
import shlex
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from rl_reason.base import config as config_lib, feature
from rl_reason.base.errors import ConfigError, RunError
from rl_reason.base.structs import Array, Batch, Experience, TrainState, Tree
from rl_reason.checkpointing.checkpoint import Checkpoints
from rl_reason.checks import config_facts, replay_rules, saved_config
from rl_reason.collect.experience import credit_inputs, with_old_logps
from rl_reason.devices import sharding
from rl_reason.lab import optimizer_steps, replay_record
from rl_reason.lab.optimizer_steps import Learning, OptimizerStep
from rl_reason.monitoring import run_log
from rl_reason.stages import (
    build_step,
    learn,
    optimizers,
    rl,
    trained_parameters,
    value,
)
from rl_reason.stages.model import Model
from rl_reason.stages.run_output import Output
from rl_reason.stages.session import Session
from rl_reason.training import packing
from rl_reason.training.optimizer import is_stacked
from rl_reason.training.step import minibatches, train_batch

MAX_GRADIENT = 2 << 30  # bytes of a gradient that is written
MAX_NAME = 80  # characters of the folder of a replay


def run(c, session: Session, which: str) -> pathlib.Path:
  """Replays a step of the run in a work directory, and writes what it was.

  `c` is the config of the run, with overrides of credit and update; `which` is
  the step, or 'newest': the last one that was logged. Returns the folder of the
  files above.

  Raises:
    ConfigError: there is no such step.
    RunError: no checkpoint is early enough.
    Stopped: SIGTERM.
  """
  model, output = session.model, session.output
  workdir, say = output.workdir, output.display.say
  if jax.process_count() > 1:
    raise ConfigError("--stage=replay: runs in one process: no --distributed")
  own = _own(c, workdir)
  # All other fields were compared before.
  changes = {
      name: x
      for name, x in replay_rules.changes(config_lib.flat(own), c).items()
      if name.startswith(replay_rules.learns())
  }
  _require_moments(own, c, model)
  step = _step(which, own, workdir)
  place = workdir / "replay" / _folder(step, changes)
  shutil.rmtree(place, ignore_errors=True)
  place.mkdir(parents=True)
  with contextlib.ExitStack() as cleanup:
    copy = cleanup.enter_context(Copy(workdir, step))
    say(_plan(copy, step, workdir))
    log = run_log.Log(copy.place, (), say)
    cleanup.callback(log.close)
    there = output._replace(workdir=copy.place, log=log)
    watch = Watch(
        own, c if changes else None, step, place, model=model, output=there
    )
    session = session.replace(output=there)
    start = _start(own, session, copy, step)
    rl.train(own, session, *start, replay=watch)
    assert watch.found  # or there is an error
    same = replay_record.compare(
        workdir, copy.place, copy.step or 0, step, watch.digest
    )
  command = f"python -m rl_reason.main --workdir={shlex.quote(str(workdir))}"
  command += f" --stage=replay --step={step}"
  for name, x in changes.items():
    command += " " + shlex.quote(f"--config.{name}={x}")
  head = dict(
      command=command,
      step=step,
      checkpoint=copy.step,
      overrides=changes,
      recorded=same,
  )
  for line in replay_record.write(place, watch.found, head):
    say(line)
  return place


def _own(c, workdir: pathlib.Path):
  """The config of the run, with the machine of this replay."""
  own = config_lib.with_defaults(saved_config.recorded(workdir))
  for name in config_lib.flat(own):
    if name.startswith(replay_rules.machine()):
      path, _, last = name.rpartition(".")
      config_lib.at(own, path)[last] = config_lib.at(c, name)
  return own


def _require_moments(own, c, model: Model) -> None:
  """Refuses an optimizer that cannot go on from the moments of the run."""
  kinds = [
      jax.tree.structure(
          optimizers.of_policy(x, model.cfg, model.mesh)[1].opt_state
      )
      for x in (own, c)
  ]
  if repr(kinds[0]) != repr(kinds[1]):
    raise ConfigError(
        f"optimizer.name = {c.optimizer.name!r}: with these fields of"
        " optimizer.* it has other moments than the checkpoints of the run:"
        " leave optimizer.name, clip_norm, weight_decay and freeze as they were"
    )


def _step(which: str, own, workdir: pathlib.Path) -> int:
  """The step that --step names.

  Raises:
    ConfigError: the run has no such step.
  """
  lines = run_log.read_metrics(workdir)
  logged = [x["step"] for x in lines if x["stage"] == "rl"]
  newest = max(logged, default=0)
  step = newest if which == "newest" else int(which) if which.isdigit() else 0
  # The step after the last one may be the step that ended the run.
  last = min(newest + 1, own.rl.steps)
  if not 1 <= step <= last:
    raise ConfigError(
        f"--step = {which}: {workdir} has steps 1 to {newest} of RL; name one"
        " of them to replay it"
    )
  return step


def _folder(step: int, changes: dict[str, Any]) -> str:
  """The name of the folder of a replay: `step-27,kl.coef=0.1`."""
  text = ",".join(f"{name}={x}" for name, x in changes.items())
  name = "".join(x if x.isalnum() or x in ".,=_-+*" else "_" for x in text)
  if len(name) > MAX_NAME:
    name = (
        f"{name[:MAX_NAME - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    )
  return f"step-{step}{',' * bool(name)}{name}"


# --- a work directory as it was before the step -------------------------------


class Copy:
  """A work directory as it was at the last checkpoint before a step.

  Checkpoints are hard links: what removes one here leaves the run's own. The
  copy is removed in the end.

  Args:
    workdir: of the run.
    step: that is replayed.

  Attributes:
    place: the copy.
    step: of its checkpoint of RL; None: RL begins anew.
    later: steps of the other complete checkpoints.
  """

  def __init__(self, workdir: pathlib.Path, step: int):
    self.place = workdir / "replay" / f".step-{step}"
    self._from = workdir
    found = Checkpoints(workdir / "checkpoints" / "rl")
    steps = [x for x in found.steps() if not found.fault(x)]
    found.close()
    self.step = max((x for x in steps if x < step), default=None)
    self.later = [x for x in steps if x >= step]

  def __enter__(self) -> "Copy":
    shutil.rmtree(self.place, ignore_errors=True)  # of a replay that was killed
    self.place.mkdir(parents=True)
    for name in run_log.FILES:
      if (self._from / name).exists():
        shutil.copyfile(self._from / name, self.place / name)
    for stage in ("sft", "habits", *feature.stages(), "value"):
      found = Checkpoints(self._from / "checkpoints" / stage)
      for step in found.steps():
        self._link(stage, step)
      found.close()
    if self.step is not None:
      self._link("rl", self.step)
    return self

  def __exit__(self, *_) -> None:
    shutil.rmtree(self.place, ignore_errors=True)

  def _link(self, stage: str, step: int) -> None:
    path = pathlib.Path("checkpoints") / stage / str(step)
    if (self._from / path).exists():
      shutil.copytree(
          self._from / path, self.place / path, copy_function=_link_or_copy
      )


def _link_or_copy(source: str, target: str) -> None:
  """A hard link, or a copy on file systems without links."""
  try:
    os.link(source, target)
  except OSError:
    shutil.copy2(source, target)


def _plan(copy: Copy, step: int, workdir: pathlib.Path) -> str:
  """What is executed again, and how long the run took for it."""
  first = copy.step or 0
  seconds = sum(
      line.get("timing_s/step") or 0
      for line in run_log.read_metrics(workdir)
      if line["stage"] == "rl" and first < line["step"] <= step
  )
  begin = f"checkpoint {copy.step}"
  if copy.step is None:
    begin = "the beginning of RL"
  many = f"steps {first + 1} to {step}" if step > first + 1 else f"step {step}"
  text = f"replay: {many}, from {begin}; the run took {seconds:.0f} s for it"
  if step - first > 5:
    text += (
        "; checkpoint.every and checkpoint.keep_last of a run decide how near"
        " its checkpoints are"
    )
  return text


def _start(own, session: Session, copy: Copy, step: int) -> learn.Start:
  """Policy, critic and cost of value pretraining, which RL started from.

  Raises:
    RunError: they are lost.
  """
  pretrain = functools.partial(value.run, own, session)
  model, there = session.model, session.output
  try:
    if copy.step is not None:
      start = learn.resumed(own, pretrain, model=model, output=there)
      assert start is not None
      params, critic, counters = start
    else:
      params, critic, counters = _anew(own, pretrain, model, there)
  except RunError as e:
    remedy = ""
    if copy.step is None:
      remedy = (
          f": no checkpoint of RL is older than step {step} (there are"
          f" {copy.later}), and RL cannot begin anew. Replay a later step, or"
          " train with a larger checkpoint.keep_last"
      )
    where = str(e).replace(str(copy.place), str(copy.place.parents[1]))
    raise RunError(f"--step = {step}{remedy or ''}: {where}") from None
  if params is not None:
    frozen = optimizers.learned(own).frozen(params, model.cfg.dtype)
    params = frozen or params
  return params, critic, counters


def _anew(own, pretrain: Callable, model: Model, there: Output) -> learn.Start:
  """Policy and critic of step 0."""
  params = trained_parameters.start(own, model=model, output=there)
  if not config_facts.has_critic(own):
    return params, None, None
  if own.critic.pretrain_steps and not own.critic.reuse:
    found = Checkpoints(there.workdir / "checkpoints" / "value")
    newest = found.newest(there.display.say)
    if newest is None or not found.host(newest)["complete"]:
      raise RunError(f"{there.workdir}: its value pretraining is not complete")
  return params, *pretrain(params)


# --- the step -----------------------------------------------------------------


class Found(NamedTuple):
  """What a step was, and what another config would have made of it.

  Attributes:
    rows: of the batch.
    batch: with the advantages.
    credit: rewards_B, and metrics of the credit.
    order_MB: row numbers of each minibatch.
    steps: the optimizer steps, without their gradients.
    norms: of the gradient of each optimizer step, by layer.
    ratio_BT: to pi_old after the step; 1 where it is unknown.
    change: norm of the change of all parameters.
    other: the same of the other config; None without overrides.
    cosines: of the gradients of the optimizer steps, run and other config; ()
      where their numbers differ.
    cosine: of the changes of all parameters.
    written: why gradients are not written; '' if they are.
  """

  rows: Experience
  batch: Batch
  credit: dict[str, Array]
  order_MB: Array
  steps: list[OptimizerStep]
  norms: list[dict[str, float]]
  ratio_BT: Array
  change: float
  other: "Found | None" = None
  cosines: tuple[float | None, ...] = ()
  cosine: float | None = None
  written: str = ""


class Watch:
  """Ends the loop of `rl.train` after a step, and takes its update apart.

  Args:
    own: the config of the run.
    other: the config with overrides; None without.
    step: that is replayed.
    place: where gradients are written.
    model: shapes and devices.
    output: of the copy.

  Attributes:
    found: what the step was; None before.
    digest: of the policy after the step; None before.
  """

  def __init__(
      self,
      own,
      other,
      step: int,
      place: pathlib.Path,
      *,
      model: Model,
      output: Output,
  ):
    self.found: Found | None = None
    self.digest: int | None = None
    self._own, self._other, self._step = own, other, step
    self._place, self._model, self._output = place, model, output

  def between_steps(self, stage: Any, logger: Any) -> Callable[..., bool]:
    """(state, parameters) -> whether a step follows; see `interim`.

    Nothing is evaluated, and no checkpoint is written.
    """

    def goes_on(state: Any, params: Tree) -> bool:
      logger.flush()
      stage.check_stop()
      if state.step < self._step:
        return True
      self.digest = state.certificate.digest(params)
      return False

    return goes_on

  def watch(
      self,
      state: Any,
      inputs: dict[str, Array],
      data_M: tuple,
      coefs: dict[str, Array],
      *,
      rows: Experience,
      plan: packing.PackingPlan,
      credit: dict[str, Array],
      batch: Batch,
      loop: feature.Loop,
      first: Tree,
  ) -> None:
    """Sees a step of `rl.train` before its update."""
    if state.step + 1 != self._step:
      return
    self._output.display.doing("gradients")
    own = Update(rows, plan, credit, batch, data_M, coefs)
    updates = [(self._own, own)]
    if self._other is not None:
      make = functools.partial(
          credited,
          self._own,
          self._other,
          state,
          inputs,
          rows,
          loop=loop,
          first=first,
          model=self._model,
          output=self._output,
      )
      updates.append((self._other, make()))
    self.found = self._take(state, loop.frozen, updates)

  def _take(self, state: Any, frozen: Tree | None, updates: list) -> Found:
    """Takes the optimizer steps of both configs, side by side."""
    iterators = []
    for n, (c, x) in enumerate(updates):
      learning, (batch_M, packed_M) = _learning(c, self._model), x.data_M
      arrays = state.policy, batch_M, packed_M, x.coefs, frozen
      iterators.append(optimizer_steps.take(learning, *arrays, tokens=n == 0))
    written = _why_not_written(state.policy.params)
    steps: list[list] = [[] for _ in updates]
    norms: list[list] = [[] for _ in updates]
    after: dict[int, TrainState] = {}
    cosines = []
    for m, several in enumerate(itertools.zip_longest(*iterators), 1):
      grads = []
      for n, found in enumerate(several):
        if isinstance(found, TrainState):
          after[n] = found
        elif found is not None:
          grads.append(found.grads)
          steps[n].append(found._replace(grads=None))
          norms[n].append(
              optimizer_steps.norms_by_layer(found.grads, is_stacked)
          )
          if n == 0 and not written:
            _write_gradient(self._place / f"gradient-{m}.npz", found.grads)
      if len(grads) == 2:
        cosines.append(optimizer_steps.cosine(*grads))
    changes = [
        optimizer_steps.difference(after[n].params, state.policy.params)
        for n in sorted(after)
    ]
    out = [
        Found(
            rows=x.rows,
            batch=x.batch,
            credit=x.credit,
            order_MB=x.plan.order_MB,
            steps=steps[n],
            norms=norms[n],
            ratio_BT=self._ratio(c, x, after[n].params, frozen),
            change=optimizer_steps.norm(changes[n]),
            written=written,
        )
        for n, (c, x) in enumerate(updates)
    ]
    if len(out) == 1:
      return out[0]
    same = len(steps[0]) == len(steps[1])
    return out[0]._replace(
        other=out[1],
        cosines=tuple(cosines) if same else (),
        cosine=optimizer_steps.cosine(*changes),
    )

  def _ratio(self, c, x: "Update", params: Tree, frozen: Tree | None) -> Array:
    """The ratios after the step, [B, T], to the policy before the step."""
    params = optimizers.learned(c).read(params, frozen)
    cfg, _, mesh = self._model
    logps = build_step.logps(c, cfg, mesh, self._output.display)
    new_BT, mask_BT = logps(params, x.plan)[0], x.batch.mask_BT
    gap_BT = np.where(mask_BT, new_BT - x.batch.old_logps_BT, 0)
    return np.exp(np.clip(gap_BT, -20, 20))


class Update(NamedTuple):
  """The batch of a step with its credit, as an update reads it."""

  rows: Experience
  plan: packing.PackingPlan
  credit: dict[str, Array]
  batch: Batch
  data_M: tuple
  coefs: dict[str, Array]


def credited(
    own,
    c,
    state: Any,
    inputs: dict[str, Array],
    rows: Experience,
    *,
    loop: feature.Loop,
    first: Tree,
    model: Model,
    output: Output,
) -> Update:
  """The credit that another config gives the rows of a step, and its batch.

  Args:
    own: the config of the run.
    c: the other config.
    state: `rl_state.RLState` before the update.
    inputs: of the run's credit; an array that they lack is computed.
    rows: of the run's batch.
    loop: what the run has before its loop.
    first: learned parameters of step 0, of the reference of a KL.
    model: shapes and devices.
    output: its screen shows what compiles.
  """
  cfg, _, mesh = model
  display = output.display
  policy = functools.partial(optimizers.learned(c).read, frozen=loop.frozen)
  on_policy = config_facts.on_policy(c)
  plan_rows = build_step.planner(c, mesh)
  plan = plan_rows(rows.rollouts, state.step)
  logps = build_step.logps(c, cfg, mesh, display)
  of_policy = ("entropy_BT", "squares_BT")
  names = ("ref_logps_BT", "values_BT", *of_policy)
  arrays = {name: inputs.get(name) for name in names}
  if on_policy:
    rows = with_old_logps(rows, None)
    arrays |= dict.fromkeys(of_policy)
  elif arrays["entropy_BT"] is None or (
      arrays["squares_BT"] is None and config_facts.reads_squares(c)
  ):  # the run was on-policy, or had another advantage
    logps_BT, *found = logps(policy(state.policy.params), plan)
    arrays |= dict(zip(of_policy, found, strict=True))
    rows = with_old_logps(rows, logps_BT)
  if c.kl.kind == "none":
    arrays["ref_logps_BT"] = None
  elif arrays["ref_logps_BT"] is None:
    arrays["ref_logps_BT"] = logps(policy(first), plan)[0]
  coefs = {name: state.coefs[name] for name in ("kl", "entropy")}
  if c.kl.coef != own.kl.coef:
    coefs["kl"] = c.kl.coef
  if c.loss.entropy_coef != own.loss.entropy_coef:
    coefs["entropy"] = c.loss.entropy_coef
  inputs = credit_inputs(
      rows,
      **arrays,
      progress=np.float32(state.step / c.rl.steps),
      kl_coef=np.float32(coefs["kl"]),
  )
  params = policy(state.policy.params)
  inputs |= state.parts.inputs(params, plan)
  for one in feature.used(c):
    if not one.used(own):  # its part is none of the run's
      inputs |= one.start(c, loop).inputs(params, plan)
  assign = build_step.credit(
      c, build_step.reward(c), mesh, display, on_policy=on_policy
  )
  credit = assign(inputs)
  batch = train_batch(
      rows,
      credit,
      **config_facts.batch_options(c),
      updates=len(plan.order_MB),
      ref_logps_BT=arrays["ref_logps_BT"],
      values_BT=arrays["values_BT"],
  )
  return Update(
      rows,
      plan,
      credit,
      batch,
      minibatches(mesh, batch, plan),
      sharding.put(
          mesh, build_step.coefficients(c)(coefs, state.step / c.rl.steps)
      ),
  )


def _learning(c, model: Model) -> Learning:
  """What the update of a config is made of."""
  objective = build_step.objective(c, on_policy=config_facts.on_policy(c))
  optimizer = optimizers.of_policy(c, model.cfg, model.mesh)
  settings = optimizers.update_settings(c, objective, model.cfg, optimizer)
  return Learning(**settings)


def _why_not_written(params: Tree) -> str:
  """Why gradients are not written; '' if they are."""
  size = sum(math.prod(x.shape) * 4 for x in jax.tree.leaves(params))
  if size <= MAX_GRADIENT:
    return ""
  return f"a gradient has {size / 2**30:.1f} GiB, more than 2 GiB"


def _write_gradient(path: pathlib.Path, grads: Tree) -> None:
  arrays = {
      jax.tree_util.keystr(where, simple=True, separator="."): x
      for where, x in jax.tree.leaves_with_path(grads)
  }
  np.savez(path, **arrays)
