"""Logged responses: whole groups of responses to a prompt."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from rl_reason.base import json_files
from rl_reason.base.structs import (
    Array,
    Batch,
    Experience,
    Rollouts,
    call_by_name,
)
from rl_reason.data import sample_files, tokenizer
from rl_reason.monitoring import run_log
from rl_reason.monitoring.display import Display
from rl_reason.tasks import Row

DIGITS = 5  # of the numbers of a token, since people read samples.jsonl
# Mean verdict of a group without signal -> its name; -1: no verdict.
EXTREMES = {0.0: "all incorrect", 1.0: "all correct", -1.0: "unverified"}
VERDICTS = {0: "no", 1: "yes", None: "not verified"}
FEW_TOKENS = 10_000  # of all groups of a step that are all logged with numbers


def lines(
    tok,
    rollouts,
    rows: list[Row],
    texts: list[str],
    correct_B,
    which: Iterable[int],
    *,
    detailed: Iterable[int] | None = None,
    is_verified: Callable[[Row], bool] = lambda row: True,
    **arrays: Array,
) -> list[dict]:
  """Responses as lines for samples.jsonl.

  Args:
    tok: the tokenizer.
    rollouts: B rows on the host.
    rows: the row of each group, B / len(rows) responses each.
    texts: of the B responses.
    correct_B: whether each response is correct; -1 where the verifier failed.
    which: indices of the responses that are wanted.
    detailed: indices of the responses with numbers for each token; None: all.
    is_verified: whether responses to a row are verified.
    **arrays: [B] or [B, T], logged under their names.
  """
  group_size = len(texts) // len(rows)
  prompt_slots = rollouts.tokens_BL.shape[1] - rollouts.mask_BT.shape[1]
  arrays = dict(logp=rollouts.logps_BT) | arrays
  detailed = which if detailed is None else detailed
  out = []
  for b in which:
    n = int(rollouts.lengths_B[b])
    row = rows[b // group_size]
    line: dict[str, Any] = dict(
        prompt=row.prompt,
        answer=row.answer,
        response=texts[b],
        correct=int(correct_B[b])
        if is_verified(row) and correct_B[b] >= 0
        else None,
        truncated=bool(rollouts.truncated_B[b]),
        length=int(rollouts.policy_lengths_B[b]),
    )
    # Numbers for each token would fill the file: few responses have them.
    if b in detailed:
      ids = rollouts.tokens_BL[b, prompt_slots : prompt_slots + n].tolist()
      line["tokens"] = tokenizer.pieces(tok, ids)
    for name, x in arrays.items():
      if x.ndim == 1:
        line[name] = json_files.number(x[b])
      elif b in detailed:
        line[name] = [json_files.number(y, DIGITS) for y in x[b, :n]]
      if name == "advantage" and n:
        mean = x[b, rollouts.mask_BT[b]].mean()
        line["advantage_mean"] = json_files.number(mean, DIGITS)
    out.append(line)
  return out


class Extreme(NamedTuple):
  """A group before dynamic sampling: its rows and their rewards."""

  rows: Experience
  rewards_B: Array


class SampleLog:
  """Logs groups of every few RL steps: all responses to a prompt.

  Args:
    log: receives the samples.
    display: the screen.
    tok: the tokenizer.
    row_of: prompt id -> its row.
    every: RL steps between logged steps; the first step is logged, too.
    groups: number of groups in a logged step. Two of them are the first group
      whose responses are all incorrect and the first group whose responses are
      all correct, as they were before dynamic sampling discarded them; the
      other groups are mixed.
    by_reward: whether a group has signal if its rewards differ, regardless of
      verdicts. Then the first group of equal rewards replaces the two groups.
    steps: of the run.
    is_verified: see `lines`.
    responses: number of responses with numbers for each token, if the groups
      have more than FEW_TOKENS.
    reward: `credit.outcome`, with bound keywords.
    surrogate: of the loss; it shows which tokens are clipped.
    estimate_kl: (log-probs, log-probs of the reference) -> KL [B, T]; None
      without a KL.
    has_values: whether there is a critic.
    new_logps: plan -> log-probs [B, T] after the update, by another forward
      pass; None: samples have no ratios.
  """

  def __init__(
      self,
      log: run_log.Log,
      display: Display,
      tok,
      row_of: Callable[[int], Row],
      *,
      every: int,
      groups: int,
      responses: int,
      by_reward: bool,
      steps: int,
      is_verified: Callable[[Row], bool],
      reward: Callable[[dict[str, Any]], Array],
      surrogate: Callable[..., tuple[Array, dict[str, Array]]],
      estimate_kl: Callable[[Array, Array], Array] | None,
      has_values: bool,
      new_logps: Callable[[Any], Array] | None,
  ):
    self._log, self._display, self._tok = log, display, tok
    self._row_of, self._every = row_of, every
    self._groups, self._responses = groups, responses
    self._by_reward, self._steps = by_reward, steps
    self._is_verified = is_verified
    # One program instead of one for each operation.
    self._reward, self._surrogate = jax.jit(reward), surrogate
    self._estimate_kl, self._has_values = estimate_kl, has_values
    self._new_logps = new_logps
    # Extreme groups of the steps that are not logged yet, by `_extreme`.
    self._extremes: dict[int, dict[str, Extreme]] = {}

  def watch(
      self, step: int, collect: Callable[..., Experience], *args: Any
  ) -> Callable[[], Experience]:
    """Wraps `collect` so that the first extreme groups are kept for `log`."""
    self._extremes[step] = {}

    def sample_round() -> Experience:
      rows = collect(*args)
      self.keep_extremes(step, rows)
      return rows

    return sample_round

  def keep_extremes(self, step: int, rows: Experience) -> None:
    """Keeps the first extreme groups of a round for `log`."""
    found = self._extremes.setdefault(step, {})
    if not self._is_due(step + 1):
      return
    inputs = _outcome_inputs(rows, np.float32(step / self._steps))
    rewards_B = np.asarray(self._reward(inputs))
    for index in _groups(rows.rollouts.ids_B):
      if rows.age_B[index[0]] < 0:
        continue  # padding
      name = self._extreme(rows.correct_B[index], rewards_B[index])
      if name and name not in found:
        group = jax.tree.map(lambda x, i=index: x[i], rows)
        found[name] = Extreme(group, rewards_B[index])

  def extremes(self, step: int) -> list[Experience]:
    """The groups that are kept for a step, at most one of each name."""
    return [x.rows for x in self._extremes.get(step, {}).values()]

  def log(
      self,
      step: int,
      rows: Experience,
      credit: dict[str, Array],
      batch: Batch,
      plan: Any,
      entropy_BT: Array | None,
  ) -> None:
    """Logs groups of a step, if the step is due.

    Args:
      step: RL steps that are done, this one included.
      rows: of the batch.
      credit: rewards_B.
      batch: what the update reads.
      plan: its PackingPlan.
      entropy_BT: of the policy before the update, if it is known.
    """
    kept = self._extremes.pop(step - 1, {})
    if not self._is_due(step):
      return
    arrays = dict(reward=credit["rewards_B"], advantage=batch.advantages_BT)
    if entropy_BT is not None:
      arrays["entropy"] = entropy_BT
    if self._has_values:
      arrays["value"] = batch.values_BT
    if self._estimate_kl is not None:
      arrays["kl"] = self._estimate_kl(batch.old_logps_BT, batch.ref_logps_BT)
    if self._new_logps is not None:
      arrays |= self._ratios(self._new_logps(plan), batch)

    # First mixed groups, which have signal.
    rewards_B = credit["rewards_B"]
    real = [
        index
        for index in _groups(rows.rollouts.ids_B)
        if rows.age_B[index[0]] >= 0
    ]
    mixed = [
        x for x in real if not self._extreme(rows.correct_B[x], rewards_B[x])
    ]
    wanted = max(self._groups - len(kept), 1)
    at = np.linspace(0, len(mixed) - 1, min(wanted, len(mixed)))
    chosen = [mixed[round(i)] for i in at]
    found = [(rows, index, arrays) for index in chosen]
    # Then the extremes; without dynamic sampling they are in the batch.
    extremes = sorted(kept.items(), reverse=True)
    for _, extreme in extremes[: self._groups - 1]:
      prompt_id = extreme.rows.rollouts.ids_B[0]
      same = [x for x in real if rows.rollouts.ids_B[x[0]] == prompt_id]
      if same:
        found.append((rows, same[0], arrays))
      else:
        index = np.arange(len(extreme.rewards_B))
        found.append((extreme.rows, index, dict(reward=extreme.rewards_B)))
    if not found:
      return
    tokens = sum(x.rollouts.lengths_B[i].sum() for x, i, _ in found)
    share = max(self._responses // len(found), 1)
    if tokens <= FEW_TOKENS:
      share = max(len(i) for _, i, _ in found)
    logged = [self._group(step, *x, count=share) for x in found]
    self._log.samples([line for group in logged for line in group])
    best = [max(x, key=lambda line: line["reward"] or 0) for x in logged]
    self._show(step, best)
    self._log.show(
        "rl", step, {"responses": _markdown(logged)}, _histograms(logged)
    )

  def doubtful(self, step: int, found: list[dict]) -> None:
    """Logs rejected responses that may be correct, see `doubtful_verdicts`."""
    if found:
      head = dict(stage=run_log.DOUBTFUL, step=step)
      self._log.samples([head | x for x in found])

  def _ratios(self, logps_BT: Array, batch: Batch) -> dict[str, Array]:
    """The ratios of tokens after the update, and which tokens are clipped."""
    mask_BT = batch.mask_BT
    old_BT, new_BT = (
        np.where(mask_BT, x, 0) for x in (batch.old_logps_BT, logps_BT)
    )
    inputs = dict(logps_BT=new_BT, old_logps_BT=old_BT, mask_BT=mask_BT)
    inputs |= dict(advantages_BT=batch.advantages_BT)
    _, found = call_by_name(self._surrogate, inputs)
    ratio_BT = np.exp(np.clip(new_BT - old_BT, -20, 20))
    return dict(ratio=ratio_BT, clipped=np.asarray(found["clipped"]))

  def _extreme(self, correct: np.ndarray, rewards: np.ndarray) -> str:
    """Why a group has no signal; '' if it has signal."""
    if self._by_reward:
      known = rewards[np.isfinite(rewards)]
      return "" if len(set(known.tolist())) > 1 else "equal rewards"
    known = correct[correct >= 0]
    return EXTREMES.get(float(known.mean()) if known.size else -1.0, "")

  def _is_due(self, step: int) -> bool:
    return step == 1 or step % self._every == 0

  def _group(
      self,
      step: int,
      rows: Experience,
      index: np.ndarray,
      arrays: dict[str, Array],
      count: int,
  ) -> list[dict]:
    """The lines of a group; `count` of them with numbers for each token."""
    group = jax.tree.map(lambda x: x[index], rows)
    values = {k: np.asarray(x)[index] for k, x in arrays.items()}
    if group.turns is not None:
      values |= group.turns.shown()
    rollouts = group.rollouts
    prompt_slots = rollouts.tokens_BL.shape[1] - rollouts.mask_BT.shape[1]
    texts = tokenizer.decode(
        self._tok, rollouts.tokens_BL[:, prompt_slots:], rollouts.lengths_B
    )
    # The lowest, the highest and further rewards in between.
    by_reward = np.argsort(values["reward"], kind="stable")
    at = np.linspace(0, len(index) - 1, min(count, len(index)))
    prompt_id = int(rollouts.ids_B[0])
    head = dict(stage="rl", step=step, group=prompt_id)
    head |= dict(discarded="advantage" not in arrays)
    return [
        head | line
        for line in lines(
            self._tok,
            rollouts,
            [row_of_response(self._row_of, self._tok, rollouts, 0)],
            texts,
            group.correct_B,
            range(len(index)),
            detailed={int(by_reward[round(i)]) for i in at},
            is_verified=self._is_verified,
            **values,
        )
    ]

  def _show(self, step: int, groups: list[dict]) -> None:
    """Shows a response of some groups on the screen."""
    self._display.table(
        f"responses at step {step}",
        ["prompt", "response", "correct", "reward"],
        [
            [
                line["prompt"],
                line["response"],
                VERDICTS[line["correct"]],
                "none" if line["reward"] is None else f"{line['reward']:+.2f}",
            ]
            for line in groups[:3]
        ],
    )


def row_of_response(
    row_of: Callable[[int], Row], tok: Any, rollouts: Rollouts, b: int
) -> Row:
  """The row of a response; of a stored group its prompt, without an answer.

  Args:
    row_of: prompt id -> its row of the data.
    tok: the tokenizer.
    rollouts: on the host.
    b: number of the response.
  """
  prompt_id = int(rollouts.ids_B[b])
  if prompt_id < sample_files.FIRST_ID:
    return row_of(prompt_id)
  slots = rollouts.tokens_BL.shape[1] - rollouts.mask_BT.shape[1]
  ids = rollouts.tokens_BL[b, rollouts.start_B[b] : slots]
  return Row(tokenizer.decode(tok, ids[None], [len(ids)])[0], "")


def _outcome_inputs(rows: Experience, progress: Any) -> dict[str, Any]:
  """The inputs of `credit.outcome`, before there is a batch."""
  turns = {}
  if rows.turns is not None:
    turns = rows.turns.inputs()
  if rows.steps is not None:
    turns = dict(judged_EB=rows.steps.judged_EB)
  return turns | dict(
      correct_B=rows.correct_B,
      scores_EB=rows.scores_EB,
      lengths_B=rows.rollouts.policy_lengths_B,
      truncated_B=rows.rollouts.truncated_B,
      groups_B=rows.rollouts.ids_B,
      progress=progress,
  )


def _groups(ids_B: np.ndarray) -> list[np.ndarray]:
  """Row numbers of each group: adjacent rows that share an id."""
  ends = np.flatnonzero(np.diff(ids_B)) + 1
  return np.split(np.arange(len(ids_B)), ends)


def _markdown(groups: list[list[dict]]) -> str:
  """Groups as Markdown; responses are code blocks, never markup."""
  out = []
  for group in groups:
    out.append(f"### Prompt {group[0]['group']}\n\n{_code(group[0]['prompt'])}")
    for line in group:
      reward, length = line["reward"], line["length"]
      verdict = f"correct: {VERDICTS[line['correct']]}"
      out.append(f"{verdict}, reward {reward}, {length} tokens")
      out.append(_code(line["response"]))
  return "\n\n".join(out)


def _code(text: str) -> str:
  return "\n".join(f"    {x}" for x in text.splitlines())


def _histograms(groups: list[list[dict]]) -> dict[str, np.ndarray]:
  """The distributions of rewards, lengths and numbers of tokens."""
  flat: dict[str, list] = {}
  for line in (line for group in groups for line in group):
    for name in ("reward", "length", "advantage", "logp", "entropy", "ratio"):
      value = line.get(name)
      if isinstance(value, list):
        flat.setdefault(name, []).extend(value)
      elif value is not None:
        flat.setdefault(name, []).append(value)
  return {name: np.array(x, float) for name, x in flat.items()}
