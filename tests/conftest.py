"""Eight virtual CPU devices for every test, before jax is imported."""

import collections
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import sys
import tempfile

from rl_reason.report import rendering

os.environ["JAX_PLATFORMS"] = "cpu"
# Compiling with less optimization, by XLA's older code generator, takes less
# time. Level 0 makes collectives of eight devices deadlock; a child process has
# one device. With TEST_AS_USERS=1, as in `.ci/run --slow`, programs are those
# of a run of a user.
FASTER = " --xla_backend_optimization_level="
if importlib.metadata.version("jaxlib").startswith("0.10."):  # 0.11 has one
  if not os.environ.get("TEST_AS_USERS"):
    FASTER = f" --xla_cpu_use_fusion_emitters=false{FASTER}"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=8{FASTER}1"
QUICK = f"{FASTER}0"
# Runs keep compiled programs in the user's cache, where tests write nothing.
os.environ.setdefault("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
CACHE = tempfile.TemporaryDirectory(prefix="rl_reason-")
os.environ["XDG_CACHE_HOME"] = CACHE.name
# All processes of a test run share compiled programs: most are compiled again
# and again, by other tests and other workers.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{CACHE.name}/programs")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # configs/, tests' helpers


def example(name: str):
  """A script of examples/ as a module, anew."""
  path = ROOT / "examples" / f"{name}.py"
  spec = importlib.util.spec_from_file_location(f"example_{name}", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def pytest_xdist_auto_num_workers(config) -> int:
  """One more than the cores: some tests wait for processes and deadlines."""
  del config
  own = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
  return len(own(0)) + 1


def pytest_ignore_collect(collection_path, config) -> bool | None:
  """Imports no module of slow tests where none of them would run."""
  slow = collection_path.name in ("slow", "studies")
  if not slow or config.option.markexpr != "not slow":
    return None
  named = (pathlib.Path(x.split("::")[0]).resolve() for x in config.args)
  return not any(collection_path in (x, *x.parents) for x in named)


def pytest_terminal_summary(terminalreporter):
  """Counts what was skipped and why, in the line before the last one."""
  reports = terminalreporter.stats.get("skipped", [])
  reasons = collections.Counter(map(_reason, reports))
  if reasons:
    shown = "; ".join(f"{n} {why}" for why, n in reasons.most_common())
    terminalreporter.write_line(f"{len(reports)} skipped: {shown}")


def _reason(report) -> str:
  """Why a test was skipped, or a whole file; a package by its name."""
  why = report.longrepr[2].removeprefix("Skipped: ")
  missing = re.match(r"could not import '(\w+)", why)
  why = f"without {missing[1]}" if missing else why
  return why if "::" in report.nodeid else f"file {why}"


def child_env(cache=None) -> dict[str, str]:
  """Environment of a child process: one device, a warm compilation cache."""
  env = os.environ | {
      "XLA_FLAGS": QUICK,
      "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
      "PYTHONUNBUFFERED": "1",
  }
  if cache is not None:
    env["JAX_COMPILATION_CACHE_DIR"] = str(cache)
    env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
  return env


def restore_arrays(path):
  """An orbax checkpoint as numpy arrays, whatever devices it came from."""
  import jax
  import numpy as np
  import orbax.checkpoint as ocp

  with ocp.StandardCheckpointer() as checkpointer:
    metadata = checkpointer.metadata(path).item_metadata.tree
    like = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), metadata)
    return checkpointer.restore(path, like)


def data_of_page(page: str, name: str, folder=rendering.HERE) -> dict:
  """The data of NAME.html.in as a browser reads them, checked for escapes."""
  import json

  empty = rendering.render(name, None, folder)
  for mark in "<>&":
    assert page.count(mark) == empty.count(mark)
  for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write"):
    assert word not in empty
  # The page loads nothing.
  assert not re.search(
      r"https?:|//[a-z]+\.|\bsrc=|\bhref=|@import|url\(", empty
  )
  assert "default-src 'none'" in empty
  _, _, rest = page.partition('<script type="application/json" id="data">')
  return json.loads(rest.partition("</script")[0])


def found_in_browser(page, probe):
  """What a script at the end of a page leaves as FOUND + JSON + FOUND."""
  import html
  import json
  import subprocess

  import pytest

  text = page.read_text(encoding="utf-8")
  page.write_text(text + probe, encoding="utf-8")
  done = subprocess.run(
      ["chromium", "--headless", "--no-sandbox", "--disable-gpu"]
      + ["--disable-quic", "--no-first-run", "--disable-background-networking"]
      + ["--disable-component-update", "--disable-sync"]
      + [f"--user-data-dir={page.parent / 'profile'}", "--dump-dom"]
      + [page.as_uri()],
      capture_output=True,
      text=True,
      timeout=120,
  )
  if "<body" not in done.stdout:
    pytest.skip("chromium does not start here")
  return json.loads(html.unescape(done.stdout.split("FOUND")[1]))
