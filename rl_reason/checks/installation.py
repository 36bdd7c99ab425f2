"""Whether the packages are of versions that fit, and JAX has its devices."""

import difflib
import os
from importlib import metadata

from rl_reason.base.errors import ConfigError, one_line

# Platforms of JAX_PLATFORMS -> the extras that bring them; see setup.py.
_EXTRAS = {"cuda": "cuda12", "gpu": "cuda12", "tpu": "tpu"}
# Prefixes of the distributions that bring them.
_PLUGINS = {"cuda": "jax-cuda", "gpu": "jax-cuda", "tpu": "libtpu"}
_GPUS = ("cuda", "gpu")
_PLATFORMS = ("cpu", "gpu", "cuda", "rocm", "tpu", "metal")


def versions() -> None:
  """Checks the versions of all dependencies, without importing them.

  Raises:
    ConfigError: one is older than it may be, or missing.
  """
  lines = []
  for whole in ("rl_reason", "jax"):
    try:
      wanted = metadata.requires(whole) or []
    except metadata.PackageNotFoundError:  # a clone, which is not installed
      continue
    for text in wanted:
      name, low = _lowest(text)
      if low and (whole == "rl_reason" or name == "jaxlib"):
        lines.append(_too_old(name, low, whole))
  if lines := [*filter(None, lines)]:
    raise ConfigError(*lines)


def _lowest(requirement: str) -> tuple[str, str]:
  """'jax<0.12,>=0.10.2' -> ('jax', '0.10.2'); '' without a lower bound.

  Requirements of extras have no bound here.
  """
  plain, _, marker = requirement.partition(";")
  name = plain.strip()
  for mark in "[<>=!~ (":
    name = name.partition(mark)[0]
  _, _, low = plain.partition(">=")
  low = low.partition(",")[0].strip(" )")
  return name, "" if "extra" in marker else low


def _too_old(name: str, low: str, whole: str) -> str:
  """A line if a package is missing, or older than another one needs."""
  try:
    found = metadata.version(name)
  except metadata.PackageNotFoundError:
    found = ""
  if found and _number(found) >= _number(low):
    return ""
  have = f"{name} {found} is installed" if found else f"{name} is missing"
  more = "; docs/start.md says what brings a GPU or a TPU"
  return (
      f"{have}, and {whole} needs {name}>={low}: pip install -U"
      f" '{name}>={low}'{more if name in ('jax', 'jaxlib') else ''}"
  )


def _number(version: str) -> tuple[int, ...]:
  """'0.10.2.dev1' -> (0, 10, 2)."""
  parts = []
  for part in version.split("."):
    digits = part[: len(part) - len(part.lstrip("0123456789"))]
    parts.append(int(digits or 0))
    if digits != part:
      break
  return (*parts, 0, 0, 0)[:3]


def import_jax() -> None:
  """Imports JAX, which the signatures of functions need.

  Raises:
    ConfigError: JAX is too old, or cannot be imported.
  """
  versions()
  try:
    import jax  # noqa: F401
  except Exception as e:  # of any type: assertions, missing libraries
    raise ConfigError(_why_no_devices(e)) from e


def start_devices() -> None:
  """Imports JAX and starts its devices.

  Raises:
    ConfigError: JAX cannot be imported, or has no such devices.
  """
  import_jax()
  try:
    import jax

    jax.devices()
  except Exception as e:  # of any type: assertions, missing libraries
    raise ConfigError(_why_no_devices(e)) from e


def _why_no_devices(e: Exception) -> str:
  """What is wrong with the devices, and the remedy."""
  asked = os.environ.get("JAX_PLATFORMS", "")
  said = one_line(e)[:300]
  said = f" (JAX: {said})" if said != type(e).__name__ else ""
  if not asked:
    return f"JAX cannot start{said}: JAX_PLATFORMS=cpu takes the processor"
  remedies = []
  for whole in filter(str.strip, asked.split(",")):
    name = whole.strip().lower()
    near = difflib.get_close_matches(name, _PLATFORMS, 1)
    if whole not in _PLATFORMS:
      hint = f" (did you mean {near[0]}?)" if near else ""
      remedies.append(f"there is no platform {whole!r}{hint}")
    elif name in _EXTRAS and not _installed(_PLUGINS[name]):
      remedies.append(
          f"JAX is installed without {name}: pip install -e"
          f" '.[{_EXTRAS[name]}]' (docs/start.md)"
      )
    elif name != "cpu":
      see = "; see nvidia-smi, CUDA_VISIBLE_DEVICES" if name in _GPUS else ""
      remedies.append(f"no device of {name} answers{see}{said}")
  return (
      f"JAX_PLATFORMS = {asked}: {'; '.join(remedies) or said}. Without the"
      " variable JAX takes the devices that are there, and with"
      " JAX_PLATFORMS=cpu the processor"
  )


def _installed(prefix: str) -> bool:
  """Whether a distribution's name begins with a prefix."""
  names = (x.metadata["Name"] or "" for x in metadata.distributions())
  return any(x.lower().replace("_", "-").startswith(prefix) for x in names)
