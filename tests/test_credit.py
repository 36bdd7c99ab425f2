"""From verdicts to advantages, by hand."""

import functools
import inspect
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_session
from advantage_inputs import function

from rl_reason.algorithms import credit, reductions, variants
from rl_reason.checks import config_facts
from rl_reason.devices import device_mesh
from rl_reason.monitoring import display
from rl_reason.stages import build_step, finished_baseline
from rl_reason.training import step

F = np.float32
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)

# --- rewards -----------------------------------------------------------------


def outcome(grades, lengths, cut=None, groups=None, **keywords):
  count = len(grades)
  rows = dict(
      correct_B=np.array(grades, F),
      lengths_B=np.array(lengths),
      truncated_B=np.zeros(count, bool) if cut is None else np.array(cut),
      groups_B=np.zeros(count, int) if groups is None else np.array(groups),
      scores_EB=(np.arange(count, dtype=F),),
      progress=F(0.5),
  )
  return credit.outcome(rows, max_tokens=10, **keywords)


def test_scores_are_added_with_weights_that_move():
  """Scores 0, 1, 2 times (1 + 0) / 2 at half of the run."""
  got = outcome([1, 0, 1], [1, 1, 1], term_weights=((1.0, 0.0),))
  close(got, [1, -0.5, 2])


def test_an_outcome_by_length():
  """A function of one's own: a correct response loses a tenth per token."""

  def falls(correct_B, lengths_B):
    return correct_B * (1 - lengths_B / 10)

  close(outcome([1, 1, 0], [5, 0, 10], outcome=falls), [0.5, 1, 0])


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
  close(outcome([1, 0], [10, 10], correct=2.0, incorrect=0.5), [2, 0.5])
  assert outcome([1, 0], [10, 10]).dtype == F


def test_a_length_penalty_that_good_answers_pay_less_of():
  """log2(1 + 10 / 10) = 1 if correct, (5 / 10)^2 if incorrect."""
  penalty = functools.partial(
      variants.logquad, coef=0.1, decay=2.0, threshold=0.5
  )
  close(
      outcome([1, 0], [10, 5], length_penalty=penalty),
      [1 - 0.1 * np.exp(-2 * 0.5), -1 - 0.1 * 0.25],
  )


def test_truncated_responses_are_worth_what_finished_ones_are():
  """Of each group, the punishment for length included."""
  args = [1, 0, 0, 0, 0], [10, 4, 10, 10, 10]
  cut, groups = [False, False, True, True, True], [3, 3, 3, 3, 8]
  close(outcome(*args, cut, groups), [1, -1, -1, -1, -1])
  close(
      outcome(*args, cut, groups, bootstrap=True, overlong_buffer=5),
      [0, -1, -0.5, -0.5, 0],
  )


# --- advantages and targets --------------------------------------------------

# Two groups of two; 3, 2, 1 and 3 tokens.
MASK_BT = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], bool)
REWARDS_B = np.array([1, -1, 0, 2], F)


def arrays(**changes):
  """Arrays by the names of `credit`'s table."""
  rng = np.random.default_rng(0)
  noise = functools.partial(rng.normal, size=(4, 3))
  return dict(
      rewards_B=REWARDS_B,
      groups_B=np.array([4, 4, 6, 6]),
      age_B=np.zeros(4, np.int32),
      types_B=np.array([0, 0, 0, 1]),
      problems_B=np.array([0, 0, 1, 1]),
      lengths_B=MASK_BT.sum(1),
      mask_BT=MASK_BT,
      logps_BT=np.where(MASK_BT, -1 + 0.3 * noise(), 0).astype(F),
      ref_logps_BT=np.zeros((4, 3), F),
      sampler_logps_BT=np.where(MASK_BT, -1 + 0.3 * noise(), 0).astype(F),
      entropy_BT=rng.uniform(size=(4, 3)).astype(F),
      values_BT=noise().astype(F),
      progress=F(0.5),
      kl_coef=F(0.1),
      past_rewards_H=np.array([1, 0, 0.5], F),
      past_problems_H=np.array([0, 1, -1]),
      past_weights_H=np.array([1, 0.5, 0], F),
  ) | {k: np.asarray(x) for k, x in changes.items()}


