"""The command line: errors are one line; overrides and work directories."""

import ast
import errno
import functools
import json
import os
import runpy
import signal
import subprocess
import sys
import time

import checkpoints
import pytest
from conftest import ROOT, child_env

import rl_reason
from configs import dapo
from rl_reason import main, run
from rl_reason.base import config, errors, functions
from rl_reason.checks import installation, named_code, presets, usage
from rl_reason.devices import compilation_cache
from rl_reason.lab import size
from rl_reason.monitoring import stop_signals

DAPO = "--config=configs/dapo.py"


def prepared(*flags):
  """The config and the work directory, in this process."""
  saved = main.FLAGS.flag_values_dict()
  try:
    return main._prepare(["main", *flags])
  finally:
    for name in ("config", "workdir", "stage", "step", "memory", "devices"):
      main.FLAGS[name].value = saved[name]


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--config=configs/nothing.py"], ["configs/nothing.py"]),
        ([DAPO + ":fast"], ["fast", "smoke"]),
        ([DAPO, "--config.surrogate.args.clip_hihg=0.3"], ["clip_high?"]),
        ([DAPO, "--config.rollout.group_size=many"], ["group_size", "many"]),
        ([DAPO, "--config.rollout.group_size=1"], ["use 2 or more"]),
        ([DAPO, "--wrkdir=x"], ["wrkdir"]),
        ([DAPO, "seed=1"], ["seed=1"]),
        ([], ["--config is missing", "presets are abs_kl, ", "vapo"]),
        (["--stage=report"], ["needs the --workdir of a run"]),
        (["--workdir=x", "--config.seed=1"], ["without --config"]),
        (["--stage=evaluate", "--workdir=nowhere"], ["nowhere", "config.json"]),
    ],
)
def test_a_mistake_is_named(flags, words, monkeypatch):
  monkeypatch.chdir(ROOT)
  with pytest.raises(errors.ConfigError) as e:
    prepared(*flags)
  assert "\n" not in str(e.value)
  for word in words:
    assert word in str(e.value)


@pytest.mark.parametrize("empty", ["", " ", "\t"])
@pytest.mark.parametrize("stage", ["all", "evaluate", "report", "serve"])
def test_an_empty_workdir_is_refused(empty, stage, tmp_path, monkeypatch):
  """The shell variable of its name has no value: nothing is written here."""
  monkeypatch.chdir(tmp_path)
  flags = [f"--workdir={empty}", f"--stage={stage}"]
  for more in [], ["--config=grpo"]:
    with pytest.raises(errors.ConfigError, match="--workdir = '.*': is empty"):
      prepared(*flags, *more)
  assert not [*tmp_path.iterdir()]


def test_a_mistake_is_one_line_and_exit_code_2():
  done = subprocess.run(
      [sys.executable, "-m", "rl_reason.main", DAPO]
      + ["--config.updates.minibatches=5"],
      cwd=ROOT,
      env=child_env(),
      capture_output=True,
      text=True,
  )
  assert done.returncode == 2
  assert done.stderr == (
      "config error: updates.minibatches = 5: must divide the 32 prompts of a"
      " batch: groups stay whole\n"
  )


@pytest.mark.parametrize(
    "words, shown",
    [
        (["--help"], ["--workdir", "Stages", "replay", "paper/vapo", "130"]),
        (["-h"], ["rl_reason --config=dapo:smoke"]),
        (["help"], ["rl_reason --config=dapo:smoke"]),
        ([DAPO, "--help"], ["rl_reason --config=dapo:smoke"]),
        (["--helpfull"], ["rl_reason --config=dapo:smoke"]),
        (["--version"], [f"rl_reason {rl_reason.__version__}"]),
        ([DAPO, "--stage=help"], ["size", "the memory that a run needs"]),
        (["--stage", "help"], ["evaluates checkpoints"]),
        (["--config=help"], ["DAPO (arXiv:2503.14476) on the built-in task"]),
    ],
)
def test_help(words, shown, capsys):
  assert main.command(["rl_reason", *words]) == 0
  out, err = capsys.readouterr()
  assert not err and all(x in out for x in shown)
  assert max(map(len, out.splitlines())) <= 90


