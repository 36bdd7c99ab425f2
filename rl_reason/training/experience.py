"""From prompts to a batch: sample, score, log-probs, values, credit, cut.

What value.py and rl.py share. Programs are compiled once and change no state;
arrays between them are on the host, where rows are picked and put together.
"""

import concurrent.futures
import contextlib
import functools
import zlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason import config as config_lib, tasks
from rl_reason.algorithms import advantages, corrections, credit, rewards
from rl_reason.data import pipelines
from rl_reason.evaluation import evaluate
from rl_reason.models import critic, decoder, parameters
from rl_reason.monitoring import metrics as metrics_lib
from rl_reason.reward_models import train
from rl_reason.scale import sharding
from rl_reason.structs import (
    Array,
    Batch,
    Experience,
    Packed,
    Past,
    Prompts,
    Rollouts,
    RunError,
    Tree,
)
from rl_reason.tasks import scorers
from rl_reason.training import dynamic_sampling, packing
from rl_reason.training.session import Once, Run, over_micro_batches

PATIENCE = 100_000  # retired prompts in a row before the run gives up


class Layout(NamedTuple):
  """How the rows of a step are cut; on the host.

  Attributes:
    order_MB: row numbers of each minibatch; those of an epoch hold every row
      once.
    packed_M: their tokens.
  """

  order_MB: Array
  packed_M: Packed


def _idle() -> None:
  pass


def _never(known: int, unknown: int) -> bool:
  return False


class Verdicts:
  """Of responses that end one after the other, while others are sampled.

  Judged on a thread of their own: the one that samples is never kept waiting.

  Args:
    run: everything that the stages share.
    rows_B: what each response answers.

  Attributes:
    texts: of the responses; like the others up to the last `wait`.
    correct_B: float32 in {0, 1}.
    failures: of the verifier.
  """

  def __init__(self, run: Run, rows_B: list[tasks.Row]):
    self._run, self._rows_B = run, rows_B
    self._begun_B = np.zeros(len(rows_B), bool)
    self._judge = concurrent.futures.ThreadPoolExecutor(1, "verdicts")
    self._under_way: list = []
    self.texts = [""] * len(rows_B)
    self.correct_B = np.zeros(len(rows_B), np.float32)
    self.failures = 0

  def begin(self, rollouts: Rollouts, ended_B: np.ndarray) -> None:
    """Judges those that have ended since."""
    which = np.flatnonzero(ended_B & ~self._begun_B)
    self._begun_B |= ended_B
    if len(which):
      some = jax.tree.map(lambda x: x[which], rollouts)
      rows = [self._rows_B[b] for b in which]
      args = self._run.task, self._run.tok, some, rows
      begun = self._judge.submit(evaluate.begin_to_judge, *args)
      self._under_way.append((which, begun))

  def close(self) -> None:
    """Lets the thread go; what it has not begun it never does."""
    self._judge.shutdown(wait=False, cancel_futures=True)

  def wait(self) -> None:
    """Until all are there that were begun."""
    for which, begun in self._under_way:
      finish = begun.result()
      texts, self.correct_B[which], failed = finish()
      self.failures += failed
      for b, text in zip(which, texts, strict=True):
        self.texts[b] = text
    self._under_way = []