def assign(rows, name="group_mean", options=(), **keywords):
  """`credit.assign` with an advantage function by its name."""
  bound = functools.partial(function(name), **dict(options))
  if not asks_for(name, "values_BT"):  # there is no critic
    rows = {k: x for k, x in rows.items() if k != "values_BT"}
  return jax.device_get(credit.assign(rows, advantage=bound, **keywords))


def asks_for(name, array):
  return array in inspect.signature(function(name)).parameters


def test_one_number_of_a_response_goes_to_all_of_its_tokens():
  got = assign(arrays())
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
  got = assign(arrays(), groups=groups)
  close(got["advantages_BT"][:, 0], wanted)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "options", [{}, dict(groups="batch"), dict(whiten=True)]
)
def test_a_reward_that_is_not_finite_is_in_no_baseline(bad, options):
  """Of 1, bad | 0, 2 the first is alone in its group, and 1 is the mean."""
  given = np.array([1, bad, 0, 2], F)
  rows = arrays()
  advantage = function("group_mean")
  got = credit.rewards_and_advantages(
      rows,
      reward=lambda _: given,
      assign=functools.partial(
          credit.assign, advantage=advantage, critic_lam=1.0, **options
      ),
  )
  close(got["rewards_B"], [1, np.nan, 0, 2])
  values = np.asarray(got["advantages_BT"])
  if not options.get("whiten"):
    close(values, np.array([[0], [0], [-1], [1]]) * MASK_BT)
  assert np.isfinite(values).all() and not values[1].any()
  assert np.isfinite(np.asarray(got["returns_BT"])[[0, 2, 3]]).all()
  assert np.isfinite(got["metrics"]["critic/vf_explained_var"])
  # It leaves the loss, too.
  experience = types.SimpleNamespace(
      rollouts=types.SimpleNamespace(mask_BT=MASK_BT, ids_B=rows["groups_B"]),
      old_logps_BT=rows["logps_BT"],
      correct_B=given,
      age_B=rows["age_B"],
  )
  batch = step.train_batch(experience, jax.device_get(got))
  assert batch.mask_BT.tolist() == (MASK_BT * [[1], [0], [1], [1]]).tolist()


@pytest.mark.parametrize(
    "given", [[1, -1, 0, 2], [1, 5, 0, 2], [1, 9, np.nan, 2]]
)
def test_filtered_responses_may_leave_the_baseline(given):
  """The second response of two is truncated: its sibling is then alone."""
  truncated_B = np.array([False, True, False, False])
  given = np.array(given, F)

  def got(**options):
    return credit.rewards_and_advantages(
        arrays() | dict(truncated_B=truncated_B),
        reward=lambda _: given,
        assign=functools.partial(
            credit.assign, advantage=function("group_mean"), critic_lam=1.0
        ),
        **options,
    )

  with_it, without = got(), got(counts=finished_baseline.finished)
  assert with_it["advantages_BT"][0, 0] == (1 - given[1]) / 2
  assert without["advantages_BT"][0, 0] == 0
  assert not np.asarray(without["advantages_BT"][1]).any()
  close(without["rewards_B"], given)
  close(without["advantages_BT"][2:], with_it["advantages_BT"][2:])


def test_parts_of_the_reward():
  """The outcome of weight 1, and scores whose weights move; 0 where NaN."""
  rows = arrays() | dict(
      correct_B=np.array([1, -1, 0, 1], F),
      truncated_B=np.zeros(4, bool),
      scores_EB=(np.array([3, 4, np.nan, 0], F),),
      progress=F(0.5),
  )
  reward = functools.partial(
      credit.outcome, max_tokens=10, term_weights=((0.0, 0.5),)
  )
  parts = functools.partial(
      variants.reward_parts, reward=reward, weights={"steps": (0.0, 0.5)}
  )
  found = parts(rows)
  assert [*found] == ["outcome", "steps"]
  close(found["outcome"][0], [1, 0, -1, 1])
  assert found["outcome"][1] == 1 and found["steps"][1] == 0.25
  close(found["steps"][0], [3, 4, 0, 0])
  got = credit.rewards_and_advantages(
      rows,
      reward=reward,
      assign=functools.partial(credit.assign, advantage=function("gdpo")),
      parts=parts,
  )
  # Of the rows 0 and 3 each is alone in its group: 1 and 2 have no reward.
  close(got["rewards_B"], [1.75, np.nan, np.nan, 1])
  assert not np.asarray(got["advantages_BT"]).any()
  metrics = got["metrics"]
  assert metrics["reward/outcome/mean"] == 1
  assert metrics["reward/steps/mean"] == 1.5
  # With rewards 1 and -1 in a group, and 1 and 3 of the function.
  whole = rows | dict(
      correct_B=np.array([1, 0, 0, 0], F),
      scores_EB=(np.array([1, 3, 5, 5], F),),
  )
  got = credit.rewards_and_advantages(
      whole,
      reward=reward,
      assign=functools.partial(credit.assign, advantage=function("gdpo")),
      parts=parts,
  )
  want = np.array([[1], [-1], [0], [0]]) * 0.75 * np.sqrt(0.5) * MASK_BT
  close(got["advantages_BT"], want)
  assert got["metrics"]["reward/steps/advantage_share"] == pytest.approx(0.2)


