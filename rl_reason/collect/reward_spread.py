"""Signal by the reward: which groups have responses of different rewards.

Dynamic sampling asks by default which groups are partly correct (DAPO). Where
nothing verifies responses, or with dynamic_sampling.signal = "reward", a group
has signal if its total rewards differ, penalties of length among them.
"""

from collections.abc import Callable

import numpy as np

from rl_reason.base.structs import Array, Experience
from rl_reason.collect import experience
from rl_reason.collect.experience import credit_inputs


def of_finished(rows: Experience) -> np.ndarray:
  """Whether the finished responses of each group are partly correct: [N].

  With reward.truncated = "bootstrap" the others get the mean of those, and no
  advantage where those are all correct or all incorrect.
  """
  found = []
  for group in experience.groups(rows.rollouts.ids_B):
    finished = group[~rows.rollouts.truncated_B[group]]
    found.append(len(set(rows.correct_B[finished].tolist()) - {-1}) > 1)
  return np.array(found)


def signal(
    step: int, *, reward: Callable[[dict], Array], steps: int
) -> Callable[[Experience], np.ndarray]:
  """The `signal` of `dynamic_sampling.fill_batch`.

  Args:
    step: RL steps that are done, which move the weights of the reward's terms.
    reward: `credit.outcome`, its keywords bound.
    steps: of the run.
  """

  def rewards_differ(rows: Experience) -> np.ndarray:
    inputs = credit_inputs(rows, progress=np.float32(step / steps))
    rewards_B = np.asarray(reward(inputs))
    found = experience.groups(rows.rollouts.ids_B)
    # A response whose reward is unknown (NaN) says nothing.
    known = [rewards_B[group][np.isfinite(rewards_B[group])] for group in found]
    return np.array([len(set(x.tolist())) > 1 for x in known])

  return rewards_differ
