"""What a step with a critic executes beside the files of a step of DAPO."""

import pytest
import test_tour

pytestmark = pytest.mark.slow
WITH_A_CRITIC = {
    f"rl_reason/{name}.py"
    for name in (
        "algorithms/values",
        "models/critic",
        "training/programs",
    )
}


def executed(name, workdir):
  with pytest.MonkeyPatch.context() as patch:
    return test_tour.executed_by_a_step(name, workdir, patch)


def test_the_core_is_complete(tmp_path):
  files = {x: executed(x, tmp_path / x) for x in "dapo grpo ppo vapo".split()}
  dapo, critic = files["dapo"], WITH_A_CRITIC
  extra = {name: found - dapo for name, found in files.items()}
  assert extra == dict(dapo=set(), grpo=set(), ppo=critic, vapo=critic)