def test_a_plain_sum_of_rewards_says_the_share_of_each():
  """At half of the run: verdicts 1 and -1, and .5 times 1 and 3, of group 0."""
  c = tiny_session.tiny_config()
  c.reward.functions = "steps*0..1"
  mesh = device_mesh.make_mesh(1, 1, 1, jax.devices()[:1])
  rows = arrays() | dict(
      correct_B=np.array([1, 0, 1, -1], F),
      truncated_B=np.zeros(4, bool),
      scores_EB=(np.array([1, 3, 5, 5], F),),
      progress=F(0.5),
  )

  assign = build_step.credit(
      c, build_step.reward(c), mesh, display.Display(False), on_policy=True
  )
  found = assign(rows)["metrics"]
  assert {k: x for k, x in found.items() if "reward/" in k} == pytest.approx(
      {
          "reward/steps/advantage_share": 1 / 3,
          "reward/outcome/advantage_share": 2 / 3,
          "reward/outcome/mean": 1 / 3,  # the fourth row has no reward
          "reward/outcome/std": np.sqrt(8 / 9),
      }
  )


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"advantage.name": "leave_one_out"}, "deviation"),
        ({"reward.functions": "length,steps"}, "deviation"),
        ({"reward.functions": "length,length*2"}, ""),
        ({"reward.functions": ""}, ""),
        ({"advantage.name": "gdpo"}, ""),  # has shares of its own
        ({"advantage.name": "gae"}, "linear"),
        ({"advantage.name": "gae", "environment.name": "calculator"}, ""),
        ({"advantage.name": "gae", "kl.place": "reward", "kl.kind": "k1"}, ""),
        ({"advantage.name": "rank"}, ""),
        ({"reward.process": "rewards"}, ""),
    ],
)
def test_which_sums_say_the_share_of_each_reward(changes, said):
  c = tiny_session.tiny_config()
  c.reward.functions = "length"
  for name, value in changes.items():
    tiny_session.set_field(c, name, value)
  assert config_facts.shares_advantage(c) == said


@pytest.mark.parametrize("bootstrap", [False, True])
def test_a_response_whose_verifier_failed_has_no_reward(bootstrap):
  """Nor is it part of the mean that a truncated one gets: here of 1 alone."""
  rows = dict(
      correct_B=np.array([1, -1, 0, 0], F),
      lengths_B=np.full(4, 2),
      truncated_B=np.array([False, False, True, False]),
      groups_B=np.array([5, 5, 5, 6]),
  )
  got = credit.outcome(rows, max_tokens=4, bootstrap=bootstrap)
  close(got, [1, np.nan, 1 if bootstrap else -1, -1])
  # A trajectory whose environment failed counts as truncated, too.
  rows["truncated_B"][1] = True
  got = credit.outcome(rows, max_tokens=4, bootstrap=bootstrap)
  close(got, [1, np.nan, 1 if bootstrap else -1, -1])


