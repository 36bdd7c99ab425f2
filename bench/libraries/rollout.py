"""Sampling: useful tokens per second, with the peers.

python -m bench.libraries.rollout --peer=tunix --peer=trl   # about 10 minutes
python -m bench.libraries.rollout --peer=trl --sweep        # about 40 minutes
"""

from bench import harness, tables

BATCHES = [dict(batch=b) for b in (64, 128, 256, 32)]
TABLE = tables.Table(
    name="rollout",
    title="Sampling",
    about=(
        "How fast is sampling, with lengths that vary and with equal ones?"
        " Random weights, temperature 1. `tail`: lengths are a fixed log-normal"
        " trace, clipped at 512; every system samples EOS exactly at the length"
        " limit of a row, so that all sample the same number of tokens, and"
        " only these count. `even`: no row ends early. Every row has its own"
        " prompt."
    ),
    task="rollout",
    cases={
        "tail": harness.Size(256, 32, 512, tail=True, group=1),
        "even": harness.Size(64, 32, 128, tail=False, group=1),
    },
    options=dict(
        ours=[dict(slots=n) for n in (64, 32, 128, 16)],
        tunix=BATCHES,
        trl=[
            dict(batch=64),
            dict(batch=32),
            dict(batch=64, engine="continuous"),
            dict(batch=128, engine="continuous"),
        ],
    ),
)

if __name__ == "__main__":
  tables.main(TABLE)