def test_help_knows_every_stage_and_preset():
  assert list(usage.STAGES) == list(main.STAGES)
  assert {*usage._OTHER_NAMES.values()} <= {*main.STAGES}
  assert {*usage._OTHER_NAMES}.isdisjoint(main.STAGES)
  there = presets.described()
  assert all(there.values()) and {"dapo", "recipes/gsm8k_0_5b"} <= {*there}
  assert not {"variants", "paper/size", "ablations/chain"} & {*there}


@pytest.mark.parametrize("module", ["rl_reason", "rl_reason.main"])
def test_the_package_is_a_command(module, tmp_path):
  done = subprocess.run(
      [sys.executable, "-m", module, "--help"],
      cwd=tmp_path,
      env=child_env(),
      capture_output=True,
      text=True,
  )
  assert done.returncode == 0 and "--config=dapo" in done.stdout, done.stderr


@pytest.mark.parametrize("version", [(3, 10, 13), (3, 8, 18), (3, 6, 0)])
def test_an_old_python_is_told_the_version_that_is_needed(version, monkeypatch):
  """Before pip looks for dependencies, and without an installation."""
  for file, error in (
      (ROOT / "setup.py", SystemExit),
      (ROOT / "rl_reason" / "__init__.py", ImportError),
  ):
    old = version[:2] if version >= (3, 7) else (3, 7)
    ast.parse(file.read_text(), feature_version=old)
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(error, match=r"needs Python 3\.11 or newer.* 3\.\d+: "):
      runpy.run_path(str(file))
    monkeypatch.undo()


def test_overrides_and_the_work_directory(monkeypatch, capsys):
  monkeypatch.chdir(ROOT)
  c, workdir = prepared(
      DAPO + ":shuffled:smoke",
      "--config.surrogate.args.clip_low=0.1",
      "--config.rollout.batch",
      "128",
      "--config.data.chat",
      "--config.log.samples=2",
  )
  assert c.reward.shuffle and c.rl.steps == 3 and c.rollout.batch == 128
  assert c.surrogate.args.to_dict() == dict(
      clip_low=0.1, clip_high=0.28, dual_clip=10.0, log_ratio_max=20.0
  )
  assert str(workdir) == (
      "runs/dapo-shuffled-smoke,data.chat=true,rollout.batch=128,"
      "surrogate.args.clip_low=0.1"
  )
  said = capsys.readouterr().out.splitlines()
  assert len(said) == 1 and "data.chat = True: is for rows of files" in said[0]
  prepared(DAPO, "--config.surrogate.name=gspo")
  assert "surrogate.name = gspo: leaves out" in capsys.readouterr().out


def test_a_config_of_a_users_own(tmp_path, monkeypatch):
  """A file outside of configs/, with :smoke, a function, and no variants."""
  (tmp_path / "mine.py").write_text(
      "from configs import grpo\n"
      "def get_config():\n"
      "  c = grpo.get_config()\n"
      "  c.advantage.name = 'main_advantages:best'\n"
      "  return c\n"
  )
  (tmp_path / "main_advantages.py").write_text(
      "def best(rewards_B, *, scale: float = 1.0):\n  return rewards_B\n"
  )
  monkeypatch.syspath_prepend(str(ROOT))
  monkeypatch.chdir(tmp_path)
  flag = "--config.advantage.args.scale=2"
  c, workdir = prepared("--config=mine.py:smoke", flag)
  assert c.advantage.args.scale == 2 and c.rl.steps == 3
  assert str(workdir) == "runs/mine-smoke,advantage.args.scale=2"


