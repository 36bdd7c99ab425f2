"""A complete GRPO step, sampling and update, with the peers.

python -m bench.libraries.rl_step --peer=tunix --peer=trl   # about 4 minutes
python -m bench.libraries.rl_step --peer=trl --sweep        # about 15 minutes
"""

from bench import harness, tables

MICRO = [dict(micro=m) for m in (16, 32, 64)]
TRIED = [x | dict(batch=64) for x in MICRO]
TABLE = tables.Table(
    name="rl_step",
    title="A complete GRPO step",
    about=(
        "How fast is a step of GRPO as a whole? Sample 8 responses of 128"
        " tokens to each of 8 prompts of 32 tokens,"
        " reward them without a verifier, and update once. The peers run their"
        " own trainer loops."
    ),
    task="rl_step",
    cases={"even": harness.Size(64, 32, 128, tail=False)},
    options=dict(ours=MICRO, tunix=TRIED, trl=MICRO),
)

if __name__ == "__main__":
  tables.main(TABLE)
