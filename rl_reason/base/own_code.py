"""Code of the user: where it is found, and what is said if it fails."""

import contextlib
import hashlib
import pathlib
import sys
import sysconfig
import traceback
import types

from rl_reason import configs
from rl_reason.base.errors import ConfigError, did_you_mean, one_line

_LIBRARIES = {"site-packages", "dist-packages"}
# Whose code is not the user's: this package, its presets, and Python.
_NOT_OWN = (
    pathlib.Path(__file__).parents[1],
    *(pathlib.Path(x).resolve() for x in configs.__path__),
    pathlib.Path(sysconfig.get_paths()["stdlib"]).resolve(),
)


def raised(e: BaseException) -> str:
  """What the user's code raised, and where: "KeyError: 'x' (mine.py:3, in f)".

  The place is left out if no code of the user raised the exception.
  """
  if isinstance(e, SyntaxError) and e.filename:
    return f"{type(e).__name__}: {e.msg} ({_place(e.filename, e.lineno or 0)})"
  found = place(e)
  return f"{type(e).__name__}: {one_line(e)}{f' ({found})' if found else ''}"


def report(e: BaseException) -> str:
  """`raised`, and the whole traceback below."""
  return f"{raised(e)}\n{''.join(traceback.format_exception(e))}"


def ended(e: SystemExit) -> str:
  """What is wrong with code that ends the process, as `sys.exit` does."""
  return (
      f"{place(e) or 'a module'}: ended the process (SystemExit: {e.code}), as"
      " sys.exit, exit, quit and the arguments of argparse do: code of a run"
      " raises an exception instead, and what a script does stands under if"
      " __name__ == '__main__':"
  )


def explained(e: BaseException) -> str:
  """`raised` of an exception of the user's code; our own need no type."""
  ours = isinstance(e, ValueError) and not place(e)
  return one_line(e) if ours else raised(e)


def place(e: BaseException) -> str:
  """FILE:LINE of the last line in a file of the user that raised, or ''.

  Files of Python, of libraries and of this package are not the user's.
  """
  return place_of(traceback.extract_tb(e.__traceback__))


def place_of(stack: traceback.StackSummary) -> str:
  """FILE:LINE of the last line in a file of the user, or ''."""
  for frame in reversed(stack):
    if _is_own(frame.filename):
      inside = "" if frame.name[0] == "<" else f", in {frame.name}"
      return _place(frame.filename, frame.lineno or 0) + inside
  return ""


def _is_own(file: str) -> bool:
  """Whether a file is the user's."""
  path = pathlib.Path(file).resolve()
  library = _LIBRARIES & set(path.parts) or file[0] == "<"
  return not library and not any(path.is_relative_to(x) for x in _NOT_OWN)


def digests() -> dict[str, str]:
  """The imported modules of the user by name, with hashes of their files."""
  out = {}
  for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if isinstance(file, str) and file.endswith(".py") and _is_own(file):
      with contextlib.suppress(OSError):  # removed since, or in a zip file
        content = pathlib.Path(file).read_bytes()
        out[name] = hashlib.sha256(content).hexdigest()[:16]
  return out


def _place(file: str, line: int) -> str:
  """FILE:LINE; files below the working directory by their relative path."""
  path, here = pathlib.Path(file), pathlib.Path.cwd()
  shown = path.relative_to(here) if path.is_relative_to(here) else path
  return f"{shown}:{line}"


def not_imported(module: str, e: BaseException) -> str:
  """Why a module of the user cannot be imported."""
  if isinstance(e, ConfigError):
    return str(e)
  here = pathlib.Path.cwd()
  if module.endswith(".py") or "/" in module:
    plain = module.removesuffix(".py").strip("./").replace("/", ".")
    return f"name the module without path and suffix: {plain}:FUNCTION"
  names = module.split(".")
  starts = {".".join(names[: n + 1]) for n in range(len(names))}
  if not isinstance(e, ModuleNotFoundError) or e.name not in starts:
    return raised(e)
  there = sorted(x.stem for x in here.glob("*.py"))
  return (
      f"there is no module {e.name}: no {e.name}.py in {here}, and none is"
      f" installed{did_you_mean(module, there)}"
  )


def lacks(module: types.ModuleType, name: str) -> str:
  """Says that a module has no such name, and which functions it has."""
  there = [
      x
      for x, value in vars(module).items()
      if callable(value)
      and x[0] != "_"
      and getattr(value, "__module__", "") == module.__name__
  ]
  has = f"it has {', '.join(there)}" if there else "it has no functions"
  hint = did_you_mean(name, there) or ";"
  return f"{module.__name__} has no {name}{hint} {has}"


def search_working_directory() -> None:
  """Lets modules and configs of the working directory be imported.

  It is searched last: its files replace no module of Python or of a library.
  """
  if str(pathlib.Path.cwd()) not in sys.path:
    sys.path.append(str(pathlib.Path.cwd()))


def refuse_hidden(module: str, origin: str | None) -> None:
  """Refuses a module of Python or of a library that hides the user's file."""
  own = pathlib.Path.cwd() / f"{module}.py"
  libraries = {"site-packages", "dist-packages"}
  hides = libraries & set(pathlib.Path(origin or "").parts)
  if own.is_file() and (hides or module in sys.stdlib_module_names):
    raise ConfigError(
        f"{own} is hidden by {origin or 'a module of Python'}: give the file"
        " another name"
    )