@pytest.mark.parametrize(
    "name, value",
    [
        ("reward.functions", "length*-0.1,evil:reward*1"),
        ("advantage.name", "evil:advantage"),
        ("data.kind", "a.csv=evil:verify,math"),
        ("log.loggers", "tensorboard,evil:logger"),
        ("task.name", "evil"),
        ("rollout.engine.args.transfer", "evil:send"),
        ("rollout.engine.args.transfer", "evil"),
        ("reward.functions", "evil:*1"),
        ("reward.functions", "rules.json*1"),
        ("advantage.name", "evil:"),
        ("data.kind", "evil: f"),
        ("data.template", "math=evil:"),
        ("log.loggers", "evil:"),
        ("serve.filter", "evil:"),
    ],
)
def test_code_that_a_work_directory_names_is_not_run(
    tmp_path, monkeypatch, name, value
):
  """A stranger's run beside a module of the name that it gives.

  A stage refuses code that it would call, and leaves other code out.
  """
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [*sys.path])
  (tmp_path / "evil.py").write_text("raise SystemExit('it ran')\n")
  rule = dict(name="a", weight=1, function="evil:reward")
  (tmp_path / "rules.json").write_text(json.dumps([rule]))
  with pytest.raises(errors.ConfigError, match="like module:function"):
    functions.load("evil:")
  saved = config.flat(config.with_defaults(dapo.get_config()))
  path = tmp_path / "config.json"
  path.write_text(json.dumps(saved))
  called = {
      "evaluate": ("task.name", "data.kind", "data.template"),
      "export": (),
      "serve": ("serve.filter",),
      "generate": (name,),
  }
  for stage, fields in called.items():
    flags = f"--stage={stage}", f"--workdir={tmp_path}"
    path.write_text(json.dumps(saved))
    assert prepared(*flags)[0].rl.steps == saved["rl.steps"]
    path.write_text(json.dumps(saved | {name: value}))
    if name in fields:
      with pytest.raises(errors.ConfigError, match=f"{name} = .*give --config"):
        prepared(*flags)
    else:
      c, _ = prepared(*flags)
      assert not named_code.fields_with_code(config.flat(c))


@pytest.mark.parametrize("value", [None, "x", -1, [1], 10**30, {"a": 1}])
def test_a_config_that_was_edited_by_hand_is_refused(
    tmp_path, monkeypatch, value
):
  """Its fields are checked as a command line is."""
  monkeypatch.chdir(ROOT)
  saved = config.flat(config.with_defaults(dapo.get_config()))
  saved["sft.threshold"] = value
  (tmp_path / "config.json").write_text(json.dumps(saved))
  with pytest.raises(errors.ConfigError, match="json: sft.threshold = "):
    prepared("--stage=evaluate", f"--workdir={tmp_path}")


