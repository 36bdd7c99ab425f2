"""Makes a peer's environment: python -m bench.peers --install tunix --venv DIR.

Versions are those of the committed tables. Python 3.11 or 3.12, no accelerator.
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
        "torch==2.13.0",  # its CPU build, where the index has it
        "transformers==5.23.0",
        "--extra-index-url=https://download.pytorch.org/whl/cpu",
    ],
}


def main() -> None:
  """Installs one peer."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--install", choices=harness.PEERS, required=True)
  parser.add_argument("--venv", type=pathlib.Path)
  given = parser.parse_args()
  directory = given.venv or harness.ENVIRONMENTS / given.install
  venv.create(directory, with_pip=True)
  pip = [directory / "bin" / "python", "-m", "pip", "install"]
  subprocess.run([*pip, *REQUIREMENTS[given.install]], check=True)


if __name__ == "__main__":
  main()
