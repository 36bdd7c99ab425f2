"""Where the name of a config becomes a file: in a clone, or installed."""

import pathlib

from rl_reason import configs
from rl_reason.functions import ConfigError, did_you_mean

FOLDER = pathlib.Path(next(iter(configs.__path__)))


def find(path: str) -> tuple[pathlib.Path, str]:
  """The file of a config, and a line for the screen if a preset is meant.

  Args:
    path: a file; or the name of a preset, such as 'dapo' or 'paper/dapo'; or
      its path in a clone, 'configs/dapo.py', where there is no clone.

  Raises:
    ConfigError: there is no such file, and no preset of this name.
  """
  file = pathlib.Path(path)
  if file.is_file():
    return file, ""
  name = path.removeprefix("configs/").removesuffix(".py")
  preset = FOLDER / f"{name}.py"
  if preset.is_file() and not file.is_absolute() and ".." not in file.parts:
    return preset, f"--config = {path}: not a file here; uses {preset}"
  known = [
      str(x.relative_to(FOLDER).with_suffix("")) for x in FOLDER.rglob("*.py")
  ]
  raise ConfigError(f"{path}: there is no such file{did_you_mean(name, known)}")
