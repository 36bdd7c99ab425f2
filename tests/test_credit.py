"""From verdicts to advantages, by hand; and where the rows come from."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest
import test_config
import test_golden_step as golden
import tiny

from rl_reason import checks, config
from rl_reason.algorithms import advantages, corrections, credit
from rl_reason.checkpointing import checkpoint
from rl_reason.rollout import sampler
from rl_reason.scale import sharding
from rl_reason.structs import Experience, Rollouts, RunError
from rl_reason.tasks import arithmetic
from rl_reason.training import dynamic_sampling, experience, rl
from rl_reason.training.session import Stopped

F = np.float32
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)

# --- rewards -----------------------------------------------------------------


def outcome(correct, lengths, cut=None, groups=None, **keywords):
  count = len(correct)
  return credit.outcome(
      np.array(correct, F),
      np.array(lengths),
      np.zeros(count, bool) if cut is None else np.array(cut),
      np.zeros(count, int) if groups is None else np.array(groups),
      max_tokens=10,
      **keywords,
  )


def test_verdicts_and_the_soft_punishment():
  """6 of 10 tokens are free, then a quarter each; half of that is taken."""
  close(
      outcome(
          [1, 0, 1, 0, 1],
          [8, 10, 9, 4, 6],
          overlong_buffer=4,
          overlong_coef=0.5,
      ),
      [1 - 0.25, -1 - 0.5, 1 - 0.375, -1, 1],
  )
  close(outcome([1, 0], [10, 10], right=2.0, wrong=0.5), [2, 0.5])
  assert outcome([1, 0], [10, 10]).dtype == F


def test_a_length_penalty_that_good_answers_pay_less_of():
  """log2(1 + 10 / 10) = 1 where right, (5 / 10)^2 where wrong."""
  close(
      outcome(
          [1, 0],
          [10, 5],
          length_coef=0.1,
          length_decay=2.0,
          length_threshold=0.5,
      ),
      [1 - 0.1 * np.exp(-2 * 0.5), -1 - 0.1 * 0.25],
  )


def test_truncated_responses_are_worth_what_finished_ones_are():
  """Of each group, the punishment for length included."""
  args = [1, 0, 0, 0, 0], [10, 4, 10, 10, 10]
  cut, groups = [False, False, True, True, True], [3, 3, 3, 3, 8]
  close(outcome(*args, cut, groups), [1, -1, -1, -1, -1])
  close(
      outcome(*args, cut, groups, truncated="bootstrap", overlong_buffer=5),
      [0, -1, -0.5, -0.5, 0],
  )


# --- advantages and targets --------------------------------------------------

# Two groups of two; 3, 2, 1 and 3 tokens.
MASK_BT = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], bool)
REWARDS_B = np.array([1, -1, 0, 2], F)


def known(**more):
  """Arrays by the names of `credit`'s table."""
  rng = np.random.default_rng(0)
  noise = functools.partial(rng.normal, size=(4, 3))
  return dict(
      rewards_B=REWARDS_B,
      groups_B=np.array([4, 4, 6, 6]),
      age_B=np.zeros(4, np.int32),
      types_B=np.array([2, 2, 2, 3]),
      problems_B=np.array([9, 9, 8, 8]),
      lengths_B=MASK_BT.sum(1),
      mask_BT=MASK_BT,
      logps_BT=np.where(MASK_BT, -1 + 0.3 * noise(), 0).astype(F),
      ref_logps_BT=np.zeros((4, 3), F),
      sampler_logps_BT=np.where(MASK_BT, -1 + 0.3 * noise(), 0).astype(F),
      entropy_BT=rng.uniform(size=(4, 3)).astype(F),
      values_BT=noise().astype(F),
      pretrained_BT=noise().astype(F),
      progress=F(0.5),
      kl_coef=F(0.1),
      past_rewards_H=np.array([1, 0, 0.5], F),
      past_problems_H=np.array([9, 8, -1]),
      past_weights_H=np.array([1, 0.5, 0], F),
  ) | {k: np.asarray(x) for k, x in more.items()}


