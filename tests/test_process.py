"""Process rewards: credit of steps by hand, and what shaping leaves alone."""

import functools
import itertools

import numpy as np
import pytest
import tiny
import tiny_data
import tiny_session
import tokenizers
import transformers
from by_hand import QUICK, call, close, quick_jit, same
from hypothesis import given, strategies as st
from test_reward_runner import LENGTH, ROWS, rollouts

from rl_reason.algorithms import advantages, credit, process
from rl_reason.base.errors import ConfigError, RunError
from rl_reason.checks import config_checks
from rl_reason.collect.reward_runner import RewardRound, RewardRunner, Rewards
from rl_reason.data import tokenizer
from rl_reason.features.environments import turns
from rl_reason.tasks import Row, reward_terms, xor
from rl_reason.tasks.reward_functions import Response

F = np.float32

# --- advantages --------------------------------------------------------------

# Two responses of a group: steps with rewards 1 and 0, and with 1, 1, 0. Row 2
# is a group whose steps all have one reward. 9 stands where no step ends.
ENDS_BT = np.array([[0, 1, 1, 0], [1, 1, 0, 1], [1, 0, 1, 0]], bool)
REWARDS_BT = np.array([[9, 1, 0, 9], [1, 1, 9, 0], [0.1, 9, 0.1, 9]], F)
GROUPS_B = np.array([7, 7, -1])


def test_process_supervision_by_hand():
  """Of 1, 0, 1, 1, 0 the mean is 3/5, the variance 6/5 / 4 = 3/10."""
  got = call(
      process.process_norm,
      np.array([3.0, 1, 5], F),
      GROUPS_B,
      REWARDS_BT,
      ENDS_BT,
      eps=0.0,
  )
  good, bad = 0.4 / 0.3**0.5, -0.6 / 0.3**0.5
  steps_BT = np.array(
      [
          [good + bad, good + bad, bad, 0],
          [2 * good + bad, good + bad, bad, bad],
          [0, 0, 0, 0],
      ]
  )
  # The outcomes 3 and 1: (3 - 2) / sqrt(2).
  outcome_B1 = np.array([[0.5**0.5], [-(0.5**0.5)], [0]])
  close(got, outcome_B1 + steps_BT, rtol=1e-6, atol=1e-6)


def test_equal_rewards_of_steps_add_nothing():
  """The rounded mean of twelve float32 0.7 is not 0.7."""
  arrays = np.ones(1, F), np.zeros(1, int), np.full((1, 12), 0.7, F)
  got = call(process.process_norm, *arrays, np.ones((1, 12), bool), eps=0.0)
  assert not got.any()


def test_a_group_without_steps_has_the_advantage_of_grpo():
  arrays = np.array([1, 0, 1], F), np.zeros(3, int)
  none_BT = np.zeros((3, 2), bool)
  got = call(process.process_norm, *arrays, np.ones((3, 2), F), none_BT)
  wanted = call(advantages.group_norm, *arrays)
  same(got, np.broadcast_to(wanted[:, None], (3, 2)))


def test_the_step_of_each_token():
  mask_BT = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]], bool)
  got = process.numbers(ENDS_BT, mask_BT)
  same(got, [[1, 1, 2, 0], [1, 2, 3, 3], [0, 0, 0, 0]])


def test_values_by_rollouts_by_hand():
  """Two responses to a prompt, with returns 1 and -1: each other's baseline.

  A response without another one has no baseline, hence no advantage.
  """
  rewards_BT = np.array([[0, 0.5, 0, 0.5], [0, 0, -1, 9], [5, 9, 9, 9]], F)
  mask_BT = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]], bool)
  # Row 0 has prefixes of two and of three tokens; a step of row 1 ends with it.
  ends_BT = np.array([[0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0]], bool)
  returns_BT = np.array([[9, 0.25, 0.5, 9], [-0.5, 9, 9, 9], [9] * 4], F)
  got = call(
      process.vine,
      rewards_BT * mask_BT,
      GROUPS_B,
      mask_BT,
      ends_BT,
      returns_BT,
  )
  wanted = [[1.25, 1.25, 0.25, 0.5], [-1.5, -0.5, -0.5, 0], [0] * 4]
  same(got, wanted)


# --- potentials --------------------------------------------------------------


