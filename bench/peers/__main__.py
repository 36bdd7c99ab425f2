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
        "torch==2.13.0",
        "transformers==5.23.0",
    ],
    # What the functions of conformance/adapters import of them.
    "verl": [
        *("torch==2.13.0", "tensordict==0.10.0", "transformers==5.10.4"),
        *("ray==2.60.0", "omegaconf==2.3.1", "hydra-core", "codetiming"),
        *("torchdata", "datasets", "pandas", "peft", "pillow", "packaging<26"),
        *("aiohttp", "cachetools", "fastapi", "uvicorn"),
    ],
    "areal": [  # only its mask of M2PO, a function of tensors, is compared
        "torch==2.13.0",
        "numpy",
    ],
    "openrlhf": [
        *("torch==2.13.0", "transformers==5.15.0", "einops", "tqdm"),
        "packaging",
    ],
}
# Builds of torch for CPUs; those of the default index are larger.
CPU_INDEX = "--extra-index-url=https://download.pytorch.org/whl/cpu"
# Their own requirements need a GPU.
ALONE = {
    "verl": "verl==0.9.1",
    "areal": "areal==1.0.4",
    "openrlhf": "openrlhf==0.11.2",
}


def main() -> None:
  """Installs one peer."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--install", choices=REQUIREMENTS, required=True)
  parser.add_argument("--venv", type=pathlib.Path)
  flags = parser.parse_args()
  directory = flags.venv or harness.ENVIRONMENTS / flags.install
  venv.create(directory, with_pip=True)
  python = directory / "bin" / "python"
  subprocess.run([python, "-m", "pip", "install", "uv"], check=True)
  # pip tries versions of what tunix needs for more than ten minutes. Of several
  # indexes, the best version counts, as with pip.
  uv = [directory / "bin" / "uv", "pip", "install", "--python", python]
  uv.append("--index-strategy=unsafe-best-match")
  wanted = [*uv, *REQUIREMENTS[flags.install]]
  if subprocess.run([*wanted, CPU_INDEX], check=False).returncode:
    print("again with the default index alone, whose build of torch is larger")
    subprocess.run(wanted, check=True)
  if flags.install in ALONE:
    subprocess.run([*uv, "--no-deps", ALONE[flags.install]], check=True)


if __name__ == "__main__":
  main()