def test_a_work_directory_of_another_config_is_refused(tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  saved = config.flat(config.with_defaults(dapo.get_config()))
  path = tmp_path / "config.json"
  path.write_text(json.dumps(saved))
  prepared(
      DAPO, f"--workdir={tmp_path}", "--config.surrogate.args.clip_low=0.2"
  )
  path.write_text(json.dumps(saved | {"surrogate.args.clip_high": 0.25}))
  with pytest.raises(errors.ConfigError, match="clip_high: 0.25 -> 0.28"):
    prepared(DAPO, f"--workdir={tmp_path}")


def test_step_is_refused_by_stages_that_do_not_read_it(tmp_path):
  with pytest.raises(errors.ConfigError, match="--step = 20: is for --stage="):
    prepared(DAPO, f"--workdir={tmp_path}", "--step=20")


@pytest.mark.parametrize("flag", ["--devices=8", "--memory=80", "--devices=-1"])
def test_flags_of_size_are_refused_by_other_stages(flag, tmp_path):
  with pytest.raises(errors.ConfigError, match="is for --stage=size") as e:
    prepared(DAPO, f"--workdir={tmp_path}", flag)
  assert flag.partition("=")[0] in str(e.value)


@pytest.mark.parametrize("memory", [0.0, -5.0, float("nan"), float("inf")])
def test_the_memory_of_a_device_is_a_size(memory):
  with pytest.raises(errors.ConfigError, match="a positive number of GiB"):
    size.run(None, None, memory, 0)


def test_several_policies_of_one_evaluation(tmp_path, monkeypatch, capsys):
  """Runs and models; all with the noise of the first, which is said."""
  monkeypatch.chdir(tmp_path)
  saved = config.flat(config.with_defaults(dapo.get_config()))
  changes = {"a,seed=0": {}, "b": {"seed": 3, "evaluate.samples": 4}}
  for name, change in changes.items():
    (tmp_path / name).mkdir()
    text = json.dumps(saved | change)
    (tmp_path / name / "config.json").write_text(text)
  model = str(checkpoints.checkpoint(tmp_path / "model", "qwen2"))
  flags = "--stage=evaluate", "--workdir=a,seed=0,b,b", "--step=sft,20"
  c, workdir, *others = prepared(*flags, f"--config.evaluate.models={model}")
  assert str(workdir) == "a,seed=0"
  [(b, place, step), (of_model, directory, newest)] = others
  assert (str(place), step, newest) == ("b", "sft,20", "newest")
  assert directory == workdir / "models" / model.replace("/", "_").strip("_")
  assert (c.seed, b.seed, of_model.seed) == (0, 0, 0)
  assert (of_model.model.path, of_model.tokenizer) == (model, "")
  assert of_model.model.layers == 3 and of_model.sft.steps == 0
  assert c.sft.steps and c.model.layers != 3
  said = capsys.readouterr().out
  assert "b: sampled with seed 0, as a,seed=0 is" in said
  assert "warning: b is not evaluated as a,seed=0 is: evaluate.samples = 4" in (
      said
  )
  prepared(*flags, "--config.evaluate.samples=8")
  assert "warning" not in capsys.readouterr().out
  (tmp_path / "model" / "config.json").write_text("{}")
  for wrong, words in (
      ([*flags[:1], "--workdir=b,nowhere"], "nowhere: holds no run"),
      ([*flags, f"--config.evaluate.models={model}"], "evaluate.models: model"),
      ([DAPO, *flags], "leave --config out"),
      (["--stage=export", "--workdir=a,seed=0,b"], "a,seed=0,b: has no config"),
  ):
    monkeypatch.chdir(ROOT if DAPO in wrong else tmp_path)
    if DAPO in wrong:
      wrong = [x.replace("=a,", f"={tmp_path}/a,") for x in wrong]
      wrong = [x.replace(",b,b", f",{tmp_path}/b") for x in wrong]
    with pytest.raises(errors.ConfigError, match=words):
      prepared(*wrong)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
)
def test_a_signal_asks_the_run_to_stop(number, capsys):
  before = signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP
  wakeup = signal.set_wakeup_fd(-1)
  try:
    with run.stopping() as stop:
      for _ in range(2):  # at the same time: `timeout` sends two
        signal.raise_signal(number)
      assert stop.wait(10)
    assert signal.getsignal(number) == signal.SIG_DFL
    assert signal.set_wakeup_fd(wakeup) == -1
    [line] = capsys.readouterr().err.splitlines()
    assert line == (
        f"{stop_signals.NAMES[number]}: the run stops after this step or"
        " these tokens, and its state is saved; a second one ends it at once"
    )
  finally:
    signal.signal(number, before)


BUSY = """
import hashlib, signal
from rl_reason import run

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
with run.stopping({stage!r}):
  print("ready", flush=True)
  hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)  # no Python for minutes
"""


