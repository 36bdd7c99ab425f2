"""Direct preference optimization: a policy learns from pairs of responses.

DPO (Rafailov et al. 2023, arXiv:2305.18290, eq 7): the log-ratio of a response
to the policy of SFT, times beta, is its implicit reward, and the difference of
two rewards the log-odds of the preference. The log-ratios need the policy of
SFT only once for each pair: its log-probs of all pairs to come are computed
before the first step, so that no step has a second model.

Shapes here: B rows, two for each pair; the chosen response comes first.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_reason.base.structs import Array, Packed, TrainState, Tree
from rl_reason.checkpointing import resumable
from rl_reason.devices import sharding
from rl_reason.devices.compiled import CompiledOnce
from rl_reason.evaluation import statistics
from rl_reason.models import decoder, experts
from rl_reason.stages import build_step, demonstrations, supervised
from rl_reason.stages.session import Session
from rl_reason.training import packing
from rl_reason.training.step import accumulate, optimize

Rows = tuple[Array, Array, Array]  # tokens [B, L], start [B], mask [B, T]


def run(c, session: Session, policy_params: Tree) -> Tree:
  """Runs or resumes the stage; returns the parameters of the policy.

  It starts from `policy_params`, the policy of SFT, which is the reference, and
  whose arrays are deleted once its log-probs are known.

  Raises:
    DataError: there are no pairs to learn from.
    RunError: too many updates were skipped.
    Stopped: SIGTERM; everything is saved.
  """
  model, output, d = session.model, session.output, c.dpo
  cfg, screen = model.cfg, output.display
  pairs = functools.partial(
      demonstrations.pairs, c, "dpo", session.row_source, session.tok
  )
  pack = functools.partial(demonstrations.pack_pairs, c.rollout, session.tok)
  rows = max(build_step.packed_rows(c, model.mesh), 2)
  program = CompiledOnce(
      "log-probs of pairs", sequence_logps_program(cfg), screen
  )
  logps = functools.partial(_logps, program, model.mesh, rows)

  held_out, available = pairs(evaluation=True, say=lambda _: None)
  count = int(min(d.evaluate_pairs, available))

  reference = Reference(
      policy_params,
      logps,
      (pack(next(held_out)) for _ in range(-(-count // d.batch))),
      say=screen.say,
      doing=screen.doing,
      check_stop=functools.partial(resumable.check_stop, output.stop),
  )
  stream = pairs(evaluation=False, say=screen.say)[0]

  def update(state, packed, mask_BT, reference_B, tx):
    return dpo_update(
        state,
        packed,
        mask_BT,
        reference_B,
        cfg=dataclasses.replace(cfg, router_aux=c.loss.router_aux),
        tx=tx,
        beta=d.beta,
        label_smoothing=d.label_smoothing,
    )

  def finish(params: Tree) -> None:
    reference.compute()
    assert reference.held_out is not None
    rewards_B = np.concatenate(
        [
            d.beta * (logps(params, *batch) - reference_B)
            for batch, reference_B in reference.held_out
        ]
    )
    margin_N = (rewards_B[::2] - rewards_B[1::2])[:count]
    accuracy, half = statistics.share_interval(margin_N > 0)
    metrics = {
        "val-core/preferences/accuracy": accuracy,
        "val-core/preferences/accuracy/ci95": half,
        "val-aux/preferences/margin": float(margin_N.mean()),
    }
    output.log.metrics("dpo", d.steps, metrics)
    screen.say(
        f"DPO: prefers the chosen response in {accuracy:.1%} +- {half:.1%} of"
        " held-out pairs"
    )

  table = decoder.table(cfg)
  return supervised.train(
      c,
      "dpo",
      mesh=model.mesh,
      output=output,
      title="DPO",
      prefix="dpo",
      table=table,
      first=lambda _: policy_params,
      stream=WithReference(stream, pack, d.steps, reference),
      rows=lambda batch: batch,
      update=supervised.program(
          c, update, title="DPO", table=table, mesh=model.mesh, display=screen
      ),
      steps=d.steps,
      lr=d.lr,
      schedule=d.schedule,
      warmup=d.warmup_steps,
      unit=2,
      final_check=finish,
  )


def sigmoid_loss(
    chosen_B: Array, rejected_B: Array, label_smoothing: float = 0.0
) -> Array:
  """DPO's loss of the implicit rewards of pairs, [B] each; see eq 7.

  -(1 - e) log sigmoid(d) - e log sigmoid(-d), d = chosen - rejected, where e is
  the probability that a label is wrong (conservative DPO, Mitchell 2023); with
  e = 0 it is eq 7. Smallest at d = log((1 - e) / e).
  """
  chex.assert_equal_shape([chosen_B, rejected_B])
  margin_B = chosen_B - rejected_B
  right_B, wrong_B = (-jax.nn.log_sigmoid(x_B) for x_B in (margin_B, -margin_B))
  return (1 - label_smoothing) * right_B + label_smoothing * wrong_B


def sequence_logps(
    params: Tree, cfg: decoder.ModelConfig, packed: Packed, mask_BT: Array
) -> tuple[Array, Any]:
  """Log-probs of whole responses, [B], and the routing of `decoder.forward`."""
  logps_BT, _, routing = decoder.packed_logps(params, cfg, packed)
  return jnp.sum(jnp.where(mask_BT, logps_BT, 0), 1), routing


def sequence_logps_program(cfg: decoder.ModelConfig) -> Callable:
  """jit: (params, Packed, mask [B, T]) -> log-probs of responses, [B].

  The micro-batches are those of the update, and take no more memory.
  """

  def program(params, packed, mask_BT):
    def micro_batch(micro, member_B):
      logps_B, _ = sequence_logps(params, cfg, micro, mask_BT)
      return packing.zero_others(member_B, logps_B)

    return packing.fold(micro_batch, packed)

  return jax.jit(program)


def dpo_update(
    state: TrainState,
    packed: Packed,
    mask_BT: Array,
    reference_B: Array,
    *,
    cfg: decoder.ModelConfig,
    tx: optax.GradientTransformation,
    beta: float,
    label_smoothing: float = 0.0,
) -> tuple[TrainState, dict[str, Array]]:
  """One step of DPO: the mean loss of the pairs.

  Args:
    state: donated by the caller's jit.
    packed: the rows of a pair are adjacent and share a micro-batch; the chosen
      response comes first.
    mask_BT: response tokens.
    reference_B: log-probs of the responses, by the policy of SFT.
    cfg: static.
    tx: static.
    beta: static, the weight of the KL to the policy of SFT (eq 3).
    label_smoothing: static; see `sigmoid_loss`.

  Returns:
    the next state, and metrics, with the names of TRL: loss; the mean implicit
    reward of chosen and of rejected responses, their difference, and how often
    it is positive (rewards/chosen, rewards/rejected, rewards/margins,
    rewards/accuracies); the mean log-prob of a response (logps/chosen,
    logps/rejected), in nats; grad_norm, update_skipped, and with experts those
    of `experts.loss`.
  """
  count = len(mask_BT) // 2
  tokens = jnp.maximum(mask_BT.sum(dtype=jnp.float32), 1)

  def loss_fn(params, packed, rows):
    mask_BT, reference_B, share_B = rows
    logps_B, routing = sequence_logps(params, cfg, packed, mask_BT)
    chosen_B, rejected_B = (
        beta * (logps_B - reference_B).reshape(-1, 2).T
    )  # implicit rewards
    share_B = share_B[::2]

    def mean(x_B):
      return jnp.sum(share_B * x_B)

    loss = mean(sigmoid_loss(chosen_B, rejected_B, label_smoothing))
    aux, more = experts.loss(cfg, routing, packed, mask_BT / tokens)
    return loss + aux, more | {
        "loss": loss,
        "rewards/chosen": mean(chosen_B),
        "rewards/rejected": mean(rejected_B),
        "rewards/margins": mean(chosen_B - rejected_B),
        "rewards/accuracies": mean(chosen_B > rejected_B),
        "logps/chosen": mean(logps_B[::2]),
        "logps/rejected": mean(logps_B[1::2]),
    }

  rows = mask_BT, reference_B, jnp.full(2 * count, 1 / count)
  grads, metrics = accumulate(loss_fn, state.params, packed, rows)
  state, step_metrics = optimize(state, tx, grads, mask_BT, at=state.step)
  return state.replace(step=state.step + 1), metrics | step_metrics


class Reference:
  """Log-probs by the policy of SFT, which is deleted after them.

  Args:
    params: of the policy of SFT.
    logps: (params, tokens, start, mask) -> log-probs of responses, [B].
    held_out: batches of held-out pairs.
    say: shows a line.
    doing: shows what happens.
    check_stop: raises Stopped after SIGTERM.

  Attributes:
    held_out: batches of held-out pairs with their log-probs, after `compute`.
  """

  def __init__(
      self,
      params: Tree,
      logps: Callable[..., Array],
      held_out: Iterable[Rows],
      *,
      say: Callable[[str], None],
      doing: Callable[[str], None],
      check_stop: Callable[[], None],
  ):
    self._params, self._logps, self._rows = params, logps, held_out
    self._say, self._doing, self._check_stop = say, doing, check_stop
    self.held_out: list[tuple[Rows, Array]] | None = None

  def compute(
      self, batches: Iterable[Rows] = (), count: int = 0
  ) -> list[Array]:
    """The log-probs of `count` batches, [B] each, and of held-out pairs.

    A second call does nothing.
    """
    if self.held_out is not None:
      return []
    out = []
    for n, rows in enumerate(itertools.islice(batches, count), 1):
      self._check_stop()
      self._doing(f"log-probs of SFT, batch {n} of {count}")
      out.append(self._logps(self._params, *rows))
    held_out = [(x, self._logps(self._params, *x)) for x in self._rows]
    for x in jax.tree.leaves(self._params):
      x.delete()
    self.held_out = held_out
    if count:
      pairs = sum(map(len, out)) // 2
      self._say(f"DPO: log-probs of {pairs:,} pairs by the policy of SFT")
    return out


class WithReference:
  """A checkpointable iterator over batches, with the log-probs of SFT.

  Before its first batch it computes those of all batches that are left. The
  same arrays give the same bits after a resume.

  Args:
    stream: a checkpointable iterator over batches of pairs.
    pack: a batch -> tokens [B, L], start [B], mask [B, T].
    total: batches in all.
    reference: of the policy of SFT.
  """

  def __init__(
      self,
      stream: Any,
      pack: Callable[[Any], Rows],
      total: int,
      reference: Reference,
  ):
    self._stream, self._pack, self._total = stream, pack, total
    self._reference, self._count = reference, 0
    self._ahead: Iterator[Array] | None = None

  def __iter__(self) -> "WithReference":
    return self

  def __next__(self) -> tuple[Array, ...]:
    """Tokens, start, mask, and log-probs [B]."""
    if self._ahead is None:
      here = self._stream.get_state()
      batches = map(self._pack, self._stream)
      left = self._total - self._count
      try:
        self._ahead = iter(self._reference.compute(batches, left))
      finally:  # a stopped run saves the state of the stream
        self._stream.set_state(here)
    self._count += 1
    return *self._pack(next(self._stream)), next(self._ahead)

  def get_state(self) -> dict[str, Any]:
    """What a checkpoint has of it, as JSON."""
    return dict(pairs=self._stream.get_state(), batches=self._count)

  def set_state(self, state: dict[str, Any]) -> None:
    """Goes on from `get_state`."""
    self._stream.set_state(state["pairs"])
    self._count = state["batches"]


def _logps(
    program: Callable,
    mesh: jax.sharding.Mesh,
    rows: int,
    params: Tree,
    tokens_BL: Array,
    start_B: Array,
    mask_BT: Array,
) -> np.ndarray:
  """Runs `sequence_logps_program`; [B], on the host."""
  packed = packing.pack(tokens_BL, start_B, mask_BT, rows, 2)
  placed = sharding.put_packed(mesh, packed), sharding.put(
      mesh, mask_BT, "batch"
  )
  return sharding.fetch(program(params, *placed))
