"""The configs that come with the package, and what else a user may name."""

import ast
import functools
import importlib
import json
import pathlib
import re
from collections.abc import Mapping

from rl_reason.base.errors import did_you_mean

# The folder of the presets, in a clone or installed.
FOLDER = pathlib.Path(
    next(iter(importlib.import_module("rl_reason.configs").__path__))
)
# The beginning of a config of one's own.
EXAMPLE = (
    "`from rl_reason.configs import dapo`, then `def get_config(): c ="
    " dapo.get_config(); ...; return c`"
)
_SETTINGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".sh", ".ipynb")
_ROWS = (".jsonl", ".parquet", ".csv", ".tsv", ".txt", ".gz", ".zst", ".arrow")


@functools.cache
def described() -> Mapping[str, str]:
  """The names of the presets -> what they are; no config is executed."""
  out = {}
  for folder in (FOLDER, *sorted(x for x in FOLDER.iterdir() if x.is_dir())):
    for file in sorted(folder.glob("*.py")):
      tree = ast.parse(file.read_text(encoding="utf-8"))
      made = [x for x in tree.body if getattr(x, "name", "") == "get_config"]
      if made and folder.name != "ablations":  # of several runs each
        text, _, _ = (ast.get_docstring(tree) or "").partition("\n")
        name = file.relative_to(FOLDER).with_suffix("")
        out[name.as_posix()] = text.removesuffix(".")
  return out


def listed() -> str:
  """A sentence with the names of the presets."""
  return (
      f"presets are {', '.join(described())}; --config=help says what each is"
  )


def explained(path: str) -> str:
  """Why a text of --config is no config; '' if it may be one.

  Args:
    path: as a user has typed it, without a variant.
  """
  file = pathlib.Path(path)
  if not path.strip():
    return f"names no config; {listed()}"
  if re.match(r"(config\.)?[a-z_.]+=", path):
    name = path.removeprefix("config.")
    return f"is no config file: a field is set by --config.{name}"
  if "," in path and not file.exists():
    return (
        "names several configs, and a command runs one: give a command for"
        " each; --stage=report --workdir=DIR,DIR compares their runs"
    )
  if (file / "config.json").is_file() or (
      file.name == "config.json" and _is_record(file)
  ):
    run = file if file.is_dir() else file.parent
    return f"is of a run: leave --config out, and give --workdir={run}"
  if file.is_dir():
    return "is a directory; name a file.py in it"
  if file.suffix in _SETTINGS:
    return (
        f"a config is a file of Python, FILE.py: {EXAMPLE}, where"
        " `c.rl.steps = 100` sets a field"
    )
  if file.suffix in _ROWS:
    return (
        "is no config: rows to train on are named by"
        f" --config=dapo_qwen --config.data.train={path}"
    )
  return ""


def _is_record(file: pathlib.Path) -> bool:
  """Whether a file is the config.json of a work directory."""
  try:
    return "surrogate.name" in json.loads(file.read_text())
  except (OSError, ValueError, TypeError):
    return False


def unknown(path: str) -> str:
  """What to name instead of a file that does not exist."""
  names = list(described())
  plain = re.sub(r"[^a-z0-9/]+", "_", path.lower().removesuffix(".py"))
  for start in ("configs_", "configs/", "rl_reason_configs_"):
    plain = plain.removeprefix(start)
  same = [x for x in names if x in (plain, plain.replace("_", "/"))]
  here = [str(x) for x in pathlib.Path().glob("*.py")]
  hint = (
      f"; did you mean {same[0]}?"
      if same
      else did_you_mean(path, [*names, *here]) or did_you_mean(plain, names)
  )
  if not hint and re.fullmatch(r"[\w-]+/[\w.-]+", path):
    if path.partition("/")[0] not in {x.partition("/")[0] for x in names}:
      hint = (
          f"; if it is a model, --config=dapo_qwen --config.model.path={path}"
      )
  if hint:
    end = "" if hint[-1] == "?" else ";"
    return f"{hint}{end} --config=help lists the presets"
  return f"; {listed()}"
