"""Runs whose teacher is the policy that has read the answer."""

import jax
import pytest
import tiny_session
from tiny_session import call

from configs import distill
from rl_reason.stages import rl

pytestmark = pytest.mark.slow


def trained(workdir, params=None, **changes):
  """Parameters after a step of self-distillation, and what it logged."""
  c, own = tiny_session.tiny_config(), distill.get_config("sampled")
  for name in ("kl", "reward", "advantage", "reduction"):
    c[name] = own[name]
  c.dynamic_sampling.update(enabled=False, max_rounds=10)
  c.kl.reference, c.kl.self_teacher = "", "current"
  c.rollout.group_size, c.rl.steps = 1, 1
  session = tiny_session.make_session(workdir, c, **changes)
  with jax.set_mesh(session.mesh):
    first = tiny_session.random_params(session)
    after = call(rl.train, session, first)
  lines = tiny_session.logged(workdir)
  [line] = [x for x in lines if x["stage"] == "rl"]
  return tiny_session.digest(first), tiny_session.digest(after), line


def test_without_an_answer_nothing_is_learned_and_with_it_something_is(
    tmp_path,
):
  """In the sampled form all advantages are then 0, to the bit."""
  first, after, line = trained(tmp_path / "a", kl__privileged="{prompt}")
  assert first == after
  assert line["actor/grad_norm"] == line["kl/reference"] == 0
  _, after, line = trained(tmp_path / "b", kl__privileged="{answer}#{prompt}")
  assert first != after and line["kl/reference"] != 0


@pytest.mark.parametrize("whose", ["initial", "current"])
def test_the_full_form(tmp_path, whose):
  """In one step both teachers are one policy; LoRA has a base as well."""
  fields = dict(kl__kind="full", kl__place="loss", kl__self_teacher=whose)
  fields |= dict(lora__rank=2 * (whose == "current"))
  fields["kl__privileged"] = "{answer}#{prompt}"
  first, after, line = trained(tmp_path, **fields)
  assert first != after and line["kl/reference"] > 1e-5