class Maker:
  """Makes experience of one policy after the other.

  Args:
    run: everything that the stages share.
    purpose: names the randomness of prompts and noise.
    batches: of responses in a round of generation.
    stragglers: groups that a round may leave unfinished to the next one.

  Attributes:
    problems: the source of rows by id.
    batch: responses of a round.
    carried: those groups, then padding.
    clock: of the loop; sampling and scoring are laps of it.
    failures: of the verifier, since it was last reset.
  """

  def __init__(
      self, run: Run, purpose: str, batches: int = 1, stragglers: int = 0
  ):
    c = run.config
    self._run = run
    self.batch = batches * c.rollout.batch
    self._room = stragglers
    self.carried = no_rows(run, stragglers * c.rollout.group_size)
    self.problems, self._stream = run.problems(f"{purpose} prompts", 1)
    self._seen: dict[str, list[float]] = {}  # type: accuracy, length
    self._streaks: dict[str, int] = {}  # problem: times all right in a row
    self._rng = run.key(purpose)
    self._heat = run.put(np.float32(c.rollout.temperature))
    self.clock = metrics_lib.Clock()
    self.reset()
    self._logps = Once("log-probabilities", _logps(run), run.display)
    self._values = Once("values", _values(run), run.display)
    self._assign = Once("rewards and advantages", _assign(run), run.display)
    self._returns = Once("rewards and returns", _returns(run), run.display)
    self._scorers = [_scorer(run, x.name) for x in terms(run)]

  def reset(self) -> None:
    """Begins another step: it counts its failures, and has its own policy."""
    self.failures, old = 0, self.carried
    self.carried = old.replace(
        known_B=old.rollouts.lengths_B, age_B=old.age_B + (old.age_B >= 0)
    )

  def get_state(self) -> dict:
    """What a checkpoint needs, as JSON."""
    return dict(
        data=self._stream.get_state(), seen=self._seen, streaks=self._streaks
    )

  def set_state(self, state: dict) -> None:
    """Back to what `get_state` returned."""
    self._stream.set_state(state["data"])
    self._seen, self._streaks = state["seen"], state["streaks"]

  def _draw(self, count: int) -> tuple[list[int], list[tasks.Row]]:
    """The next prompts that are not retired."""
    c = self._run.config.rollout
    ids, rows, skipped = [], [], 0
    while len(rows) < count:
      (at, row), *_ = next(self._stream)
      if self._streaks.get(_key(row), 0) < (c.retire_after or np.inf):
        ids.append(at)
        rows.append(row)
      elif (skipped := skipped + 1) > PATIENCE:
        raise RunError(
            f"rollout.retire_after = {c.retire_after}: {skipped} prompts in a"
            " row are retired, always right; stop here, or add harder ones"
        )
    return ids, rows

  def _expected(self, rows: list[tasks.Row]) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and length of each prompt, by what its type took so far."""
    # A type that is new counts as the average one.
    usual = np.mean(list(self._seen.values()) or [[0.5, 1.0]], 0)
    seen = [self._seen.get(str(row.difficulty), usual) for row in rows]
    share_N, length_N = np.array(seen, np.float32).T
    return share_N, length_N

  def _sizes(self, rows: list[tasks.Row]) -> np.ndarray:
    """Responses to each prompt."""
    c = self._run.config.rollout
    if c.sizes == "equal":
      return np.full(len(rows), c.group_size)
    share_N, length_N = self._expected(rows)
    need_N = share_N * (1 - share_N) + 0.01
    if c.sizes == "length":
      need_N = 1 / length_N
    return dynamic_sampling.group_sizes(need_N, self.batch, c.least_group)

  def _learn(self, x: Experience, rows: list[tasks.Row]) -> None:
    """Notes accuracy and length by type, and who was all right again."""
    groups = dynamic_sampling.groups(x.rollouts.ids_B)
    for row, group in zip(rows, groups, strict=True):
      share = float(x.correct_B[group].mean())
      new = [share, float(x.rollouts.lengths_B[group].mean())]
      old = self._seen.setdefault(str(row.difficulty), new)
      self._seen[str(row.difficulty)] = [
          0.9 * a + 0.1 * b for a, b in zip(old, new, strict=True)
      ]
      streak = self._streaks.pop(_key(row), 0)
      if share == 1 and self._run.config.rollout.retire_after:
        self._streaks[_key(row)] = streak + 1

  def weights(self, params: Tree) -> Tree:
    """What a policy is sampled with (`rollout_weights`); maybe its own."""
    return self._run.weights(params, self._run.config.rollout.weights)

  def generate(
      self, params: Tree, meanwhile=_idle, goes_on=_never
  ) -> Experience:
    """Samples and scores one round of prompts.

    Args:
      params: as `weights` returned them.
      meanwhile: called while the device samples.
      goes_on: see `dynamic_sampling.collect`.

    Returns:
      groups in the order of their prompts: all; or, with stragglers, those that
      are whole, and with rollout.across_steps no more than a round has.

    Raises:
      RunError: all prompts are retired.
    """
    run, c = self._run, self._run.config
    group, count = c.rollout.group_size, self.batch // c.rollout.group_size
    held = dynamic_sampling.real(self.carried)
    total = count + self._room
    ids = held.rollouts.ids_B[::group].tolist()
    rows = [self.problems[at][1] for at in ids]
    new = self._draw(total - len(ids) if c.rollout.across_steps else count)
    ids, rows = ids + new[0], rows + new[1]
    real, empty = len(ids), self._room and total - len(ids)
    ids, rows = ids + [-1 - n for n in range(empty)], rows + rows[:1] * empty
    sizes_N = self._sizes(rows)
    rows_B = [r for r, n in zip(rows, sizes_N, strict=True) for _ in range(n)]

    verdicts = Verdicts(run, rows_B)
    with contextlib.closing(verdicts):
      for part in self._sample(
          params, ids, rows, sizes_N, rows_B, held, meanwhile
      ):
        rollouts, ended_B = part
        verdicts.begin(rollouts, ended_B)
        if self._room and self._stops(verdicts, ended_B, goes_on):
          break
      self.clock.lap("gen")
      verdicts.wait()
    none_B, old = np.zeros(len(rows_B), np.int32), len(held.age_B)
    everything = Experience(
        rollouts=rollouts,
        correct_B=verdicts.correct_B,
        scores_NB=tuple(none_B.astype(np.float32) for _ in self._scorers),
        old_logps_BT=rollouts.logps_BT,
        known_B=np.concatenate([held.known_B, none_B[old:]]),
        age_B=np.concatenate([held.age_B, none_B[old:]]),
        types_B=np.array([row.difficulty for row in rows_B], np.int32),
        problems_B=np.array([int(_key(row)) for row in rows_B], np.int32),
    )
    each = dynamic_sampling.groups(rollouts.ids_B)
    whole = [n for n in range(real) if ended_B[each[n]].all()]
    whole = sorted(whole, key=ids.__getitem__)
    if c.rollout.across_steps:
      whole = whole[:count]
    done = set(whole)
    others = [each[n] for n in range(real) if n not in done]
    self.carried = dynamic_sampling.fill(
        dynamic_sampling.take(everything, others),
        self._room * group,
        self.carried,
        group,
    )
    out = self._scored(everything, verdicts, [each[n] for n in whole], rows_B)
    self._learn(out, [rows[n] for n in whole])
    self.clock.lap("score")
    return out

  def _scored(self, everything, verdicts: Verdicts, each, rows_B) -> Experience:
    """Some groups, and what the scorers say of them."""
    out = dynamic_sampling.take(everything, each)
    which = np.concatenate(each)
    texts = [verdicts.texts[b] for b in which]
    rows_B = [rows_B[b] for b in which]
    said = [score(self, out.rollouts, texts, rows_B) for score in self._scorers]
    self.failures += verdicts.failures + sum(failed for _, failed in said)
    if self._run.config.reward.shuffle:
      rng = np.random.default_rng(
          (self._run.seed("shuffle"), out.rollouts.ids_B[0])
      )
      out = out.replace(correct_B=rng.permutation(out.correct_B))
    return out.replace(
        scores_NB=tuple(np.asarray(x, np.float32) for x, _ in said)
    )

  def _stops(self, verdicts: Verdicts, ended_B, goes_on) -> bool:
    """Whether the groups that are unfinished are left to the next round.

    At a moment that counts decode steps, and not by what is judged by then: a
    run is the same each time.
    """
    c = self._run.config.rollout
    ended_NG = ended_B.reshape(-1, c.group_size)
    left = int((~ended_NG.all(1)).sum())
    if not 0 < left <= self._room:
      return False
    if c.across_steps:
      return True
    verdicts.wait()
    share_N = verdicts.correct_B.reshape(ended_NG.shape).mean(1)
    signal_N = ended_NG.all(1) & (share_N > 0) & (share_N < 1)
    return goes_on(int(signal_N.sum()), left)

  def _sample(self, params: Tree, ids, rows, sizes_N, rows_B, held, meanwhile):
    """`Run.stream` of some prompts; the first have begun; on the host."""
    run, c = self._run, self._run.config.rollout
    begun = _begin(run, held, np.array(ids)) if self._room else None
    # Each data shard gets its part of those that have begun.
    hands = run.ways if self._room else 1
    order_N = deal(list(np.arange(len(ids))[:, None]), hands)
    each = np.split(np.arange(len(rows_B)), np.cumsum(sizes_N)[:-1])
    order_B = deal(each, hands)
    back_B = np.argsort(order_B)
    prompts: Prompts = pipelines.pack_prompts(
        run.tok,
        [rows[n].prompt for n in order_N],
        [ids[n] for n in order_N],
        c.max_prompt,
    )
    _, length_B = self._expected(rows_B)
    begun = jax.tree.map(lambda x: x[order_B], begun)
    for part in run.stream(
        params,
        run.put(prompts, "batch"),
        self._rng,
        self._heat,
        None if c.sizes == "equal" else run.put(sizes_N),
        expected_B=run.put(length_B[order_B], "batch"),
        begun=begun and run.put(begun, "batch"),
        tell=self._room,
        group_size=c.group_size,
        top_p=c.top_p,
        cache=c.cache,
        meanwhile=meanwhile,
    ):
      yield jax.tree.map(lambda x: x[back_B], sharding.fetch(part))

  def layout(self, r: Rollouts, at: int = 0) -> Layout:
    """`layout` of a batch; `at` decides how later epochs are shuffled."""
    rows = r.tokens_BL, r.start_B, r.mask_BT
    return layout(self._run, *rows, dynamic_sampling.groups(r.ids_B), at)

  def score(self, program, params: Tree, cut: Layout):
    """A program over the micro-batches of one epoch, rows in their order."""
    epoch = slice(self._run.config.updates.minibatches)
    packed_M = jax.tree.map(lambda x: x[epoch], cut.packed_M)
    scored_MB = sharding.fetch(program(params, self._run.put_packed(packed_M)))
    back_B = np.argsort(cut.order_MB[epoch].reshape(-1))
    return jax.tree.map(
        lambda x: x.reshape(-1, *x.shape[2:])[back_B], scored_MB
    )

  def logps(self, params: Tree, cut: Layout):
    """The trainer's log-probs and entropy of responses: [B, T] each."""
    return self.score(self._logps, params, cut)

  def with_old_logps(self, params: Tree, rows: Experience, cut: Layout):
    """Rows with the trainer's log-probs, and the entropy [B, T].

    Tokens of an earlier step's policy bring theirs along: rows that were kept
    the trainer's, and what was carried over the sampler's.
    """
    logps_BT, entropy_BT = self.logps(params, cut)
    r, at_T = rows.rollouts, np.arange(rows.old_logps_BT.shape[1])
    known_BT = at_T < rows.known_B[:, None]
    old_BT = np.where(known_BT, rows.old_logps_BT, logps_BT)
    known_B = np.where(rows.age_B >= 0, r.lengths_B, 0)
    return rows.replace(old_logps_BT=old_BT, known_B=known_B), entropy_BT

  def values(self, critic_params: Tree, cut: Layout):
    """V of the prefix before each token of the responses: [B, T]."""
    return self.score(self._values, critic_params, cut)

  def past(self, params: Tree, past: Past | None) -> dict[str, Array]:
    """What `advantages.temporal` reads of earlier responses; {} without."""
    if past is None:
      return {}
    count = self._run.config.rollout.batch
    parts = [slice(h, h + count) for h in range(0, len(past.start_H), count)]
    cuts = [
        layout(
            self._run,
            past.tokens_HL[part],
            past.start_H[part],
            past.mask_HT[part],
            [np.arange(count)],
        )
        for part in parts
    ]
    logps_HT = np.concatenate([self.logps(params, cut)[0] for cut in cuts])
    weights_H = corrections.past_weights(
        logps_HT,
        past.logps_HT,
        past.mask_HT,
        limit=self._run.config.advantage.history_ratio,
    )
    return dict(
        past_rewards_H=past.rewards_H,
        past_problems_H=past.problems_H,
        past_weights_H=np.asarray(weights_H),
    )

  def assign(self, rows: Experience, **more: Array) -> dict:
    """`credit.outcome`, then `credit.assign`; on the host.

    Args:
      rows: with the old log-probs.
      **more: further arrays of `credit`'s table, and its scalars.
    """
    return sharding.fetch(self._assign(self._run.put(facts(rows) | more)))

  def returns(self, rows: Experience, values_BT) -> dict:
    """`credit.outcome`, then Monte-Carlo `credit.targets`; on the host.

    Args:
      rows: of a policy that stays as it is: they get no advantages.
      values_BT: of the critic that learns.
    """
    arrays = facts(rows) | dict(values_BT=values_BT, progress=np.float32(0))
    return sharding.fetch(self._returns(self._run.put(arrays)))


