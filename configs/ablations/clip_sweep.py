r"""Clip-higher (DAPO, arXiv:2503.14476, sec 3.1): how high?

python -m rl_reason.ablate --out=studies/clip_sweep \
  --config=configs/ablations/clip_sweep.py
"""

from rl_reason.lab import ablate


def get_config():
  """Countdown: many responses are correct, so there is entropy to keep.

  16 minibatches and two epochs per rollout, so that the bound is reached, at
  half the learning rate: at the full learning rate and with soft punishment,
  five other seeds learned nothing at any bound.
  """
  return ablate.ladder(
      title="The upper clip bound",
      question=(
          "Does a higher upper bound of the ratio keep entropy up, and does"
          " that help? DAPO raises it from 0.2 to 0.28 and sees entropy stay,"
          " and accuracy on AIME 2024 go from 36 to 38."
      ),
      seeds=ablate.fresh_seeds("rl_reason clip sweep", 5),
      reference="high 0.2",
      common={
          "sft.batch": 64,  # the default when these were measured
          "dynamic_sampling.enabled": False,
          "reward.overlong_buffer": 0,
          "optimizer.lr": 1e-4,
          "rl.steps": 30,
          "rollout.max_tokens": 64,
          "updates.minibatches": 16,
          "updates.epochs": 2,
          "evaluate.samples": 4,
          "evaluate.prompts": 400,
          "evaluate.interim_prompts": 200,
          "evaluate.batch": 200,
          "evaluate.every": 6,
      },
      rows=[
          (
              f"high {high}",
              "configs/countdown.py",
              {"surrogate.args.clip_high": high},
          )
          for high in (0.1, 0.2, 0.28, 0.4, 0.8)
      ],
      measures=("entropy", "clipped", "training accuracy", "pass@4"),
  )
