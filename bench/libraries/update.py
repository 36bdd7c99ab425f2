"""The GRPO update on fixed responses, with the peers.

python -m bench.libraries.update --peer=tunix --peer=trl   # about 3 minutes
python -m bench.libraries.update --peer=trl --sweep        # about 15 minutes
"""

from bench import harness, tables

MICRO = [dict(micro=m) for m in (16, 8, 32, 64)]
TABLE = tables.Table(
    name="update",
    title="GRPO update",
    about=(
        "How fast is the update, with full rows and with short ones? One"
        " optimizer step: forward, backward, gradient clipping by norm,"
        " AdamW, no KL, on 64 rows of 32 prompt tokens and at most 128 response"
        " tokens. `even`: all responses have 128 tokens. `tail`: lengths are"
        " log-normal. Tokens/s counts response tokens."
    ),
    task="update",
    cases={
        "even": harness.Size(64, 32, 128, tail=False),
        "tail": harness.Size(64, 32, 128, tail=True),
    },
    options=dict(
        ours=[
            *MICRO,
            dict(micro=16, remat="none"),
            dict(micro=64, remat="none"),
        ],
        tunix=[*MICRO, dict(micro=64, remat="DECODER")],
        trl=[*MICRO, dict(micro=64, checkpointing=True)],
    ),
)

if __name__ == "__main__":
  tables.main(TABLE)