def _key(row: tasks.Row) -> str:
  """Equal for equal prompts: 31 bits, in decimal."""
  return str(zlib.crc32(row.prompt.encode()) >> 1)


def facts(rows: Experience) -> dict[str, Array]:
  """The arrays of some rows under the names that `credit` knows."""
  r = rows.rollouts
  return dict(
      correct_B=rows.correct_B,
      scores_NB=rows.scores_NB,
      lengths_B=r.lengths_B,
      truncated_B=r.truncated_B,
      groups_B=r.ids_B,
      age_B=rows.age_B,
      types_B=rows.types_B,
      problems_B=rows.problems_B,
      mask_BT=r.mask_BT,
      # Padding may hold anything.
      logps_BT=np.where(r.mask_BT, rows.old_logps_BT, 0),
      sampler_logps_BT=np.where(r.mask_BT, r.logps_BT, 0),
  )


def terms(run: Run) -> tuple[scorers.Term, ...]:
  """The scorers of the config, with their weights."""
  return scorers.terms(run.config.reward.scorers)


def _scorer(run: Run, name: str):
  """(maker, rollouts, texts, rows) -> scores [B], failures."""
  if scorers.is_model(name):
    params, program = train.scorer(run, name)

    def learned(maker, r, texts, rows):
      return maker.score(program, params, maker.layout(r)), 0

    return learned
  score = scorers.find(name)

  def written(maker, r, texts, rows):
    share_B = r.lengths_B / run.config.rollout.max_tokens
    told = map(scorers.Response, texts, share_B.tolist(), r.truncated_B)
    found = [
        scorers.apply(score, *both) for both in zip(told, rows, strict=True)
    ]
    return [x or 0.0 for x in found], found.count(None)

  return written


