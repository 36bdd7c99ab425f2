"""The package as a user installs it: a wheel, in a directory of their own."""

import importlib
import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, child_env

from rl_reason.base import errors
from rl_reason.checks import config_files

MY_CONFIG = """
from rl_reason.configs import dapo

def get_config():
  c = dapo.get_config()
  c.rollout.group_size = 4
  c.updates.minibatches = 4
  return c
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
  """A directory with the installed wheel and nothing else; takes no network."""
  pytest.importorskip("setuptools", minversion="77")  # of pyproject.toml
  clone = tmp_path_factory.mktemp("clone")
  for name in ("rl_reason", "configs", "launch"):
    shutil.copytree(ROOT / name, clone / name)
  for name in ("setup.py", "pyproject.toml"):
    shutil.copy(ROOT / name, clone)
  site = tmp_path_factory.mktemp("site")
  subprocess.run(
      [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
      + ["--no-build-isolation", "--no-index", f"--target={site}", str(clone)],
      check=True,
  )
  shutil.rmtree(clone)
  return site


def test_a_wheel_has_every_preset(installed):
  here = {
      x.relative_to(ROOT / "configs")
      for x in config_files.PRESETS.rglob("*.py")
  }
  place = installed / "rl_reason" / "configs"
  assert {x.relative_to(place) for x in place.rglob("*.py")} == here
  assert list((installed / "rl_reason" / "report").glob("*.in"))
  assert (installed / "rl_reason" / "serve" / "chat.html").exists()


def test_a_wheel_starts_a_vllm_server(installed, tmp_path):
  """Errors name the script, which finds its worker."""
  code = "from rl_reason.rollout import vllm; print(vllm.SCRIPT)"
  script = subprocess.check_output(
      [sys.executable, "-c", code],
      cwd=tmp_path,
      env=os.environ | {"PYTHONPATH": str(installed)},
      text=True,
  ).strip()
  assert script == f"{installed}/rl_reason/launch/vllm.sh"
  env = os.environ | {"DRY_RUN": "1"}
  line = subprocess.check_output([script, "DIR"], env=env, text=True)
  assert "--model=DIR" in line
  assert os.path.exists(os.path.dirname(script) + "/vllm_worker.py")


CHILD = """
import sys
from rl_reason import main
from rl_reason.checks import config_files
for path in ("my.py", "grpo:smoke", "configs/paper/dapo.py"):
  main.FLAGS.unparse_flags()
  c, workdir = main._prepare(["main", f"--config={path}"])
  print(workdir, c.rollout.group_size)
print(config_files.PRESETS)
print("configs" in sys.modules)
"""


def test_a_wheel_works_without_a_clone(installed, tmp_path):
  """In a user's directory: their config, and presets by name or by path."""
  (tmp_path / "my.py").write_text(MY_CONFIG)
  done = subprocess.run(
      [sys.executable, "-c", CHILD],
      cwd=tmp_path,
      env=os.environ | {"PYTHONPATH": str(installed)},
      capture_output=True,
      text=True,
  )
  presets = installed / "rl_reason" / "configs"
  assert done.stdout.splitlines() == [
      "runs/my 4",
      f"--config = grpo: not a file here; uses {presets}/grpo.py",
      "runs/grpo-smoke 8",
      "--config = configs/paper/dapo.py: not a file here; uses"
      f" {presets}/paper/dapo.py",
      "runs/paper-dapo 16",
      str(presets),
      "False",
  ], done.stderr


@pytest.mark.slow
def test_an_installed_wheel_trains(installed, tmp_path):
  (tmp_path / "my.py").write_text(MY_CONFIG)
  subprocess.run(
      [sys.executable, "-m", "rl_reason.main", "--config=my.py:smoke"],
      cwd=tmp_path,
      env=child_env() | {"PYTHONPATH": str(installed)},
      check=True,
  )
  run = tmp_path / "runs" / "my-smoke"
  assert (run / "report.html").stat().st_size > 10_000


def test_a_preset_is_found_by_its_name(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name in ("dapo", "dapo.py", "configs/dapo.py"):
    file, line = config_files.find_file(name)
    assert file == ROOT / "configs" / "dapo.py" and str(file) in line
  (tmp_path / "dapo").write_text("")  # a file of the user comes first
  assert config_files.find_file("dapo")[1] == ""
  for name in ("../dapo", f"{tmp_path}/dapo.py"):
    with pytest.raises(errors.ConfigError, match="no such file"):
      config_files.find_file(name)
  with pytest.raises(errors.ConfigError, match="did you mean dapo"):
    config_files.read("dapoo")


def test_configs_of_a_checkout_are_those_of_the_package():
  for name in ("base", "paper.dapo", "ablations.clip_sweep"):
    ours = importlib.import_module(f"rl_reason.configs.{name}")
    checkout = importlib.import_module(f"configs.{name}")
    assert ours.__file__ == checkout.__file__