def assign(rows, name="group_mean", options=(), **keywords):
  """`credit.assign` with an advantage function by its name."""
  return jax.device_get(
      credit.assign(
          rows,
          advantage=functools.partial(
              getattr(advantages, name), **dict(options)
          ),
          needs=config.signatures("advantages")[name].arrays,
          **keywords,
      )
  )


def test_one_number_of_a_response_goes_to_all_of_its_tokens():
  got = assign(known())
  close(got["advantages_BT"], [[1, 1, 1], [-1, -1, 0], [-1, 0, 0], [1, 1, 1]])
  close(got["rewards_B"], REWARDS_B)
  assert not got["returns_BT"].any() and not got["metrics"]


@pytest.mark.parametrize(
    "groups, wanted",
    [
        ("prompt", [1, -1, -1, 1]),
        ("type", [1, -1, 0, 0]),  # 1, -1, 0 | 2, which is alone
        ("batch", [0.5, -1.5, -0.5, 1.5]),
    ],
)
def test_what_is_compared(groups, wanted):
  got = assign(known(), groups=groups)
  close(got["advantages_BT"][:, 0], wanted)


def test_an_advantage_of_each_token():
  """Returns to go with a discount: 1, then 1/2, then 1/4."""
  got = assign(known(), "returns_to_go", {"gamma": 0.5})
  close(
      got["advantages_BT"],
      [[0.25, 0.5, 1], [-0.5, -1, 0], [0, 0, 0], [0.5, 1, 2]],
  )


def test_a_kl_in_the_reward():
  """Every token pays a tenth of log p - log p_ref; the outcome comes last.

  Row 0: d = 1, 2, 3: rewards -.1, -.2, 1 - .3. Row 1: d = -1, 0.
  """
  ref_BT = np.zeros((4, 3), F)
  logps_BT = np.array([[1, 2, 3], [-1, 0, 9], [0, 9, 9], [0, 0, 0]], F)
  rows = known(
      logps_BT=np.where(MASK_BT, logps_BT, 0),
      ref_logps_BT=np.where(MASK_BT, ref_BT, np.nan),
  )
  got = assign(rows, "returns_to_go", kl="k1", kl_in_reward=True)
  close(got["rewards_B"], [0.4, -0.9, 0, 2])
  close(
      got["advantages_BT"],
      [[0.4, 0.5, 0.7], [-0.9, -1, 0], [0, 0, 0], [2, 2, 2]],
  )
  close(got["metrics"]["kl/reference"], 5 / 9)
  # Groups see it too: .4 and -.9 have the mean -.25.
  got = assign(rows, kl="k1", kl_in_reward=True)
  close(got["advantages_BT"][:2, 0], [0.65, -0.65])
  # As a loss it is measured here, and taken elsewhere.
  got = assign(rows, kl="k2")
  close(got["rewards_B"], REWARDS_B)
  close(got["metrics"]["kl/reference"], (0.5 + 2 + 4.5 + 0.5) / 9)


def test_whitening_over_tokens():
  """1.5 once and -.5 three times: their unbiased variance is 1."""
  rows = known(
      rewards_B=np.array([1, -1, 3, 3], F),
      mask_BT=MASK_BT[[2, 0, 3, 3]],  # 1, 3, 3 and 3 tokens
      age_B=[0, 0, -1, -1],
  )
  got = assign(rows, whitened=True)
  close(got["advantages_BT"][:2], [[1.5, 0, 0], [-0.5, -0.5, -0.5]])
  assert not got["advantages_BT"][2:].any()


