"""Installs a peer: python -m bench.peers --install tunix --venv DIR.

The versions are the ones of the committed tables. Python 3.11 or 3.12, no
accelerator.
"""

import argparse
import pathlib
import subprocess
import venv

from bench import harness

REQUIREMENTS = {
    "tunix": [
        "google-tunix==0.1.7",
        "jax==0.10.2",
        "flax==0.12.8",
        "transformers==5.12.1",
    ],
    "trl": [
        "trl==1.16.0",
        "torch==2.13.0",  # the CPU build, if the index has it
        "transformers==5.23.0",
        "--extra-index-url=https://download.pytorch.org/whl/cpu",
    ],
}


def main() -> None:
  """Installs one peer."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--install", choices=harness.PEERS, required=True)
  parser.add_argument("--venv", type=pathlib.Path)
  flags = parser.parse_args()
  directory = flags.venv or harness.ENVIRONMENTS / flags.install
  venv.create(directory, with_pip=True)
  pip = [directory / "bin" / "python", "-m", "pip", "install"]
  subprocess.run([*pip, *REQUIREMENTS[flags.install]], check=True)


if __name__ == "__main__":
  main()