def _logps(run: Run):
  """jit: log-probs and entropy of packed rows.

  In the micro-batches of the update: no more memory than the update takes, and
  the same matrix products, so that the first update starts at a ratio of 1.
  """
  heat = run.config.rollout.temperature
  return over_micro_batches(
      lambda params, packed: decoder.packed_logps(params, run.cfg, packed, heat)
  )


def _values(run: Run):
  """jit: values of packed rows."""
  return over_micro_batches(
      lambda params, packed: critic.values(params, run.critic_cfg, packed)[0]
  )


def _outcome(run: Run, rows: dict[str, Array]) -> Array:
  """The rewards of rows: `credit.outcome` by the config."""
  c = run.config
  keywords = dict(c.reward, max_tokens=c.rollout.max_tokens)
  for name in ("shuffle", "scorers", "workers", "seconds"):
    del keywords[name]
  weights_N = tuple((x.first, x.last) for x in terms(run))
  names = ("correct_B", "lengths_B", "truncated_B", "groups_B")
  return credit.outcome(
      **{name: rows[name] for name in names},
      extra_B=rewards.weighted(rows["scores_NB"], weights_N, rows["progress"]),
      **keywords,
  )


def _returns(run: Run):
  """jit: `facts` and values_BT -> rewards_B, returns_BT and metrics."""

  def fn(rows):
    rewards_B, mask_BT = _outcome(run, rows), rows["mask_BT"]
    zeros_BT = jnp.zeros_like(rows["values_BT"])
    returns_BT, metrics = credit.targets(
        rewards.per_token(rewards_B, mask_BT, zeros_BT, 0.0),
        rows["values_BT"],
        mask_BT,
        gamma=run.config.advantage.gamma,
        lam=1.0,
    )
    return dict(
        rewards_B=rewards_B,
        returns_BT=returns_BT,
        advantages_BT=zeros_BT,
        metrics=metrics,
    )

  return jax.jit(fn)