def test_targets_have_a_lambda_of_their_own():
  """Values .5 everywhere, row 0: deltas 0, 0, .5.

  GAE at 1/2: 1/8, 1/4, 1/2. Targets at 1: the return; at 0: V + delta.
  """
  rows = known(values_BT=np.full((4, 3), 0.5, F))
  some = {"lam": 0.5}
  got = assign(rows, "gae", some, critic_lam=1.0)
  close(got["advantages_BT"][0], [0.125, 0.25, 0.5])
  close(got["returns_BT"][0], [1, 1, 1])
  got = assign(rows, "gae", some, critic_lam=0.0)
  close(got["advantages_BT"][0], [0.125, 0.25, 0.5])
  close(got["returns_BT"][0], [0.5, 0.5, 1])
  close(got["metrics"]["critic/values/mean"], 0.5)
  got = assign(rows, "gae", some | {"gamma": 0.5}, gamma=0.5)
  close(got["returns_BT"][0], [0.25, 0.5, 1])


def per_token(rewards_B):
  return np.where(MASK_BT, np.array(rewards_B, F)[:, None], 0)


@pytest.mark.parametrize(
    "values_B, explained",
    [
        (REWARDS_B, 1.0),
        (REWARDS_B + 5, 1.0),  # wrong by a constant: still informed
        (0.5 * REWARDS_B, 0.75),
        (np.full(4, 0.3, F), 0.0),
        (-REWARDS_B, -3.0),
    ],
)
def test_a_critic_that_explains_nothing_is_not_asked(values_B, explained):
  """EVPO: then the mean of the batch, 1/2, is the baseline."""
  rows = known(values_BT=per_token(values_B))
  got = assign(rows, "gae", {"lam": 1.0}, fallback=True)
  close(got["metrics"]["critic/vf_explained_var"], explained, atol=1e-5)
  assert got["metrics"]["critic/fallback"] == (explained <= 0)
  baseline_B = values_B if explained > 0 else 0.5
  close(got["advantages_BT"], per_token(REWARDS_B - baseline_B))
  asked = assign(rows, "gae", {"lam": 1.0})
  close(asked["advantages_BT"], per_token(REWARDS_B - values_B))
  # The critic learns all the same.
  close(got["returns_BT"][MASK_BT], per_token(REWARDS_B)[MASK_BT])


def test_a_mixture_of_the_pretrained_and_the_learning_critic():
  """w = 1/2 exp(-1/2) / (1 + 2 * 3/4); only the policy sees it."""
  rows = known(
      values_BT=per_token(0.5 * REWARDS_B),
      pretrained_BT=per_token([7, 7, 7, 7]),
  )
  mixture = dict(mix=0.5, mix_decay=1.0, mix_reliability=2.0)
  got = assign(rows, "gae", {"lam": 1.0}, critic_lam=0.0, mixture=mixture)
  w = 0.5 * np.exp(-0.5) / 2.5
  value_B = w * 7 + (1 - w) * 0.5 * REWARDS_B
  close(got["advantages_BT"], per_token(REWARDS_B - value_B))
  alone = assign(rows, "gae", {"lam": 1.0}, critic_lam=0.0)
  close(got["returns_BT"], alone["returns_BT"])


def test_only_the_most_undecided_tokens_learn():
  """A third of nine tokens; where the mask is 0 nothing is undecided."""
  entropy_BT = np.array(
      [[0.1, 0.9, 0.2], [0.3, 0.8, 9], [0.7, 9, 9], [0, 0, 0]]
  )
  got = assign(known(entropy_BT=entropy_BT.astype(F)), top_entropy=1 / 3)
  close(got["advantages_BT"], [[0, 1, 0], [0, -1, 0], [-1, 0, 0], [0, 0, 0]])


def test_a_correction_for_the_sampler():
  """Ratios 1/2, 4 (cut at 2) and 1; 0 where there is no token."""
  ratio_BT = np.ones((4, 3))
  ratio_BT[0] = [0.5, 4, 1]
  rows = known(logps_BT=np.log(np.where(MASK_BT, ratio_BT, 1)).astype(F))
  rows["sampler_logps_BT"] = np.zeros((4, 3), F)
  correction = functools.partial(corrections.truncate, correction_high=2.0)
  got = assign(rows, correction=correction)
  close(got["advantages_BT"][:2], [[0.5, 2, 1], [-1, -1, 0]])
  close(got["metrics"]["rollout/correction_mean"], (0.5 + 2 + 7) / 9)