def test_shaping_by_hand():
  """Potentials 1 and 4 after tokens 1 and 3; gamma = 1/2."""
  phi_BT = np.array([[9, 1, 9, 4, 9, 9]], F)
  ends_BT = np.array([[0, 1, 0, 1, 0, 0]], bool)
  mask_BT = np.array([[1, 1, 1, 1, 1, 0]], bool)
  shape = functools.partial(
      call, process.potential_shaping, phi_BT, ends_BT, gamma=0.5
  )
  # By token: .5 * 1 - 0; .5 * 1 - 1; .5 * 4 - 1; 0 - 4.
  same(shape(mask_BT, mask_BT), [[0, 0.5, -0.5, 1, -4, 0]])
  last_BT = ends_BT | (np.arange(6) == 4)
  same(shape(last_BT, mask_BT), [[0, 0.5, 0, 1, -4, 0]])
  # A step that ends with the response: the last potential is 0.
  four_BT = np.arange(6)[None] < 4
  same(shape(four_BT, four_BT), [[0, 0.5, -0.5, -1, 0, 0]])


@QUICK
@given(
    seed=st.integers(0, 999),
    gamma=st.sampled_from([0, 0.5, 1]),
    by=st.booleans(),
)
def test_the_discounted_sum_of_shaping_is_0(seed, gamma, by):
  rng = np.random.default_rng(seed)
  mask_BT = np.arange(6) < rng.integers(0, 7, (4, 1))
  ends_BT = mask_BT & (rng.random((4, 6)) < 0.5)
  phi_BT = rng.integers(-8, 9, (4, 6)).astype(F)
  last_BT = mask_BT & (np.arange(6) == mask_BT.sum(1, keepdims=True) - 1)
  actions_BT = ends_BT | last_BT if by else mask_BT
  got = call(
      process.potential_shaping,
      phi_BT,
      ends_BT,
      actions_BT,
      mask_BT,
      gamma=gamma,
  )
  before_BT = np.cumsum(actions_BT, 1) - actions_BT
  close((got * float(gamma) ** before_BT).sum(1), np.zeros(4), atol=1e-5)


ACTIONS, STEPS = 2, 3  # of a token, and of a response
RESPONSES = np.array(list(itertools.product(range(ACTIONS), repeat=STEPS)))


def gradient(rewards_BT, gamma):
  """The exact policy gradient of a tabular softmax policy: every prefix."""
  rng = np.random.default_rng(0)
  logits = {
      prefix: rng.normal(size=ACTIONS)
      for t in range(STEPS)
      for prefix in itertools.product(range(ACTIONS), repeat=t)
  }
  policy = {k: np.exp(x) / np.exp(x).sum() for k, x in logits.items()}
  mask_BT = np.ones(RESPONSES.shape, bool)
  to_go_BT = call(
      advantages.returns_to_go, np.array(rewards_BT, F), mask_BT, gamma=gamma
  )
  out = {k: np.zeros(ACTIONS) for k in policy}
  for b, response in enumerate(RESPONSES.tolist()):
    prefixes = [tuple(response[:t]) for t in range(STEPS)]
    chosen = list(zip(prefixes, response, strict=True))
    probability = np.prod([policy[k][a] for k, a in chosen])
    for t, (k, a) in enumerate(chosen):
      score = np.eye(ACTIONS)[a] - policy[k]
      out[k] += probability * gamma**t * to_go_BT[b, t] * score
  return np.concatenate(list(out.values()))


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_shaping_changes_neither_the_gradient_nor_the_best_policy(gamma):
  """The outcome of each response is random, and so is phi of each prefix."""
  rng = np.random.default_rng(1)
  phi = {
      prefix: rng.normal(scale=5)
      for t in range(1, STEPS + 1)
      for prefix in itertools.product(range(ACTIONS), repeat=t)
  }
  phi_BT = np.array(
      [[phi[(*x[: t + 1],)] for t in range(STEPS)] for x in RESPONSES.tolist()]
  )
  outcome_BT = np.zeros(RESPONSES.shape)
  outcome_BT[:, -1] = rng.normal(size=len(RESPONSES))
  all_BT = np.ones(RESPONSES.shape, bool)
  shaped_BT = call(
      process.potential_shaping, phi_BT, all_BT, all_BT, all_BT, gamma=gamma
  )
  plain = gradient(outcome_BT, gamma)
  close(gradient(outcome_BT + shaped_BT, gamma), plain, atol=1e-5)
  # Potentials as rewards change both.
  assert np.abs(gradient(outcome_BT + phi_BT, gamma) - plain).max() > 0.1

  def best(rewards_BT):
    return np.argmax((rewards_BT * gamma ** np.arange(STEPS)).sum(1))

  assert best(outcome_BT + shaped_BT) == best(outcome_BT)
  assert best(outcome_BT + phi_BT) != best(outcome_BT)