def _assign(run: Run):
  """jit: `facts` and more -> what `credit.assign` returns."""
  c = run.config
  correction = None
  if c.loss.correction != "none":
    correction = functools.partial(
        getattr(corrections, c.loss.correction),
        **config_lib.keywords(c, "loss.correction"),
    )
  mixture = None
  if c.critic.mix:
    names = ("mix", "mix_decay", "mix_reliability")
    mixture = {name: c.critic[name] for name in names}
  advantage = getattr(advantages, c.advantage.name)

  def fn(rows):
    return credit.assign(
        rows | dict(rewards_B=_outcome(run, rows)),
        advantage=functools.partial(
            advantage, **config_lib.keywords(c, "advantage.name")
        ),
        needs=config_lib.needs(c),
        groups=c.advantage.groups,
        whitened=c.advantage.whiten,
        gamma=c.advantage.gamma,
        critic_lam=c.critic.lam,
        fallback=c.critic.fallback,
        mixture=mixture,
        kl="none" if config_lib.on_policy(c) else c.kl.kind,
        kl_in_reward=c.kl.place == "reward",
        top_entropy=c.loss.top_entropy,
        correction=correction,
    )

  return jax.jit(fn)


def _begin(run: Run, held: Experience, ids_N):
  """A round's responses so far, and which have ended: those of empty places."""
  r, group = held.rollouts, run.config.rollout.group_size
  blank = no_rows(run, len(ids_N) * group).rollouts
  begun: Rollouts = jax.tree.map(
      lambda some, none: np.concatenate([some, none[len(some) :]]), r, blank
  )
  begun = begun.replace(
      ids_B=np.repeat(ids_N, group).astype(np.int32),
      truncated_B=np.where(begun.lengths_B > 0, begun.truncated_B, True),
  )
  at_limit_B = begun.lengths_B == run.config.rollout.max_tokens
  return begun, ~begun.truncated_B | at_limit_B | (begun.ids_B < 0)