@pytest.mark.parametrize(
    "name, groups",
    [
        *((name, "prompt") for name in config.signatures("advantages")),
        ("group_norm", "type"),
        ("group_norm", "batch"),
    ],
)
def test_padding_rows_change_nothing_for_the_others(name, groups):
  """Whatever the padding was copied from, and wherever it is."""
  keywords = dict(
      groups=groups,
      whitened=True,
      top_entropy=0.7,
      kl="k1",
      kl_in_reward=True,
      correction=corrections.truncate,
  )
  if "values_BT" in config.signatures("advantages")[name].arrays:
    keywords["fallback"] = True
  rows, order = known(), [5, 0, 1, 4, 2, 3]
  padded = {}
  for field, x in rows.items():
    if field.endswith(("_B", "_BT")):  # two copies of row 0 as padding
      x = np.concatenate([x, x[:1], x[:1]])[order]
    padded[field] = x
  padded["age_B"] = np.where(np.array(order) > 3, -1, 0)
  padded["mask_BT"] = padded["mask_BT"] & (padded["age_B"] >= 0)[:, None]
  padded["groups_B"] = np.where(
      padded["age_B"] < 0, [-1, 0, 0, -2, 0, 0], padded["groups_B"]
  )
  wanted, got = assign(rows, name, **keywords), assign(padded, name, **keywords)
  back = np.argsort(order)
  for field in ("rewards_B", "advantages_BT", "returns_BT"):
    close(got[field][back][:4], wanted[field], err_msg=field)
  assert wanted["advantages_BT"].any()
  assert not got["advantages_BT"][back][4:].any()
  for field, x in wanted["metrics"].items():
    close(got["metrics"][field], x, err_msg=field)


# --- earlier responses -------------------------------------------------------


def make_run(tmp_path, **changes):
  """A tiny run on one device, its config changed field by field."""
  c = test_config.tiny()
  for name, x in changes.items():
    test_config.set_field(c, name.replace("__", "."), x)
  checks.fields(c)
  run = test_config.make_run(c, tmp_path)
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  return dataclasses.replace(run, mesh=mesh)


def interrupted(run, stop_at=None, die_at=None):
  """A run to which SIGTERM or SIGKILL comes after so many of its steps."""
  calls = 0

  def check_stop():
    nonlocal calls
    if calls == stop_at:
      raise Stopped
    if calls == die_at:
      raise KeyboardInterrupt
    calls += 1

  run.check_stop = check_stop
  return run


def some_rows(run, mark, problems):
  """A batch whose every number tells which one it is; half is padding."""
  rows = experience.no_rows(run)
  count = len(rows.age_B)
  real_B = np.arange(count) < count // 2
  mask_BT = np.zeros_like(rows.rollouts.mask_BT)
  mask_BT[real_B, :2] = True
  return rows.replace(
      rollouts=rows.rollouts.replace(
          tokens_BL=np.full_like(rows.rollouts.tokens_BL, 2 + mark),
          mask_BT=mask_BT,
      ),
      old_logps_BT=np.full_like(rows.old_logps_BT, -mark),
      age_B=np.where(real_B, 0, -1).astype(np.int32),
      problems_B=np.resize(problems, count).astype(np.int32),
  )


