r"""Lambda of GAE by offset and complexity, where difficulties differ.

python -m rl_reason.ablate --out=studies/complexity \
  --config=configs/ablations/complexity.py

See studies/complexity/plan.md.
"""

from rl_reason.lab import ablate

NAME = {"advantage.name": "gae_exp_complexity", "advantage.args.hardest": 6.0}


def get_config():
  """PPO whose lambda is constant, and falls with offset, complexity, both."""
  return ablate.ladder(
      title="Lambda of GAE by offset and complexity",
      question=(
          "Does a lambda of GAE that falls with the offset from the token and"
          " with the difficulty of the prompt help, where prompts have 2 to 6"
          " operands?"
      ),
      seeds=ablate.fresh_seeds("rl_reason noisy verdicts", 8),
      reference="PPO",
      common={
          "critic.pretrain_steps": 20,
          "critic.lam": 1.0,
          "rl.steps": 30,
          **ablate.EVALUATED,
      },
      rows=[
          ("PPO", "configs/ppo.py", {}),
          *(
              (
                  name,
                  "configs/ppo.py",
                  NAME
                  | {
                      "advantage.args.decay": decay,
                      "advantage.args.slope": slope,
                  },
              )
              for name, decay, slope in (
                  ("by offset", 1.0, 0.0),
                  ("by complexity", 0.0, 0.5),
                  ("by offset and complexity", 1.0, 0.5),
              )
          ),
      ],
      measures=("entropy", "length", "explained variance", "value loss"),
  )
