"""Work directories: names, one run at a time, and paths that move."""

import errno
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import pytest
from conftest import ROOT, child_env

from rl_reason import run
from rl_reason.base import config, errors, resume_rules
from rl_reason.base.errors import RunError
from rl_reason.base.fields import FIELDS
from rl_reason.checks import (
    config_checks,
    config_files,
    path_contents,
    run_directory,
)
from rl_reason.monitoring import display
from rl_reason.stages import trained_parameters

DAPO = "configs/dapo.py"


def name_of(path, **given):
  given = {name.replace("__", "."): value for name, value in given.items()}
  return run_directory.default(
      path, config_checks.checked(path, given)[0], given
  ).name


@pytest.fixture(autouse=True)
def checkout(monkeypatch):
  monkeypatch.chdir(ROOT)


# --- names -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        (" \t", "is empty"),
        ("s3://bucket/run", "is an address"),
        ("file:///tmp/run", "is an address"),
        ("runs/${NAME}", "not replaced ${NAME}"),
        ("$RUN/a", "not replaced $RUN"),
        ("--config=dapo", "is a flag"),
        ("runs/a\nb", "end of line"),
        ("runs/a b, (1)$-x:y\u3000", ""),
        ("-", ""),
    ],
)
def test_what_is_no_name_of_a_work_directory(text, words):
  why = run_directory.why_no_name(text)
  assert words in why and bool(words) == bool(why)


def test_no_run_begins_in_a_place_of_others(tmp_path, monkeypatch):
  """What is left of '$RUNS/', '$HOME/$NAME' and 'runs/$NAME'."""
  c = config_checks.checked(DAPO, {})[0]
  monkeypatch.setenv("HOME", str(tmp_path))
  with pytest.raises(errors.ConfigError, match="= /: is the root"):
    run_directory.check(pathlib.Path("/"), c)
  with pytest.raises(errors.ConfigError, match="is the home directory"):
    run_directory.check(tmp_path, c)
  (tmp_path / "runs/a").mkdir(parents=True)
  (tmp_path / "runs/a/metrics.jsonl").touch()
  run_directory.check(tmp_path / "runs", c)  # it may be of another program
  (tmp_path / "runs/a/config.json").touch()
  with pytest.raises(errors.ConfigError, match=r"of other runs \(a\)"):
    run_directory.check(tmp_path / "runs", c)


def test_names_are_those_of_the_changed_fields():
  assert name_of("dapo") == name_of(DAPO) == "dapo"
  assert name_of("configs/paper/dapo.py:smoke") == "paper-dapo-smoke"
  # Neither what the file sets anyway, nor what changes no number.
  assert name_of(DAPO, seed="0", rollout__slots="8", rl__steps="9") == "dapo"
  small = dict(optimizer__lr="1e-3", surrogate__args__clip_low="0.10")
  same = dict(optimizer__lr="0.001", surrogate__args__clip_low=".1")
  want = "dapo,optimizer.lr=0.001,surrogate.args.clip_low=0.1"
  assert name_of(DAPO, **small) == name_of(DAPO, **same) == want
  odd = dict(task__difficulties="(2, 3)", tokenizer="a/b c'")
  assert name_of(DAPO, **odd) == "dapo,task.difficulties=2+3,tokenizer=a_b_c_"


def test_a_name_is_short_however_many_fields_change():
  fields = {
      name: str(spec.default + 1)
      for name, spec in FIELDS.items()
      if type(spec.default) is int and name.startswith(("evaluate.", "log."))
  }
  fields |= dict(seed="1", tokenizer="t" * 300)
  fields["model.path"] = "x" * 90
  c = config_files.read(DAPO)
  config.override(c, fields)
  whole = run_directory.default(DAPO, c, fields).name
  assert whole.startswith("dapo,evaluate.") and len(whole) <= 80
  assert whole == run_directory.default(DAPO, c, fields).name
  c.tokenizer = "t" * 299 + "u"
  other = run_directory.default(DAPO, c, fields).name
  assert other != whole and other[:-8] == whole[:-8]


# --- locks -------------------------------------------------------------------

HOLD = """
import pathlib, sys, time
from rl_reason.checks import run_directory
lock = run_directory.lock(pathlib.Path(sys.argv[1]), print)
print("locked", flush=True)
time.sleep(60)
"""


