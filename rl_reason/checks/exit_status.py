"""The exit code and the line of a run that an exception ended."""

import contextlib
import errno
import pathlib
import shutil
import traceback

from rl_reason.base import errors, own_code
from rl_reason.data import datasets


def ending(
    error: BaseException, workdir: pathlib.Path | None
) -> tuple[int, str, bool]:
  """Explains an exception that ended a run.

  Args:
    error: the exception, with its causes.
    workdir: of the run; None: it is not known yet.

  Returns:
    the exit code, the line to show ('': the traceback), and whether the run
    stopped by itself; otherwise threads may still wait for a broken resource.
  """
  if isinstance(error, errors.ConfigError):
    return 2, "\n".join(f"config error: {x}" for x in error.lines), True
  if isinstance(error, errors.Stopped):
    return 143, "stopped by a signal; the same command resumes the run", True
  if isinstance(error, errors.RunError | datasets.DataError):
    return 1, f"error: {error}", True
  if isinstance(error, KeyboardInterrupt):  # before or after `run.stopping`
    return 130, "Ctrl-C: ended", True
  if isinstance(error, SystemExit):
    return 1, f"error: {own_code.ended(error)}", True
  causes: list[BaseException | None] = [error]
  while (last := causes[-1]) is not None:
    causes.append(last.__cause__ or last.__context__)
  for cause in causes[:-1]:
    for number, words in _FULL.items():
      if getattr(cause, "errno", None) == number or words in str(cause):
        free = shutil.disk_usage(workdir or ".").free / 2**20
        return (
            1,
            f"error: {workdir}: cannot be written ({words}; {free:.0f} MiB are"
            " free). Older checkpoints are whole: free some space, and the same"
            " command resumes the run",
            False,
        )
  if isinstance(error, OSError) and error.strerror:
    what = f"{error.filename or workdir}: {error.strerror}"
  elif "RESOURCE_EXHAUSTED" in str(error):
    what = (
        "out of memory: the same command with --stage=size estimates memory,"
        f" and docs/memory.md says which field helps ({_first_line(error)})"
    )
  elif type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError"):
    what = f"the device or its program failed: {_first_line(error)}"
  else:
    return 1, "", False
  if workdir:
    with contextlib.suppress(OSError):
      path = workdir / "traceback.txt"
      path.write_text("".join(traceback.format_exception(error)))
      what += f"; the traceback is in {path}"
    what += ". After a remedy the same command resumes the run"
  return 1, f"error: {what}", False


# Libraries that write checkpoints raise types of their own, with these words.
_FULL = {
    errno.ENOSPC: "No space left on device",
    errno.EDQUOT: "Disk quota exceeded",
    errno.EFBIG: "File too large",
}


def _first_line(error: BaseException) -> str:
  return str(error).strip().partition("\n")[0][:300]
