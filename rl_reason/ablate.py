"""The command `python -m rl_reason.ablate`; see `lab/ablate.py`."""

from rl_reason.lab import ablate

if __name__ == "__main__":
  ablate.command()