def test_the_second_run_is_refused_by_name_and_a_dead_one_is_not(tmp_path):
  child = subprocess.Popen(
      [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE
  )
  try:
    assert child.stdout.readline() == b"locked\n"
    words = rf"another run writes to it \(pid {child.pid} on .* since"
    with pytest.raises(errors.ConfigError, match=words):
      run_directory.lock(tmp_path, print)
  finally:
    child.kill()
    child.wait()
    child.stdout.close()
  run_directory.lock(tmp_path, print).close()
  with run_directory.lock(tmp_path, print):  # a closed one is free
    assert f"pid {os.getpid()} on" in (tmp_path / "lock").read_text()


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
  def refuse(*_):
    raise OSError(errno.ENOLCK, "No locks available")

  monkeypatch.setattr(fcntl, "flock", refuse)
  lines = []
  run_directory.lock(tmp_path, lines.append).close()
  assert "No locks available" in lines[0] and "no second run" in lines[0]


def test_what_changes_no_number_may_differ_in_a_run_that_is_reused():
  here = {"model.remat": "none", "model.layers": 2}
  there = {"model.remat": "sqrt", "model.layers": 2}
  trained_parameters.require_equal("sft.reuse = a", here, there, ("model.",))
  with pytest.raises(RunError, match="a: model.layers is 4 there and 2 here"):
    trained_parameters.require_equal(
        "a", here, there | {"model.layers": 4}, ("model.",)
    )


@pytest.mark.parametrize("name", ["model.path", "tokenizer"])
def test_equal_files_at_another_place_may_be_reused(name):
  def run(place, content):
    return {name: place, f"content.{name}": content}

  require = trained_parameters.require_equal
  require("sft.reuse = a", run("/new", "6eb"), run("/old", "6eb"))
  for content in ("7fc", ""):
    with pytest.raises(RunError, match=f"{name} is '/old' there"):
      require("sft.reuse = a", run("/new", content), run("/old", "6eb"))
  with pytest.raises(RunError, match=f"{name} is '/old' there"):
    require("sft.reuse = a", run("/new", "6eb"), {name: "/old"})


# --- paths that move ---------------------------------------------------------


@pytest.fixture
def files(tmp_path):
  """A config whose paths are small files."""
  here = tmp_path / "here"
  model, old = here / "model", here / "old"
  for path in (model, old / "checkpoints" / "sft" / "3"):
    path.mkdir(parents=True)
  (model / "model.safetensors").write_bytes(bytes(3 * path_contents.BLOCK))
  (model / "config.json").write_text("{}")
  (old / "checkpoints" / "sft" / "3" / "host.json").write_text("{}")
  rows = "".join(f'{{"question": "{i}", "answer": "1"}}\n' for i in range(9))
  (here / "train.jsonl").write_text(rows)
  c = config_files.read(DAPO)
  c.model.path = c.tokenizer = str(model)
  c.sft.reuse = str(old)
  c.data.train = f"gsm8k@{here}/train.jsonl*2"
  return c


def moved(c, old, new):
  """The config with every path below `old` moved to `new`."""
  shutil.copytree(old, new)
  (new / "model" / "README.md").write_text("decides no number")
  fields = config.flat(c)
  return config.unflat(
      {
          name: x.replace(str(old), str(new)) if isinstance(x, str) else x
          for name, x in fields.items()
          if not name.startswith("content.")
      }
  )


@pytest.mark.parametrize(
    ("file", "field"),
    [
        (None, None),
        ("model/model.safetensors", "model.path"),
        ("old/checkpoints/sft/3/host.json", "sft.reuse"),
        ("train.jsonl", "data.train"),
    ],
)
def test_a_path_may_move_with_its_content(files, tmp_path, file, field):
  path_contents.record(files)
  workdir = tmp_path / "run"
  workdir.mkdir()
  (workdir / "config.json").write_text(json.dumps(config.flat(files)))
  there = tmp_path / "there"
  c = moved(files, tmp_path / "here", there)
  if file is None:
    run_directory.check(workdir, c)
    path_contents.record(c)  # as a checkpoint compares it
    assert not resume_rules.differences(config.flat(files), config.flat(c))
    return
  text = bytearray((there / file).read_bytes())
  text[len(text) // 2] ^= 1
  (there / file).write_bytes(text)
  with pytest.raises(errors.ConfigError, match=rf"{field}: .*there"):
    run_directory.check(workdir, c)


def test_a_file_that_is_gone_has_no_content(files, tmp_path):
  assert path_contents.content(files, "critic.path") == ""
  shutil.rmtree(tmp_path / "here" / "old" / "checkpoints")
  assert path_contents.content(files, "sft.reuse") == ""


def test_samples_are_written_by_one_run(tmp_path):
  """Beside one that trains, but not beside another one that samples."""
  c, place = config_checks.checked("dapo:smoke", {})[0], tmp_path / "generated"
  place.mkdir()
  flags = display.Display(False), threading.Event()
  with (
      run_directory.lock(tmp_path, print),
      run_directory.lock(place, print),
      pytest.raises(errors.ConfigError, match="generated: another run writes"),
  ):
    run.stages(c, tmp_path, *flags, stage="generate")


@pytest.mark.slow
def test_the_command_locks_its_directory(tmp_path):
  argv = [sys.executable, "-m", "rl_reason.main", "--config=dapo:smoke"]
  argv += ["--stage=sft", f"--workdir={tmp_path}"]
  with run_directory.lock(tmp_path, print):
    done = subprocess.run(argv, env=child_env(), capture_output=True, text=True)
  assert done.returncode == 2 and not (tmp_path / "config.json").exists()
  assert f"another run writes to it (pid {os.getpid()} on" in done.stderr
  subprocess.run(argv, env=child_env(), check=True)