def test_the_newest_batches_are_remembered(tmp_path):
  """Of three, the last two, oldest first; a checkpoint keeps the order."""
  run = make_run(tmp_path, advantage__name="temporal", advantage__history=2)
  past = experience.no_past(run)
  assert past.rewards_H.shape == (64,) and not past.mask_HT.any()
  for mark in (1, 2, 3):
    rows = some_rows(run, mark, problems=[5, 6])
    past = experience.remember(past, rows, np.full(32, mark, F))
  assert past.rewards_H.tolist() == [2.0] * 32 + [3.0] * 32
  assert past.tokens_HL[[0, 63], 0].tolist() == [4, 5]
  assert past.logps_HT[0].tolist()[:3] == [-2, -2, 0]
  assert past.problems_H.tolist() == ([5, 6] * 8 + [-1] * 16) * 2
  assert past.mask_HT.any(1).tolist() == ([True] * 16 + [False] * 16) * 2

  with jax.set_mesh(run.mesh):
    saved = checkpoint.Checkpoints(tmp_path / "c")
    everything = rl._everything(run, run.put(F(0)), None, None, past, None)
    saved.save(3, everything, {})
    saved.wait()
    back = sharding.fetch(saved.restore(3, everything)["past"])
    saved.close()
  jax.tree.map(np.testing.assert_array_equal, back, past)


def test_an_empty_place_weighs_nothing(tmp_path, monkeypatch):
  """And an old response min(pi / pi_then, 2) of all of its two tokens."""
  run = make_run(tmp_path, advantage__name="temporal", advantage__history=2)
  with jax.set_mesh(run.mesh):
    maker = experience.Maker(run, "test")
    past = experience.remember(
        experience.no_past(run), some_rows(run, 3, [5, 6]), np.ones(32, F)
    )
    # pi_then is exp(-3) a token; pi now exp(-3.25), then exp(-2).
    for now, wanted in ((-3.25, np.exp(-0.5)), (-2.0, 2.0)):
      monkeypatch.setattr(
          maker, "logps", lambda *_, x=now: (np.full((32, 48), x, F), None)
      )
      got = maker.past(None, past)
      close(got["past_weights_H"], [0] * 32 + [wanted] * 16 + [0] * 16)
    assert maker.past(None, None) == {}
  # Problem 5 was right in the past; a wrong response now is below that.
  now = known(problems_B=[5, 5, 6, 7], rewards_B=np.array([-1, 1, -1, 1], F))
  got = assign(now | got, "temporal")
  weight = 8 * 2.0  # eight responses to 5, and one other of now
  close(
      got["advantages_BT"][:, 0],
      [
          -1 - (weight + 1) / (weight + 1),
          1 - (weight - 1) / (weight + 1),
          -2,
          0,
      ],
  )


@pytest.mark.slow
def test_a_run_with_a_history_goes_on_with_the_same_bits(tmp_path, monkeypatch):
  monkeypatch.setattr(arithmetic, "verify", lambda text, row: len(text) % 2)
  seen = []
  for stops in ((3,), (1, 2, 3)):
    workdir = tmp_path / str(len(stops))
    workdir.mkdir()
    for steps in stops:
      run = make_run(
          workdir,
          advantage__name="temporal",
          rl__steps=steps,
          task__difficulties=(2,),
      )
      with jax.set_mesh(run.mesh):
        params = rl.run(run, test_config.run_params(run))
      run.log.close()
    seen.append(test_config.digest(params))
  assert seen[0] == seen[1]


# --- groups of unequal sizes -------------------------------------------------


def test_a_sample_does_not_depend_on_the_sizes_of_groups():
  """Sample s of prompt n has the same tokens among 2 as among 6."""
  prompts, sizes_N = tiny.prompts(4), np.array([2, 6, 3, 5])
  params = golden.quick_jit(tiny.params)()

  def sample(group_size, *sizes_N):
    draw = functools.partial(
        sampler.sample, group_size=group_size, max_tokens=12, **tiny.SAMPLER
    )
    args = params, prompts, jax.random.key(3), np.float32(0.8), *sizes_N
    return jax.device_get(draw(*args))

  some, equal = sample(4, sizes_N), sample(6)
  rows = np.concatenate([6 * n + np.arange(s) for n, s in enumerate(sizes_N)])
  np.testing.assert_array_equal(some.tokens_BL, equal.tokens_BL[rows])
  np.testing.assert_array_equal(some.ids_B, np.repeat(np.arange(4), sizes_N))
  np.testing.assert_array_equal(some.start_B, equal.start_B[rows])
  np.testing.assert_array_equal(some.lengths_B, equal.lengths_B[rows])
  close(some.logps_BT, equal.logps_BT[rows], atol=1e-4)
  assert len({row.tobytes() for row in some.tokens_BL}) > 8


