r"""From random parameters to 95% of held-out problems, in a minute on 2 cores.

  export XLA_FLAGS="--xla_force_host_platform_device_count=2 \
    --xla_backend_optimization_level=1"
  python -m rl_reason.main --config=configs/speedrun.py

DAPO as in `configs/dapo.py`, with Muon instead of AdamW, 600 steps of SFT
instead of 1,000, and fewer evaluations. The flags make two devices of two
cores, each of which computes half of every batch, and have XLA compile faster.
The rules of the speedrun, and its records: results/speedrun.md.
"""

from rl_reason.configs import dapo


def get_config():
  """DAPO on the built-in task, in less than a minute on two cores."""
  c = dapo.get_config()
  c.sft.batch = 64  # of 96: two thirds of the time for SFT
  c.sft.steps, c.sft.lr = 600, 0.008
  c.sft.threshold = 0.9
  c.sft.habits.lr = 0.001  # Muon's first steps are smaller than those of AdamW
  c.optimizer.name = "muon"
  c.optimizer.lr, c.optimizer.schedule = 0.0003, "linear"
  c.rl.steps = 50
  c.dynamic_sampling.max_rounds = 6  # later rounds find few groups
  c.evaluate.samples, c.evaluate.every = 4, 0
  c.evaluate.validation = False  # nothing is chosen
  c.log.loggers = ""
  return c