def test_an_advantage_of_each_token():
  """Returns to go with a discount: 1, then 1/2, then 1/4."""
  got = assign(arrays(), "returns_to_go", {"gamma": 0.5})
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
  rows = arrays(
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
  got = assign(rows, "returns_to_go", kl="k2")
  close(got["advantages_BT"][0], [1, 1, 1])


def test_whitening_over_tokens():
  """1.5 once and -.5 three times: their unbiased variance is 1."""
  rows = arrays(
      rewards_B=np.array([1, -1, 3, 3], F),
      mask_BT=MASK_BT[[2, 0, 3, 3]],  # 1, 3, 3 and 3 tokens
      age_B=[0, 0, -1, -1],
  )
  got = assign(rows, whiten=True)
  close(got["advantages_BT"][:2], [[1.5, 0, 0], [-0.5, -0.5, -0.5]])
  assert not got["advantages_BT"][2:].any()


def test_targets_have_a_lambda_of_their_own():
  """Values .5 everywhere, row 0: deltas 0, 0, .5.

  GAE at 1/2: 1/8, 1/4, 1/2. Targets at 1: the return; at 0: V + delta.
  """
  rows = arrays(values_BT=np.full((4, 3), 0.5, F))
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


def test_targets_may_have_a_lambda_for_each_token():
  """Deltas -1/4, 1/2, 1/4; A_t = delta_t + lambda_t A_{t+1}.

  Lambdas 1/2, 0: A = -1/4 + 1/4, 1/2, 1/4. Lambdas 0, 1: -1/4, 3/4, 1/4. The
  targets are V + A, and one lambda for all tokens is the same as the number.
  """
  rewards_BT = np.array([[0, 0, 1.0]] * 2, F)
  values_BT = np.array([[0.5, 0.25, 0.75]] * 2, F)
  lam_BT = np.array([[0.5, 0, 0.3], [0, 1, 0.3]], F)
  arrays = rewards_BT, values_BT, np.ones((2, 3), bool)
  advantages_BT = np.array([[0, 0.5, 0.25], [-0.25, 0.75, 0.25]])
  close(function("gae")(*arrays, lam=lam_BT), advantages_BT)
  found_BT, _ = credit.targets(*arrays, gamma=1.0, lam=lam_BT)
  close(found_BT, values_BT + advantages_BT)
  one_BT, _ = credit.targets(*arrays, gamma=1.0, lam=np.full((2, 3), 0.9, F))
  same_BT, _ = credit.targets(*arrays, gamma=1.0, lam=0.9)
  np.testing.assert_array_equal(one_BT, same_BT)


def test_targets_of_value_pretraining():
  """Monte-Carlo returns, discounted by a half per token; no advantages."""
  rows = arrays(values_BT=np.full((4, 3), 0.5, F))
  got = jax.device_get(credit.monte_carlo(rows, gamma=0.5))
  close(got["returns_BT"][MASK_BT], [0.25, 0.5, 1, -0.5, -1, 0, 0.5, 1, 2])
  assert not got["advantages_BT"].any()
  close(got["rewards_B"], REWARDS_B)
  close(got["metrics"]["critic/values/mean"], 0.5)


def undecided(advantages_BT, entropy_BT, mask_BT):
  """Advantages of the tokens whose entropy is above the mean."""
  mean = reductions.masked_mean(entropy_BT, mask_BT)
  return jnp.where(entropy_BT > mean, advantages_BT, 0)


def test_advantages_are_adjusted_in_turn():
  """The second of three; what is left is halved, with a metric."""
  entropy_BT = np.array([[0.1, 0.9, 0.2], [0.3, 0.8, 9], [0.7, 9, 9], [0] * 3])
  rows = arrays(entropy_BT=entropy_BT.astype(F))
  seen = []

  def halve(advantages_BT):
    seen.append(advantages_BT)
    return advantages_BT / 2, dict(factor=F(0.5))

  got = assign(rows, adjustments=[undecided, halve])
  want = np.array([[0, 1, 0], [0, -1, 0], [-1, 0, 0], [0, 0, 0]])
  close(seen[0], want)
  close(got["advantages_BT"], want / 2)
  assert got["metrics"] == dict(factor=0.5)


@pytest.mark.parametrize(
    "name, groups",
    [
        ("group_norm", "prompt"),
        ("group_norm", "type"),
        ("group_norm", "batch"),
        ("hierarchical", "prompt"),
        ("temporal", "prompt"),
        ("gae_length_adaptive", "prompt"),
    ],
)
def test_padding_rows_change_nothing_for_the_others(name, groups):
  """Whatever the padding was copied from, and wherever it is."""
  keywords = dict(
      groups=groups,
      whiten=groups == "prompt",  # which would hide a shift of the batch
      adjustments=[undecided],
      kl="k1",
      kl_in_reward=True,
  )
  rows, order = arrays(), [5, 0, 1, 4, 2, 3]
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