# --- where rows come from ----------------------------------------------------


def instant_sampler(run):
  """In place of the model: '#', the sample's number, EOS."""
  tok, c = run.tok, run.config.rollout
  mark, zero = tok.convert_tokens_to_ids(["#", "0"])

  def stream(params, prompts, key, heat, sizes_N, *, group_size, **_):
    del params, key, heat
    count = len(prompts.ids_N)
    sizes_N = (
        np.full(count, group_size) if sizes_N is None else np.asarray(sizes_N)
    )
    which_B = np.repeat(np.arange(count), sizes_N)
    sample_B = np.concatenate([np.arange(n) for n in sizes_N])
    rows = len(which_B)
    tokens_BT = np.full((rows, c.max_tokens), tok.pad_token_id, np.int32)
    tokens_BT[:, 0], tokens_BT[:, 1] = mark, zero + sample_B
    tokens_BT[:, 2] = tok.eos_token_id
    tokens_BP = np.asarray(prompts.tokens_NP)[which_B]
    rollouts = Rollouts(
        tokens_BL=np.concatenate([tokens_BP, tokens_BT], 1),
        start_B=np.asarray(prompts.start_N)[which_B],
        ids_B=np.asarray(prompts.ids_N)[which_B],
        mask_BT=np.tile(np.arange(c.max_tokens) < 3, (rows, 1)),
        logps_BT=np.zeros((rows, c.max_tokens), F),
        lengths_B=np.full(rows, 3, np.int32),
        truncated_B=np.zeros(rows, bool),
    )
    yield rollouts, np.ones(rows, bool)

  run.stream = stream


def prompts_of(maker, rows):
  first = [g[0] for g in dynamic_sampling.groups(rows.rollouts.ids_B)]
  return [maker.problems[i][1].prompt for i in rows.rollouts.ids_B[first]]


@pytest.mark.parametrize("after", [1, 2])
def test_prompts_retire_when_they_are_all_right(tmp_path, monkeypatch, after):
  """Each is drawn so often and no more; then the run says what to do."""
  monkeypatch.setattr(arithmetic, "verify", lambda text, row: True)
  monkeypatch.setattr(experience, "PATIENCE", 5000)
  run = make_run(tmp_path, rollout__retire_after=after, task__difficulties=(2,))
  instant_sampler(run)
  with jax.set_mesh(run.mesh):
    maker = experience.Maker(run, "test")
    rounds = []
    with pytest.raises(RunError, match=f"retire_after = {after}: 5001 prompts"):
      while True:
        rounds.append(prompts_of(maker, maker.generate(None)))
  counts, last = {}, {}
  for at, prompts in enumerate(rounds):
    for prompt in prompts:  # twice in one round: nobody knew yet
      assert counts.get(prompt, 0) < after or last[prompt] == at
      counts[prompt], last[prompt] = counts.get(prompt, 0) + 1, at
  everything = {
      arithmetic.problem(np.random.default_rng(n), 2).prompt
      for n in range(4000)
  }
  trained = {p for p in everything if not experience.tasks.held_out(p)}
  assert len(trained) > 90 and counts.keys() <= trained
  assert len(counts) > len(trained) - 8, "all but those of an unfinished round"


def test_a_wrong_answer_ends_a_streak(tmp_path, monkeypatch):
  """Right, wrong, right is no streak of two."""
  run = make_run(tmp_path, rollout__retire_after=2, task__difficulties=(2,))
  instant_sampler(run)
  with jax.set_mesh(run.mesh):
    maker = experience.Maker(run, "test")
    monkeypatch.setattr(
        maker, "_draw", lambda count: ([0], [maker.problems[0][1]])
    )
    streaks = []
    for right in (True, False, True, True):
      monkeypatch.setattr(arithmetic, "verify", lambda *_, x=right: x)
      maker.generate(None)
      streaks.append(list(maker.get_state()["streaks"].values()))
  assert streaks == [[1], [], [1], [2]]


