"""A whole GRPO step, sampling and update, beside the peers'.

python -m bench.rl_step --peer=tunix --peer=trl           # about 4 minutes
python -m bench.rl_step --peer=tunix --peer=trl --sweep   # about 15 minutes
"""

from bench import harness

MICRO = [dict(micro=m) for m in (16, 32, 64)]
TRIED = [x | dict(batch=64) for x in MICRO]
TABLE = harness.Table(
    name="rl_step",
    title="A whole GRPO step",
    about=(
        "Sample 8 responses to each of 8 prompts, 32 and 128 tokens, score"
        " them by a constant, and update once. The peers run their own trainer"
        " loops."
    ),
    task="rl_step",
    cases={"even": harness.Size(64, 32, 128, tail=False)},
    tried=dict(ours=MICRO, tunix=TRIED, trl=MICRO),
)

if __name__ == "__main__":
  harness.main(TABLE)
