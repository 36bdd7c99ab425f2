r"""From GRPO to DAPO, one technique at a time (arXiv:2503.14476, table 1).

python -m rl_reason.ablate --out=studies/dapo_ladder \
  --config=configs/ablations/dapo_ladder.py
"""

from rl_reason.lab import ablate


def get_config():
  """Countdown: many responses are correct; the length limit truncates searches.

  16 minibatches per rollout, so that the policy moves far enough to be clipped.
  """
  rows, fields = [], {}
  for name, more in (
      (
          "naive GRPO",
          {
              "surrogate.args.clip_high": 0.2,
              "reduction.name": "seq_mean_token_mean",
              "reward.overlong_buffer": 0,
              "dynamic_sampling.enabled": False,
          },
      ),
      ("+ overlong filtering", {"loss.mask_truncated": True}),
      ("+ clip-higher", {"surrogate.args.clip_high": 0.28}),
      (
          "+ soft punishment, no filtering",
          {"reward.overlong_buffer": 16, "loss.mask_truncated": False},
      ),
      ("+ token-level loss", {"reduction.name": "token_mean"}),
      ("+ dynamic sampling (DAPO)", {"dynamic_sampling.enabled": True}),
  ):
    fields = fields | more
    rows.append((name, "configs/countdown.py", fields))
  return ablate.ladder(
      title="From GRPO to DAPO",
      question=(
          "What does each technique add? The paper, on AIME 2024: naive GRPO"
          " 30, + overlong filtering 36, + clip-higher 38, + soft punishment"
          " 41, + token-level loss 42, + dynamic sampling 50."
      ),
      seeds=ablate.fresh_seeds("rl_reason ladders", 8),
      reference="naive GRPO",
      common={
          "sft.batch": 64,  # the default when these were measured
          "rl.steps": 30,
          "rollout.max_tokens": 64,
          "updates.minibatches": 16,
          "evaluate.samples": 4,
          "evaluate.prompts": 400,
          "evaluate.interim_prompts": 200,
          "evaluate.batch": 200,
          "evaluate.every": 6,
      },
      rows=rows,
      measures=("training accuracy", "entropy", "truncation", "pass@4"),
  )