def no_rows(run: Run, rows: int | None = None) -> Experience:
  """Nothing but padding, by default a batch of it."""
  c = run.config
  rows, length = c.rollout.batch if rows is None else rows, c.rollout.max_tokens
  zeros_BT = np.zeros((rows, length), np.float32)
  zeros_B = np.zeros(rows, np.int32)
  return Experience(
      rollouts=Rollouts(
          tokens_BL=np.zeros((rows, c.rollout.max_prompt + length), np.int32),
          start_B=zeros_B,
          ids_B=zeros_B - 1,
          mask_BT=zeros_BT > 0,
          logps_BT=zeros_BT,
          lengths_B=zeros_B,
          truncated_B=zeros_B > 0,
      ),
      correct_B=zeros_B.astype(np.float32),
      scores_NB=tuple(zeros_B.astype(np.float32) for _ in terms(run)),
      old_logps_BT=zeros_BT,
      known_B=zeros_B,
      age_B=zeros_B - 1,
      types_B=zeros_B,
      problems_B=zeros_B - 1,
  )


def as_past(rows: Experience, rewards_B) -> Past:
  """A batch as memory; rows that are padding stay empty places."""
  r = rows.rollouts
  return Past(
      tokens_HL=r.tokens_BL,
      start_H=r.start_B,
      mask_HT=r.mask_BT,
      logps_HT=np.where(r.mask_BT, rows.old_logps_BT, 0),
      rewards_H=rewards_B,
      problems_H=np.where(rows.age_B >= 0, rows.problems_B, -1),
  )


def no_past(run: Run) -> Past:
  """A memory without responses."""
  rows = no_rows(run)
  one = as_past(rows, rows.correct_B)
  steps = run.config.advantage.history
  return jax.tree.map(lambda x: np.concatenate([x] * steps), one)


def remember(past: Past, rows: Experience, rewards_B) -> Past:
  """The memory with a batch more; the oldest batch is forgotten."""
  new = as_past(rows, rewards_B)
  return jax.tree.map(
      lambda old, x: np.concatenate([old[len(x) :], x]), past, new
  )