@pytest.mark.parametrize(
    "stage, signals, words",
    [
        ("all", [signal.SIGINT, signal.SIGINT], "Ctrl-C: the run stops after"),
        ("sft", [signal.SIGTERM, signal.SIGINT], "SIGTERM: the run stops"),
        ("prepare", [signal.SIGINT, signal.SIGTERM], "Ctrl-C: preparation"),
        ("evaluate", [signal.SIGHUP, signal.SIGHUP], "SIGHUP: the evaluation"),
        ("serve", [signal.SIGINT, signal.SIGINT], "Ctrl-C: the server stops"),
        ("size", [signal.SIGINT], "Ctrl-C: ended"),
        ("export", [signal.SIGTERM], "SIGTERM: ended"),
    ],
)
def test_a_signal_is_answered_at_once(stage, signals, words):
  """Also while the main thread compiles, or waits for a device."""
  with subprocess.Popen(
      [sys.executable, "-c", BUSY.format(stage=stage)],
      env=child_env(),
      cwd=ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      start_new_session=True,
  ) as child:
    assert child.stdout.readline() == "ready\n"
    for n, number in enumerate(signals):
      child.send_signal(number)
      line = child.stderr.readline()
      assert (words if n == 0 else ": ended") in line
      time.sleep(2 * stop_signals.SAME)
    assert child.wait(10) == -signals[-1]  # 130 in a shell, after Ctrl-C


def test_ctrl_c_before_the_stages_is_one_line(monkeypatch, capsys):
  monkeypatch.setattr(main, "_prepare", lambda _: raises(KeyboardInterrupt()))
  assert main.command(["rl_reason", DAPO]) == 130
  assert capsys.readouterr().err == "Ctrl-C: ended\n"


@pytest.mark.parametrize(
    "platforms, words",
    [
        (
            "cuda",
            ["JAX is installed without cuda", "pip install -e '.[cuda12]"],
        ),
        ("gpu", ["JAX is installed without gpu", "JAX_PLATFORMS=cpu"]),
        ("tpu", ["JAX is installed without tpu", "pip install -e '.[tpu]'"]),
        ("cpuu", ["there is no platform 'cpuu' (did you mean cpu?)."]),
        ("nvidia", ["there is no platform 'nvidia'"]),
        ("CPU", ["there is no platform 'CPU' (did you mean cpu?)."]),
        ("cpu, tpu", ["there is no platform ' tpu' (did you mean tpu?)."]),
        ("rocm", ["no device of rocm answers (JAX: no such"]),
        ("", ["JAX cannot start (JAX: no such"]),
    ],
)
def test_a_platform_without_devices(platforms, words, monkeypatch):
  import jax

  monkeypatch.setenv("JAX_PLATFORMS", platforms)
  monkeypatch.setattr(jax, "devices", lambda: raises(RuntimeError("no such")))
  monkeypatch.setattr(installation, "_installed", lambda _: False)
  with pytest.raises(errors.ConfigError) as e:
    installation.start_devices()
  assert "\n" not in str(e.value) and all(x in str(e.value) for x in words)


def test_a_missing_platform_ends_a_command_with_one_line(tmp_path):
  done = subprocess.run(
      [sys.executable, "-m", "rl_reason", DAPO, f"--workdir={tmp_path}"],
      cwd=ROOT,
      env=child_env() | {"JAX_PLATFORMS": "cpuu"},
      capture_output=True,
      text=True,
  )
  assert done.returncode == 2
  [line] = done.stderr.splitlines()
  assert line.startswith("config error: JAX_PLATFORMS = cpuu: there is no")


@pytest.mark.parametrize(
    "found, line",
    [
        ({"jax": "0.4.30"}, "jax 0.4.30 is installed, and rl_reason needs jax"),
        ({"jax": "0.10.1"}, "pip install -U 'jax>=0.10.2'; docs/start.md"),
        ({"jaxlib": "0.4.30"}, "jaxlib 0.4.30 is installed, and jax needs"),
        ({"flax": "0.8.0"}, "flax 0.8.0 is installed, and rl_reason needs"),
        (
            {"grain": None},
            "grain is missing, and rl_reason needs grain>=0.2.18",
        ),
        ({"jax": "0.11.0.dev20261101", "numpy": "2.5.0rc1"}, ""),
    ],
)
def test_an_old_package_is_named(found, line, monkeypatch):
  from importlib import metadata

  real = metadata.version

  def version(name):
    if name in found and found[name] is None:
      raise metadata.PackageNotFoundError(name)
    return found.get(name) or real(name)

  monkeypatch.setattr(metadata, "version", version)
  if not line:
    installation.versions()
    return
  with pytest.raises(errors.ConfigError) as e:
    prepared(DAPO)
  assert line in str(e.value) and "\n" not in str(e.value)