# --- credit ------------------------------------------------------------------


def credited(advantage, potentials=False, by_step=False, **change):
  """Two responses of four and three tokens, and padding; both are correct."""
  ends_BT = np.array([[0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], bool)
  zeros_BT, zeros_B = np.zeros((3, 4), F), np.zeros(3, int)
  rows = dict(
      correct_B=np.ones(3, F),
      # The sum of the rewards of steps, and a score of the response.
      scores_EB=(np.array([0.3, 0.2, 9], F), np.full(3, 2.0, F)),
      judged_EB=(np.ones(3, bool), np.zeros(3, bool)),
      step_rewards_EBT=(
          np.array([[0, 0.1, 0.2, 0], [0.2, 0, 0, 0], [9, 9, 9, 9]], F),
          zeros_BT,
      ),
      step_ends_BT=ends_BT,
      mask_BT=np.array([[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]], bool),
      lengths_B=np.array([4, 3, 0]),
      truncated_B=zeros_B > 0,
      groups_B=np.array([5, 5, -1]),
      types_B=zeros_B,
      problems_B=zeros_B,
      age_B=np.array([0, 0, -1]),
      logps_BT=zeros_BT,
      progress=F(0.5),
      kl_coef=F(0),
  )
  weights = ((0.0, 4.0), (0.25, 0.25))  # half way: 2 and 1/4
  outcome = functools.partial(
      credit.outcome, max_tokens=4, term_weights=weights
  )
  assign = functools.partial(credit.assign, advantage=advantage)
  fn = functools.partial(
      credit.rewards_and_advantages,
      reward=functools.partial(process.outcome, outcome=outcome),
      assign=functools.partial(
          process.assign,
          assign=assign,
          term_weights=weights,
          potentials=potentials,
          by_step=by_step,
          gamma=1.0,
      ),
  )
  out = quick_jit(fn)(rows | change)
  return np.asarray(out["rewards_B"]), np.asarray(out["advantages_BT"])


def test_steps_are_rewarded_where_they_end_and_only_there():
  """The outcome is 1 + .25 * 2; steps have the weight 2."""
  rewards_B, to_go_BT = credited(advantages.returns_to_go)
  close(rewards_B[:2], [2.1, 1.9], rtol=1e-6)
  wanted = [[2.1, 2.1, 1.9, 1.5], [1.9, 1.5, 1.5, 0], [0] * 4]
  close(to_go_BT, wanted, rtol=1e-6)


def test_equal_outcomes_have_no_advantage_beside_the_steps():
  """Exactly: rounded rewards of steps are no part of the outcome."""
  none_EBT = (np.zeros((3, 4), F),) * 2
  _, advantages_BT = credited(process.process_norm, step_rewards_EBT=none_EBT)
  assert not advantages_BT.any()


def test_potentials_are_baselines():
  """What remains is the outcome minus the potential before a token."""
  rewards_B, to_go_BT = credited(advantages.returns_to_go, potentials=True)
  close(rewards_B[:2], [1.5, 1.5], rtol=1e-6)
  wanted = [[1.5, 1.5, 1.3, 1.1], [1.5, 1.1, 1.1, 0], [0] * 4]
  close(to_go_BT, wanted, rtol=1e-6)


def test_steps_are_turns():
  """Returns of row 0: 2.1, 1.9, 1.5 of three steps; of row 1: 1.9, 1.5."""
  _, advantages_BT = credited(turns.returns_by_turn, by_step=True)
  wanted = [[0.1, 0.1, 0.2, 0], [-0.1, -0.2, -0.2, 0], [0] * 4]
  close(advantages_BT, wanted, atol=1e-6)


def test_value_pretraining_learns_the_rewards_of_steps():
  rows = dict(
      mask_BT=np.ones((1, 3), bool),
      values_BT=np.zeros((1, 3), F),
      rewards_B=F([1]),
      step_rewards_BT=F([[0, 2, 0]]),
  )
  got = quick_jit(functools.partial(credit.monte_carlo, gamma=1.0))(rows)
  same(got["returns_BT"], [[3, 3, 1]])


# --- from characters to tokens -----------------------------------------------


def cleaned_up():
  """A tokenizer whose texts are not the texts of its tokens, one after another.

  Llama 3's has the same setting.
  """
  words = ["<e>", "It", " is", " n't", " .", " fine"]
  fast = tokenizers.Tokenizer(
      tokenizers.models.WordLevel({x: n for n, x in enumerate(words)})
  )
  fast.decoder = tokenizers.decoders.Fuse()
  return transformers.PreTrainedTokenizerFast(
      tokenizer_object=fast, eos_token="<e>", clean_up_tokenization_spaces=True
  )


def test_the_token_that_completes_a_step():
  # One character a token.
  ids = tokenizer.encode(tiny.TOK, ["1+1=2"])[0]
  found = tokenizer.last_tokens(
      tiny.TOK, [*ids, tiny.TOK.eos_token_id], "1+1=2", [1, 3, 5]
  )
  assert found == [0, 2, 4]
  # One byte a token: é has two, and € three.
  tok = tiny_data.byte_tokenizer()
  ids = tokenizer.encode(tok, ["aé€b"])[0]
  assert tokenizer.last_tokens(tok, ids, "aé€b", [1, 2, 3, 4]) == [0, 2, 5, 6]
  # The first bytes of a character, and then another one.
  broken = [*ids[:2], ids[-1]]
  (text,) = tok.batch_decode([broken])
  assert tokenizer.last_tokens(tok, broken, text, [1, len(text)]) == [0, 2]


@QUICK
@given(text=st.text(alphabet="aé€😀 \n.", min_size=1, max_size=8))
def test_each_character_has_its_last_token(text):
  """Against the definition: prefixes of the tokens, decoded."""
  tok, ends = tiny_data.byte_tokenizer(), range(1, len(text) + 1)
  ids = tokenizer.encode(tok, [text])[0]
  prefixes = [tok.decode(ids[: n + 1]) for n in range(len(ids))]
  wanted = [
      next(n for n, x in enumerate(prefixes) if x.startswith(text[:end]))
      for end in ends
  ]
  assert tokenizer.last_tokens(tok, ids, text, ends) == wanted


def test_a_tokenizer_that_cleans_up_spaces():
  tok, ids = cleaned_up(), [1, 2, 3, 5, 4]
  (text,) = tokenizer.decode(tok, np.array([[*ids, 0]]), [6])
  assert text == "It isn't fine."
  ends = [text.index(x) + len(x) for x in ("It", "isn't", "fine", ".")]
  found = tokenizer.last_tokens(tok, [*ids, 0], text, ends)
  assert found == [0, 2, 3, 4]


# --- reward functions --------------------------------------------------------


def find(text, name="steps"):
  response = Response(text, 0.5, False)
  return reward_terms.find(name).function(response, Row("", "", 0))


def test_steps_of_equations_and_of_lines():
  text = "1. 2+2=4, so\n 4+1=5=6-2\nno step\n$1+1 = 2$."
  found = find(text)
  assert [text[:end][-3:] for end, _ in found] == ["2=4", "1=5", "6-2", "= 2"]
  assert [reward for _, reward in found] == [1 / 4, 1 / 4, 0, 1 / 4]
  lines = find(text, "steps(by='line')")
  assert [text[:end][-3:] for end, _ in lines] == ["2=4", "6-2", "= 2"]
  assert [reward for _, reward in lines] == [1 / 3, 0, 1 / 3]
  assert find("none") == []


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("h0p1x0", [(2, 1), (4, 1), (6, 0)]),
        # The first block is written out, and the second one with an error.
        ("a0b1c1d1e0f0g0h0n0p1x1", [(16, 1), (20, 0), (22, 1)]),
        ("p1h0x1", [(4, 0)]),  # in another order
        ("h0x1", [(2, 1)]),  # without the second block
        ("h0p1x", [(2, 1), (4, 1)]),
        ("h00p1x1", [(2, 1), (5, 0), (7, 1)]),
        ("", []),
    ],
)
def test_blocks_of_parities(text, wanted):
  row = Row("aBcdEfghIjklmnopqrstuvwX:", "011", 3)
  got = xor.blocks(Response(text, 0.5, False), row)
  assert got == [(end, correct / 3) for end, correct in wanted]
  so_far = [
      x for _, x in xor.blocks(Response(text, 0.5, False), row, so_far=True)
  ]
  first_error = next((n for n, (_, x) in enumerate(got) if not x), len(got))
  assert so_far == [1 / 3 * (n < first_error) for n in range(len(got))]
  assert xor.verify(text, row) == (len(got) == sum(x for _, x in wanted) == 3)


