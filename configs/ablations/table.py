"""Every named algorithm on one of three tasks, on the seeds of the study.

python -m rl_reason.ablate --config=configs/ablations/table.py
python -m rl_reason.ablate --config=configs/ablations/table.py:countdown

The rows are the unchanged configs of the algorithms and of the losses of recent
papers, which differ from their defaults only in the number of steps and in
evaluations. `python -m studies.table.run` runs all tasks, seed by seed.
"""

from rl_reason.base import config as config_lib
from rl_reason.configs import calculator, countdown, dapo
from rl_reason.lab import ablate

TASKS = {"arithmetic": dapo, "countdown": countdown, "calculator": calculator}
VARIANTS = tuple(TASKS)
ALGORITHMS = (
    *("reinforce", "rloo", "reinforce_pp", "reinforce_pp_baseline", "ppo"),
    *("grpo", "dr_grpo", "gspo", "cispo", "max_rl", "lite_ppo", "dapo", "vapo"),
)
# Losses of recent papers; the other parts of their configs are those of GRPO.
LOSSES = ("sapo", "gmpo", "luspo", "dppo", "vespo")
PROMPTS = {"countdown": 384}  # of 427 that are held out
# MaxRL divides by the mean of rewards in {0, 1}; here a question has a cost.
UNDEFINED = {"calculator": ("max_rl",)}
# What the config of a task changes for DAPO alone.
OF_DAPO = ("reward.overlong_buffer", "dynamic_sampling.signal")


def get_config(task="arithmetic"):
  """All rows on a task: as its config says, 256 responses a step."""
  if task not in TASKS:
    raise ValueError(f"the tasks are {', '.join(TASKS)}")
  default = config_lib.flat(dapo.get_config())
  fields = {
      name: value
      for name, value in config_lib.flat(TASKS[task].get_config()).items()
      if value != default[name] and not name.startswith("evaluate.")
  }
  own = {name: fields.pop(name) for name in OF_DAPO if name in fields}
  return ablate.ladder(
      title=f"All algorithms on {task}",
      question="Which algorithm learns most per step, and which per token?",
      seeds=ablate.fresh_seeds("rl_reason table", 32),
      reference="dapo",
      common=fields
      | {
          "rl.steps": 30,
          "evaluate.samples": 4,
          "evaluate.prompts": PROMPTS.get(task, 512),
          "evaluate.interim_prompts": 128,
          "evaluate.batch": 128,
          "evaluate.every": 5,
          "log.loggers": "",
          "rl.max_steps_without_update": 0,  # a run that stalls is a result
      },
      rows=[
          (name, f"configs/{name}.py", own if name == "dapo" else {})
          for name in (*ALGORITHMS, *LOSSES)
          if name not in UNDEFINED.get(task, ())
      ],
      measures=("entropy", "length", "reward", "pass@4"),
  )