def test_nohup_is_respected():
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    with run.stopping() as stop:
      signal.raise_signal(signal.SIGHUP)
      assert not stop.is_set()
  finally:
    signal.signal(signal.SIGHUP, before)


class JaxRuntimeError(RuntimeError):
  """As jaxlib raises it."""


def full_disk():
  try:
    raise OSError(errno.ENOSPC, "write")
  except OSError as e:
    raise ValueError("a save failed") from e


def raises(error):
  raise error


@pytest.mark.parametrize(
    ("fails", "code", "words"),
    [
        (full_disk, 1, "cannot be written (No space left on device"),
        (lambda: open("/proc/no/file"), 1, "/proc/no/file: No such file"),
        (
            lambda: raises(OSError(errno.EROFS, "Read-only", "/x")),
            1,
            "/x: Read",
        ),
        (
            lambda: raises(JaxRuntimeError("RESOURCE_EXHAUSTED: 9\n...")),
            1,
            "out of memory: the same command with --stage=size",
        ),
        (lambda: raises(JaxRuntimeError("INTERNAL: x\ny")), 1, "INTERNAL: x;"),
        (lambda: raises(errors.RunError("mend \x1b[2J")), 1, "mend \\x1b"),
        (lambda: raises(errors.ConfigError("seed")), 2, "seed"),
        (lambda: raises(errors.Stopped()), 143, "stopped by a signal"),
    ],
)
def test_one_way_out(monkeypatch, tmp_path, capsys, fails, code, words):
  """Whatever ends a run is one line and an exit code."""

  def end(code):
    raise SystemExit(code)

  monkeypatch.setattr(run, "stages", lambda *_, **__: fails())
  monkeypatch.setattr(os, "_exit", end)
  main.FLAGS(["main"])
  with pytest.raises(SystemExit) as caught:
    sys.exit(main._explained(functools.partial(main._stages, None), tmp_path))
  assert caught.value.code == code
  [line] = capsys.readouterr().err.splitlines()
  assert words in line
  begins = {1: "error: ", 2: "config error: ", 143: "stopped"}[code]
  assert line.startswith(begins)
  if "traceback is in" in line:
    assert "Error" in (tmp_path / "traceback.txt").read_text()


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch, tmp_path, capsys):
  monkeypatch.setattr(run, "stages", lambda *_, **__: {}["a key"])
  main.FLAGS(["main"])
  assert main._explained(functools.partial(main._stages, None), tmp_path) == 1
  err = capsys.readouterr().err
  assert "Traceback" in err and "KeyError: 'a key'" in err


def test_compiled_programs_are_beside_those_of_the_user(tmp_path, monkeypatch):
  """Never in a work directory, and nowhere where nothing can be written."""
  import jax

  name, said = "jax_compilation_cache_dir", []
  tests = getattr(jax.config, name)
  jax.config.update(name, None)
  for home, place, lines in (
      (tmp_path, str(tmp_path / "rl_reason" / "compiled"), 0),
      ("/sys/nowhere", None, 1),
  ):
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    with compilation_cache.kept(said.append):
      assert getattr(jax.config, name) == place
    assert getattr(jax.config, name) is None and len(said) == lines
  jax.config.update(name, tests)
  assert "JAX_COMPILATION_CACHE_DIR" in said[0]
  assert (tmp_path / "rl_reason" / "compiled").stat().st_mode & 0o77 == 0