FUNCTIONS = """
def whole(response, row):
  return 2.0

def each(response, row):
  return [(n, 0.5 * n) for n in range(1, len(response.text) + 1)]

async def batch(batch):
  return [[(len(x), 3.0)] if len(x) > 1 else 1.0 for x in batch.texts]

def beyond(response, row):
  return [(99, 1.0)]

def falling(response, row):
  return [(2, 1.0), (1, 1.0)]

def zero(response, row):
  return ((0, 1.0),)

def infinite(response, row):
  return [(1, float("inf"))]

def other(response, row):
  return [1.0, 2.0]
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
  place = tmp_path_factory.mktemp("steps")
  (place / "rewards_of_steps.py").write_text(FUNCTIONS)
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(place)
    yield "rewards_of_steps"


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_steps_come_to_their_tokens(mine, executor):
  """The texts are 2, 1+1, 5, 4, 6, #6: a character is a token."""
  terms = reward_terms.terms(",".join(f"{mine}:{x}" for x in FORMS))
  runner = RewardRunner(terms, max_tokens=LENGTH, executor=executor)
  rewards = Rewards(terms, runner, {}, by_step=True)
  rows_B = [row for row in ROWS for _ in range(2)]
  found = rewards.begin(tiny.TOK, rows_B)
  found.submit(rollouts(), np.ones(6, bool))
  found.wait()
  steps = rewards.steps(found)
  sums_B = np.array([0.5, 3, 0.5, 0.5, 0.5, 1.5])
  batch_B = np.array([1, 3, 1, 1, 1, 3.0])
  same(found.scores_UB, [np.full(6, 2.0), sums_B, batch_B])
  whole_BT, each_BT, batch_BT = steps.rewards_EBT
  assert not whole_BT.any()
  same(each_BT[1], [0.5, 1, 1.5, 0, 0, 0, 0, 0])
  same(batch_BT[1], [0, 0, 3, 0, 0, 0, 0, 0])
  same(each_BT.sum(1), sums_B)
  same(steps.judged_EB[0], np.zeros(6, bool))
  same(steps.judged_EB[1], np.ones(6, bool))
  same(steps.judged_EB[2], batch_B == 3)
  same(steps.ends_BT.sum(1), [1, 3, 1, 1, 1, 2])
  # An evaluation counts the sums.
  of_all, failures = rewards.of_all(tiny.TOK, rollouts(), rows_B, 6)
  close(of_all, 2 + sums_B + batch_B)
  assert not failures
  runner.close()


