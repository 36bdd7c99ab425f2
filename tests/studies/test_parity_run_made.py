"""Two rollouts of the job of studies.parity_run.run, here and by TRL."""

import jax
import numpy as np
import pytest

from bench import harness, results, runs
from rl_reason import hf
from rl_reason.data import tokenizer
from rl_reason.models import decoder
from rl_reason.tasks import arithmetic
from studies.parity_run import run as parity_run

pytestmark = pytest.mark.slow
ROLLOUTS, SEED = 2, 3


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory):
  """A random model that is not uniform, and two rollouts."""
  place = tmp_path_factory.mktemp("parity")
  tok = tokenizer.characters(arithmetic.ALPHABET)
  cfg = decoder.ModelConfig(
      **harness.shape("tiny") | dict(vocab=len(tok)),
      qkv_bias=True,
  )
  params = jax.tree.map(lambda x: 2 * x, decoder.init(cfg, jax.random.key(0)))
  table = decoder.table(cfg)
  hf.save(place / "model", params, table, cfg, tokenizer=tok, context=60)
  (rollouts, *_), *knobs = parity_run.KNOBS
  steps = ("rl.steps", ROLLOUTS), ("max_steps", parity_run.EPOCHS * ROLLOUTS)
  knobs = ((rollouts, *steps), *knobs)
  others = parity_run.OTHERS | {
      "reward.functions": "length",  # no response is correct
      "log.samples_every": ROLLOUTS,
      "checkpoint.every": ROLLOUTS,
  }
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(parity_run, "PLACE", place)
    patch.setattr(parity_run, "make_model", lambda: place / "model")
    patch.setattr(parity_run, "ROLLOUTS", ROLLOUTS)
    patch.setattr(parity_run, "KNOBS", knobs)
    patch.setattr(parity_run, "OTHERS", others)
    yield


@pytest.fixture(scope="module")
def ours(small):
  """The measures of the run of this package."""
  one = parity_run.job(parity_run.OURS, SEED)
  runs.make([one], JAX_PLATFORMS="cpu")
  one.update_record(load=results.load())
  return parity_run.read(parity_run.OURS, SEED)


def test_this_package_runs_on_the_prompts_of_the_seed(ours):
  """`read` compares the prompts with those of `prompts`."""
  assert len(ours["reward"]) == ROLLOUTS
  assert 0.5 < ours["entropy"][0] < 2.7  # log 17 = 2.83


def test_trl_runs_on_the_same_prompts_and_samples_alike(ours):
  """Before the first update, the same model has sampled for both."""
  if not (harness.ENVIRONMENTS / "trl" / "bin" / "python").exists():
    pytest.skip("python -m bench.peers --install trl")
  parity_run.run_peer(parity_run.TRL, SEED)
  peer = parity_run.read(parity_run.TRL, SEED)
  assert len(peer["reward"]) == ROLLOUTS
  for name in ("length", "entropy"):
    np.testing.assert_allclose(peer[name][0], ours[name][0], rtol=0.25)


def test_tunix_runs_on_the_same_prompts_and_eos_is_added(ours):
  """A finished response has its EOS in the second row only."""
  if not (harness.ENVIRONMENTS / "tunix" / "bin" / "python").exists():
    pytest.skip("python -m bench.peers --install tunix")
  eos = tokenizer.characters(arithmetic.ALPHABET).eos_token_id
  most, found = parity_run.options(SEED, parity_run.TUNIX)["tokens"], {}
  for row in (parity_run.TUNIX, parity_run.TUNIX_EOS):
    task = parity_run.given(SEED, row) | dict(out="sampled")
    peer = parity_run.call_peer("tunix", task)
    assert len(peer["log"]) == ROLLOUTS
    length = peer["log"][0]["length"]
    np.testing.assert_allclose(length, ours["length"][0], rtol=0.25)
    found[row] = peer["sampled"]["completions"]
  as_it_is, with_eos = (sum(x, []) for x in found.values())
  short = [i for i, x in enumerate(as_it_is) if len(x) < most]
  assert 0 < len(short) and not any(eos in x for x in as_it_is)
  count = parity_run.PROMPTS * parity_run.GROUP  # of the first policy
  for i in [i for i in short if i < count]:
    assert with_eos[i] == [*as_it_is[i], eos]
