"""Host memory and disk of a run, by formula from the shapes of its arrays.

All hosts together: each process copies and writes the part of the state that
its devices hold.
"""

from rl_reason.base import feature
from rl_reason.checks import config_facts
from rl_reason.devices import sharding
from rl_reason.lab.memory_formula import bytes_of, moments_of
from rl_reason.models import critic, decoder
from rl_reason.stages import optimizers


def estimate(
    c, cfg: decoder.ModelConfig, critic_cfg: critic.CriticConfig
) -> tuple[dict[str, int], dict[str, int]]:
  """Bytes by name, in host memory and in the work directory.

  Orbax compresses: checkpoints are at most as large as the formulas say. Not
  counted are Python, rows, reward functions and their processes, logs, and the
  files of model.path.

  Args:
    c: checked.
    cfg: static shape of the policy.
    critic_cfg: static shape of the critic.
  """
  whole = sharding.abstract_mesh()

  def state(table) -> int:
    return bytes_of(table, whole) + moments_of(table, whole, c.optimizer.name)

  table, policy = decoder.table(cfg), optimizers.learned(c).table(cfg)
  rl = state(policy)
  disk = dict[str, int]()
  for stage, steps in ("SFT", c.sft.steps), ("habits", c.sft.habits.steps):
    if steps and not c.sft.reuse:
      disk[f"checkpoint of {stage}"] = state(table)
  for stage in feature.before_rl(c):
    disk[f"checkpoint of --stage={stage}"] = state(table)
  if config_facts.has_critic(c):
    value = state(critic.table(critic_cfg))
    rl += value
    if c.critic.pretrain_steps and not c.critic.reuse:
      disk["checkpoint of value pretraining"] = value
  k = c.checkpoint
  kept = k.keep_last + k.keep_best
  name = f"checkpoints of RL, {kept} kept and 1 being written"
  disk[name] = (kept + 1) * rl
  host = {"copy of the state while a checkpoint is written": rl}
  if c.optimizer.offload:
    host["optimizer state (optimizer.offload)"] = rl - bytes_of(policy, whole)
  return host, disk