FORMS = ["whole", "each", "batch"]
WRONG = {
    "falling": "steps are .end, reward., increasing",
    "zero": "steps are .end, reward., increasing",
    "infinite": "steps are .end, reward., increasing",
    "other": "steps are .end, reward., increasing",
    "beyond": "ends after 99 characters, and the response has 1",
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_steps_are_failures(mine, name):
  terms = reward_terms.terms(f"{mine}:{name}")
  runner = RewardRunner(terms, max_tokens=LENGTH)
  found = RewardRound(runner, tiny.TOK, [ROWS[0]] * 2, by_step=True)
  found.submit(rollouts(["2", "3"]), np.ones(2, bool))
  with pytest.raises(RunError, match=WRONG[name]):
    found.wait()
  runner.close()


# --- checks ------------------------------------------------------------------

REFUSED = [
    (dict(advantage="group_norm"), "reads no rewards of steps"),
    (dict(process="none", advantage="returns_by_turn"), "set reward.process"),
    (dict(process="none"), "there are no process rewards"),
    (dict(process="potentials"), "use returns_by_turn"),
    (dict(functions=""), "reward.functions: set both"),
    (dict(functions="OWNER/JUDGE"), "a reward model judges whole responses"),
    (dict(environment="guess"), "are the steps"),
]


def config(
    process="rewards",
    advantage="process_norm",
    functions="steps",
    environment="",
):
  c = tiny_session.tiny_config()
  c.reward.functions, c.reward.process = functions, process
  c.advantage.name, c.environment.name = advantage, environment
  return c


def test_what_cannot_be_rewarded_by_step_is_refused():
  for advantage in ("process_norm", "returns_by_turn", "gae_by_turn"):
    config_checks.fields(config(advantage=advantage))
  config_checks.fields(
      config(process="potentials", advantage="returns_by_turn")
  )
  for fields, words in REFUSED:
    with pytest.raises(ConfigError, match=words):
      config_checks.fields(config(**fields))