def batch(run: Run, rows: Experience, assigned: dict, **more) -> Batch:
  """What the update reads, rows in the order of `rows`, on the host.

  Args:
    run: everything that the stages share.
    rows: with the old log-probs.
    assigned: what `Maker.assign` returned.
    **more: ref_logps_BT, values_BT; zeros where there is none.
  """
  c = run.config
  mask_BT = rows.rollouts.mask_BT
  if c.loss.mask_truncated:
    mask_BT = mask_BT & ~rows.rollouts.truncated_B[:, None]
  zeros_BT = np.zeros_like(rows.old_logps_BT)
  updates = c.updates.minibatches * c.updates.epochs
  return Batch(
      groups_B=rows.rollouts.ids_B,
      mask_BT=mask_BT,
      advantages_BT=assigned["advantages_BT"] * mask_BT,
      old_logps_BT=rows.old_logps_BT,
      right_B=rows.correct_B,
      age_B=np.where(rows.age_B < 0, -1, rows.age_B * updates).astype(np.int32),
      returns_BT=assigned["returns_BT"],
      **dict(ref_logps_BT=zeros_BT, values_BT=zeros_BT) | more,
  )


def deal(groups: list[np.ndarray], hands: int) -> np.ndarray:
  """Row numbers, groups dealt out like cards to so many hands.

  Padding, which comes last, is then shared evenly by the minibatches.
  """
  return np.concatenate([g for h in range(hands) for g in groups[h::hands]])


def layout(
    run: Run,
    tokens_BL: Array,
    start_B: Array,
    mask_BT: Array,
    groups: list[np.ndarray],
    at: int = 0,
) -> Layout:
  """Cuts and packs rows, shuffled by group after epoch one.

  Minibatches hold whole groups if all are of one size.

  Args:
    run: everything that the stages share.
    tokens_BL: prompts and responses of a batch.
    start_B: first slots that hold a token.
    mask_BT: bool, response tokens.
    groups: row numbers of each.
    at: RL step, which decides the shuffling.
  """
  u = run.config.updates
  orders = [deal(groups, u.minibatches)]
  for epoch in range(1, u.epochs):
    rng = np.random.default_rng((run.seed("epochs"), at, epoch))
    shuffled = [groups[i] for i in rng.permutation(len(groups))]
    orders.append(deal(shuffled, u.minibatches))
  order_MB = np.concatenate(orders).reshape(u.minibatches * u.epochs, -1)
  count = run.packed_rows
  packed = [
      packing.pack(tokens_BL[b], start_B[b], mask_BT[b], count)
      for b in order_MB
  ]
  return Layout(order_MB, jax.tree.map(lambda *x: np.stack(x), *packed))


def minibatches(run: Run, batch: Batch, cut: Layout) -> tuple[Batch, Packed]:
  """What an update reads, [M, ...], on the mesh."""
  rows = jax.tree.map(lambda x: x[cut.order_MB], batch)
  return run.put(rows, None, "batch"), run.put_packed(cut.packed_M)


def passes(run: Run) -> int:
  """Forward passes over the batch in an RL step; a backward one counts two."""
  c = run.config
  learning = 3 * c.updates.epochs
  # A base that is fixed takes no gradients of its weights.
  policy = 2 * c.updates.epochs if c.lora.rank else learning
  count = policy + (not config_lib.on_policy(c)) + (c.kl.kind != "none")
  if config_lib.has_critic(c):
    count += 1 + learning + (c.critic.mix > 0)
  return count + config_lib.has_history(c) * c.advantage.history


def flops(
    run: Run, rows: Experience, generated: int, drawn: int, passes: int
) -> float:
  """Operations of a step, real tokens only; analytic.

  Args:
    run: everything that the stages share.
    rows: of the batch.
    generated: tokens sampled, also of groups that were thrown away.
    drawn: responses sampled, also those.
    passes: forward passes over the batch.
  """
  c, r = run.config, rows.rollouts
  slots = c.rollout.max_prompt
  length_B = slots - r.start_B + r.lengths_B
  trained = int(length_B[rows.age_B >= 0].sum())
  prompts = drawn * slots // c.rollout.group_size
  context = (slots + c.rollout.max_tokens) / 2
  each = parameters.flops_per_token(decoder.table(run.cfg), context)
  return each * (generated + prompts + passes * trained)