@pytest.mark.parametrize("sizes", ["equal", "length", "variance"])
def test_a_maker_goes_on_where_another_stopped(tmp_path, monkeypatch, sizes):
  """To the row: same prompts, groups and ids, though some are retired."""

  def verify(text, row):
    return row.difficulty == 2 or int(text[1]) % row.difficulty == 0

  monkeypatch.setattr(arithmetic, "verify", verify)
  run = make_run(tmp_path, rollout__retire_after=1, rollout__sizes=sizes)
  instant_sampler(run)
  with jax.set_mesh(run.mesh):
    maker = experience.Maker(run, "test")
    for _ in range(3):
      maker.generate(None)
    state = json.loads(json.dumps(maker.get_state()))
    wanted = [maker.generate(None) for _ in range(2)]
    other = experience.Maker(run, "test")
    other.set_state(state)
    got = [other.generate(None) for _ in range(2)]
    fresh = experience.Maker(run, "test").generate(None)
  jax.tree.map(np.testing.assert_array_equal, got, wanted)
  assert maker.get_state() == other.get_state()
  assert state["streaks"] and set(fresh.rollouts.ids_B) != set(
      got[0].rollouts.ids_B
  )
  for rows in wanted:
    assert len(rows.age_B) == 32
  groups = dynamic_sampling.groups(wanted[-1].rollouts.ids_B)
  assert (len({len(g) for g in groups}) > 1) == (sizes == "variance")


def test_sizes_follow_what_a_type_took_so_far(tmp_path):
  """16 rows for two prompts.

  Lengths 4 and 8: as 2 : 1. Accuracies 1/2 and 1 need .26 and .01: the least.
  """
  wanted = {"equal": [8, 8], "length": [11, 5], "variance": [14, 2]}
  rows = [experience.tasks.Row("", "", level) for level in (2, 3)]
  for sizes, count in wanted.items():
    run = make_run(
        tmp_path,
        rollout__sizes=sizes,
        rollout__batch=16,
        rollout__group_size=8,
    )
    with jax.set_mesh(run.mesh):
      maker = experience.Maker(run, "test")
      state = maker.get_state()
      maker.set_state(state | dict(seen={"2": [0.5, 4.0], "3": [1.0, 8.0]}))
      assert maker._sizes(rows).tolist() == count, sizes


def test_a_type_is_remembered_with_a_tenth_of_the_new(tmp_path, monkeypatch):
  monkeypatch.setattr(arithmetic, "verify", lambda text, row: text[1] == "0")
  run = make_run(tmp_path, task__difficulties=(2,), rollout__batch=4)
  instant_sampler(run)
  with jax.set_mesh(run.mesh):
    maker = experience.Maker(run, "test")
    maker.generate(None)
    assert maker.get_state()["seen"] == {"2": [0.25, 3.0]}, "at first, all"
    maker.set_state(maker.get_state() | dict(seen={"2": [0.75, 13.0]}))
    maker.generate(None)
  accuracy, length = maker.get_state()["seen"]["2"]
  close([accuracy, length], [0.9 * 0.75 + 0.1 * 0.25, 0.9 * 13 + 0.1 * 3])


def test_shuffled_verdicts_are_the_same_verdicts(tmp_path, monkeypatch):
  """A control: as many are right, and not those that were."""
  monkeypatch.setattr(arithmetic, "verify", lambda text, row: text[1] == "0")
  verdicts = []
  for shuffle in (False, True, True):
    run = make_run(tmp_path, reward__shuffle=shuffle)
    instant_sampler(run)
    with jax.set_mesh(run.mesh):
      rows: Experience = experience.Maker(run, "test").generate(None)
    verdicts.append(rows.correct_B.tolist())
  honest, mixed, again = verdicts
  assert honest == [1, 0, 0, 0] * 8
  assert sum(mixed) == 8 and mixed != honest and mixed == again
