"""Metadata of the package; the tools are configured in pyproject.toml."""

import pathlib
import re
import sys

import setuptools

# pip compares python_requires last, and looks for all dependencies first: their
# newest versions for an old Python are not those that are needed.
if sys.version_info < (3, 11):  # noqa: UP036
  sys.exit(
      "rl_reason needs Python 3.11 or newer, and this is Python {}.{}: make an"
      " environment with a newer one, as by `python3.11 -m venv env`".format(
          *sys.version_info[:2]
      )
  )

FIGURES = ["matplotlib>=3.9"]  # PNG, SVG and PDF: docs/comparing.md
GGUF = ["gguf>=0.17"]  # files of llama.cpp as model.path: docs/evaluation.md
# --stage=serve, see docs/serving.md
SERVE = [
    "h11>=0.14",
    "prometheus-client>=0.21",
    "pydantic>=2.10",
    "starlette>=0.46",
    "uvicorn>=0.34",
]
HERE = pathlib.Path(__file__).parent
PRESETS = setuptools.find_namespace_packages(HERE / "configs")


def version() -> str:
  """`__version__`, read as text: nothing is installed yet to import it."""
  text = (HERE / "rl_reason" / "__init__.py").read_text()
  return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)[1]


setuptools.setup(
    name="rl_reason",
    version=version(),
    description="RL of reasoning language models in JAX, as pure functions",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[
        *setuptools.find_packages(include=["rl_reason", "rl_reason.*"]),
        *map("rl_reason.configs.{}".format, PRESETS),
        "rl_reason.launch",
    ],
    package_dir={"rl_reason.configs": "configs", "rl_reason.launch": "launch"},
    package_data={
        "": ["*.html", "*.in", "*.json", "*.toml"],
        "rl_reason.launch": ["*.sh", "*.sbatch", "*.yaml"],
    },
    entry_points={"console_scripts": ["rl_reason = rl_reason.main:main"]},
    # Bounded above where a minor version may change what the code relies on:
    # meshes and shardings, the format of checkpoints, structs.
    install_requires=[
        "absl-py>=2.1",
        "array-record>=0.8",
        "chex>=0.1.90",
        "flax>=0.12.8,<0.13",
        "grain>=0.2.18",
        "huggingface-hub>=1.0",
        "jax>=0.10.2,<0.12",
        "jinja2>=3.1",  # transformers' chat templates, which do not ask for it
        "math-verify>=0.9,<0.10",
        "ml-collections>=1.1",
        "mpmath>=1.3",  # also sympy's, which math-verify brings
        "numpy>=2.0,<3",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12.8,<0.13",
        "pyarrow>=20",
        "rich>=13.7",
        "safetensors>=0.5",
        "scipy>=1.13",
        "tensorboardX>=2.6.4",
        "tokenizers>=0.22",
        "transformers>=5.0,<6",
    ],
    extras_require={
        "test": [
            *GGUF,
            *SERVE,
            "httpx>=0.27",
            "hypothesis>=6.100",
            "ipykernel>=6.29",
            "mypy>=1.15",
            "nbclient>=0.10",
            "nbformat>=5.10",
            "pyink>=26.5,<27",  # what it writes changes once a year
            "pytest>=8.3",
            "pytest-xdist>=3.7",
            "ruff>=0.12",
            "setuptools>=77",  # builds the wheel that a test installs
        ],
        "figures": FIGURES,
        "gguf": GGUF,
        "serve": SERVE,
        "dev": ["cosmic-ray>=8.7", "uv>=0.9"],  # mutants, .ci/lock
        "loggers": ["trackio>=0.40", "wandb>=0.22"],  # see docs/monitoring.md
        "docs": [  # mkdocs serve
            "mkdocs>=1.6,<2",
            "mkdocs-material>=9.6,<10",
            "mkdocstrings[python]>=1.0,<2",
        ],
        # A hyphen: pip before 23.3 finds no extra with an underscore.
        "reasoning-gym": ["reasoning-gym>=0.1.25,<0.2"],  # see docs/tasks.md
        "interop": [  # what tests/slow lets talk to this package
            "lm-eval>=0.4.13",
            "openai>=2.54",
            "openenv-core>=0.3",
            "playwright>=1.50",  # with chromium of the system
            "verifiers>=0.4",
        ],
        "notebooks": [
            "ipykernel>=6.29",
            *FIGURES,
            "nbclient>=0.10",
            "nbformat>=5.10",
        ],
        # Bounded by the jax above; each pins its own jaxlib and plugin.
        "tpu": ["jax[tpu]"],
        "cuda13": ["jax[cuda13]"],  # driver 580 or newer
        "cuda12": ["jax[cuda12]"],  # driver 525 or newer
        # Reference numbers only. The CPU build is enough, and 5 GB smaller:
        # --extra-index-url=https://download.pytorch.org/whl/cpu
        "parity": ["compressed-tensors==0.20.0", "torch==2.13.0"],
    },
)
