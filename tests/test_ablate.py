"""Ablations: what is refused, shared, run, resumed; statistics by hand."""

import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import found_in_browser
from hypothesis import given, strategies as st

from rl_reason import ablate
from rl_reason.ablate import compare, jobs
from rl_reason.config import ConfigError

ROOT = pathlib.Path(__file__).parents[1]
LADDERS = sorted((ROOT / "configs" / "ablations").glob("*.py"))
SMOKE = "configs/dapo.py:smoke"
HOSTILE = "</script><script>document.title='owned'</script>|<b>"

# Stands in for rl_reason.main: logs as RL does, and notes when it began and
# ended, and on which cores. The config of each work directory is in a file.
FAKE = """
import json, os, pathlib, signal, sys, time
began = time.time()
flags = dict(x[2:].split("=", 1) for x in sys.argv[1:])
workdir = pathlib.Path(flags["workdir"])
here = pathlib.Path(__file__).parent
fields = json.loads((here / "fields.json").read_text())[str(workdir)]
fields |= {k[7:]: v for k, v in flags.items() if k.endswith(".reuse")}
stage, trick = flags.get("stage", "all"), flags.get("config.log.samples_every")
if trick == "999":
  sys.exit("boom: no such luck")
if trick == "888" and stage == "all":
  def save(*_):
    (workdir / "saved").touch()
    sys.exit(143)
  signal.signal(signal.SIGTERM, save)
  (workdir / "waits").touch()
  time.sleep(60)
if trick == "777":
  fields["loss.clip_high"] = 0.123
(workdir / "config.json").write_text(json.dumps(fields))
(workdir / "environment.json").write_text('{"python": "3.11", "jax": "0.10"}')
lines = []
def held_out(step, accuracy):
  core = "val-core/toy/acc/"
  line = {"stage": "evaluate", "step": step, core + "mean@4": accuracy}
  line |= {core + "mean@4/ci95": 0.01, core + "pass@8": accuracy ** 0.5}
  lines.append(line | {"val-aux/response_length/mean": 9.0})
if stage == "all":
  high, seed = fields["loss.clip_high"], fields["seed"]
  held_out(0, 0.25)
  for step in range(1, fields["rl.steps"] + 1):
    more = {"tokens/step": 100, "tokens/generated": 100 * step}
    lines.append({"stage": "rl", "step": step, "actor/entropy": high} | more)
  held_out(step, 0.5 + high / 10 + seed / 1000)
text = "".join(json.dumps(x) + "\\n" for x in lines)
(workdir / "metrics.jsonl").write_text(text)
assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(here / "compiled")
cores = sorted(os.sched_getaffinity(0))
with open(here / "starts.jsonl", "a") as f:
  f.write(json.dumps([stage, workdir.name, began, time.time(), cores]) + "\\n")
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
  """A command that takes main's arguments, for work directories in tmp_path."""
  monkeypatch.chdir(ROOT)
  monkeypatch.syspath_prepend(str(ROOT))
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
  (tmp_path / "fake.py").write_text(FAKE)
  plan = ablate.plan

  def noted(*args):
    found = plan(*args)
    fields = {str(job.workdir): job.fields for job in found}
    (tmp_path / "fields.json").write_text(json.dumps(fields))
    return found

  monkeypatch.setattr(ablate, "plan", noted)
  return [sys.executable, str(tmp_path / "fake.py")]


def small(**more):
  rows = [
      ("low", SMOKE, {"loss.clip_high": 0.2}),
      ("high", SMOKE, {"loss.clip_high": 0.4}),
  ]
  fields = dict(title="A try", question="Does it?", seeds=(1, 2), rows=rows)
  fields |= dict(reference="low", measures=("entropy", "pass@8"))
  fields |= dict(common={"rl.steps": 4})
  return ablate.ladder(**fields | more)


def write_config(folder, body):
  path = folder / "clips.py"
  path.write_text(
      "from rl_reason import ablate\n\n\ndef get_config():\n"
      f"  return ablate.ladder({body})\n"
  )
  return f"--config={path}"


def starts(folder):
  lines = (folder / "starts.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines]


# Configs.


def test_seeds_are_those_of_the_hash():
  # sha256("rl_reason") begins 6652 c755 bd84 0092 a1d5.
  assert ablate.fresh_seeds("rl_reason", 5) == (26194, 51029, 48516, 146, 41429)
  for name in ("clip_sweep", "vapo", ""):
    seeds = ablate.fresh_seeds(name, 8)
    assert len(set(seeds)) == 8 and all(0 <= x < 65536 for x in seeds)
    assert seeds[:3] == ablate.fresh_seeds(name, 3)
  with pytest.raises(ValueError, match="99 seeds of 'x'"):
    ablate.fresh_seeds("x", 99)


@pytest.mark.parametrize("path", LADDERS, ids=lambda path: path.stem)
def test_every_ladder_can_run(path, monkeypatch):
  monkeypatch.chdir(ROOT)
  monkeypatch.syspath_prepend(str(ROOT))
  c = ablate.load(str(path))
  found = ablate.plan(c, pathlib.Path("runs"), path.stem)
  assert sum(bool(x.row) for x in found) == len(c.rows) * len(c.seeds)
  assert f"--config=configs/ablations/{path.name}" in path.read_text()


def test_a_plan_needs_no_jax():
  code = """
import pathlib, sys
from rl_reason import ablate
c = ablate.load("configs/ablations/clip_sweep.py")
ablate.plan(c, pathlib.Path("runs"), "clip_sweep")
print(sorted({"jax", "flax", "matplotlib"} & set(sys.modules)))
"""
  argv = [sys.executable, "-c", code]
  done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
  assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    "more, message",
    [
        (dict(reference="lo"), "reference = 'lo': there is none; .*low, high"),
        (dict(measures=("entrop",)), "measures = 'entrop': .*entropy, trunc"),
        (dict(seeds=(1, 1)), "seeds = .*each once"),
        (dict(seeds=()), "seeds"),
        (dict(seeds=(-1,)), "row 'low': seed = -1: must be at least 0"),
        (
            dict(rows=[("low", SMOKE, {}), ("Low ", SMOKE, {})]),
            "rows 'low' and 'Low ': would share .*rename one",
        ),
        (
            dict(common={"loss.clip_hig": 0.3}),
            "row 'low': loss.clip_hig = 0.3: .*did you mean loss.clip_high",
        ),
        (
            dict(common={"rl.steps": "many"}),
            "row 'low': rl.steps = 'many': must be a int",
        ),
        (
            dict(rows=[("low", SMOKE, {"loss.clip_low": 3.0})]),
            "row 'low': loss.clip_low = 3.0: must be at least 0 and at most 1",
        ),
        (
            dict(rows=[("low", "configs/dpo.py", {})]),
            "row 'low': configs/dpo.py: there is no such file",
        ),
        (
            dict(rows=[("low", "configs/dapo.py:smok", {})]),
            "row 'low': configs/dapo.py:smok: dapo.py:smok: there are",
        ),
    ],
)
def test_refused_before_anything_runs(child, tmp_path, more, message):
  with pytest.raises(ConfigError, match=message) as e:
    ablate.plan(small(**more), tmp_path, "try")
  assert "\n" not in str(e.value)
  assert [path.name for path in tmp_path.iterdir()] == ["fake.py"]  # nothing


def test_a_config_of_another_kind_is_refused(child, capsys):
  assert ablate.main(["--config=configs/grpo.py"], child) == 2
  assert "title: missing" in capsys.readouterr().err
  assert ablate.main(["--config=nowhere.py"], child) == 2
  assert "nowhere.py: there is no such file" in capsys.readouterr().err


# Plans.


FIELDS = {
    **{"seed": 0, "task.name": "toy", "tokenizer": "", "model.width": 8},
    **{"sft.reuse": "", "sft.batch": 4, "critic.reuse": "", "kl.coef": 0.0},
    **{"critic.pretrain_steps": 0, "critic.lr": 0.1, "advantage.gamma": 1.0},
    **{"advantage.name": "gae", "rollout.max_tokens": 4, "rollout.batch": 8},
    **{"reward.right": 1.0, "updates.epochs": 1, "optimizer.lr": 0.1},
    **{"optimizer.b1": 0.9, "evaluate.samples": 8, "evaluate.every": 10},
    **{"loss.clip_high": 0.2, "rl.steps": 4, "log.samples": 1},
}


@pytest.fixture
def plan(monkeypatch):
  """Plans rows of made-up configs: [bases of row 'b', of row 'a']."""

  def configure(_, common, own):
    return FIELDS | common | own, common | own

  monkeypatch.setattr(ablate, "configure", configure)

  def make(common, own, folder="runs", name="try"):
    rows = [("a", "x.py", {}), ("b", "x.py", own)]
    c = small(rows=rows, reference="a", common=common, seeds=(1,))
    found = ablate.plan(c, pathlib.Path(folder), name)
    of_row = {job.row: job for job in found}
    bases = {*of_row["a"].needs, *of_row["b"].needs}
    assert all(job.row or job.workdir in bases for job in found)
    return [list(map(str, of_row[x].needs)) for x in "ab"], found

  return make


CRITIC = {"critic.pretrain_steps": 5}


@pytest.mark.parametrize(
    "field, value, sft, critic",
    [
        ("loss.clip_high", 0.4, True, True),
        ("rl.steps", 8, True, True),
        ("optimizer.lr", 0.2, True, True),
        ("advantage.name", "gae2", True, True),
        ("evaluate.every", 5, True, True),
        ("log.samples", 2, True, True),
        ("rollout.batch", 16, True, False),
        ("critic.lr", 0.2, True, False),
        ("reward.right", 2.0, True, False),
        ("updates.epochs", 2, True, False),
        ("advantage.gamma", 0.9, True, False),
        ("kl.coef", 0.1, True, False),
        ("task.name", "other", False, False),
        ("tokenizer", "dir", False, False),
        ("model.width", 16, False, False),
        ("sft.batch", 8, False, False),
        ("rollout.max_tokens", 8, False, False),
        ("optimizer.b1", 0.8, False, False),
        ("evaluate.samples", 4, False, False),
    ],
)
def test_what_rows_share(plan, field, value, sft, critic):
  (a, b), _ = plan(CRITIC, {field: value})
  assert (a[0] == b[0]) == sft and (a[1] == b[1]) == critic
  (c, d), _ = plan({}, {field: value})
  assert (c == d) == sft and c == a[:1]  # without a critic, no base of one
  assert plan(CRITIC, {field: value}, name="other")[0] == [a, b]


def test_bases_go_ahead_and_are_handed_on(plan):
  (a, b), found = plan({}, CRITIC)
  assert a == b[:1] and len(b) == 2
  kinds = [job.row or job.workdir.parent.name for job in found]
  assert kinds == ["sft", "a", "value", "b"]
  sft, row_a, value, row_b = found
  assert "--stage=sft" in sft.args and "--stage=value" in value.args
  for job, flags in (
      (row_a, [f"--config.sft.reuse={a[0]}"]),
      (value, [f"--config.sft.reuse={a[0]}"]),
      (row_b, [f"--config.sft.reuse={b[0]}", f"--config.critic.reuse={b[1]}"]),
  ):
    assert [x for x in job.args if ".reuse=" in x] == flags
  assert row_b.fields["critic.reuse"] == b[1] and value.needs == row_a.needs
  assert row_b.args[0] == "--config=x.py"
  assert "--config.critic.pretrain_steps=5" in row_b.args


def test_bases_of_bases_are_finished_too(child, plan, tmp_path):
  _, found = plan(CRITIC, {"critic.lr": 0.2}, tmp_path)
  assert [bool(job.row) for job in found] == [False, False, True, False, True]
  more = dict(at_once=2, cache=tmp_path / "compiled", main=child)
  assert jobs.run(found, threading.Event(), **more) == []
  assert all(job.finished() for job in found)


def test_a_row_may_say_itself_what_it_reuses(plan):
  (a, b), found = plan({}, {"sft.reuse": "mine"})
  assert len(a) == 1 and b == []
  assert "--config.sft.reuse=mine" in found[-1].args


# Runs.


def test_run_resume_and_go_on(child, tmp_path, capsys):
  c = small(rows=[*small().rows, ("Third, row", SMOKE, {})])
  found = ablate.plan(c, tmp_path, "try")
  landings, everything = [], jobs._cores()

  def landed():
    data = compare.collect(c, found, ablate.measures(c))
    landings.append(len(data["runs"]))

  def run(found):
    more = dict(at_once=2, cache=tmp_path / "compiled", main=child)
    return jobs.run(found, threading.Event(), **more, landed=landed)

  assert run(found) == [] and landings == [1, 2, 3, 4, 5, 6]
  seen = starts(tmp_path)
  sft = {x[1]: x for x in seen if x[0] == "sft"}
  assert len(sft) == 2 and len(seen) == 8
  for job in found:
    if job.row:
      (one,) = [x for x in seen if x[1] == job.workdir.name]
      assert one[2] > sft[job.needs[0].name][3]  # its base had ended
  assert (tmp_path / "try" / "third-row-2").is_dir()
  for moment in (x[2] for x in seen):
    assert sum(x[2] <= moment < x[3] for x in seen) <= 2
  shares = {tuple(x[4]) for x in seen}
  if len(everything) > 1:
    assert shares == {tuple(everything[::2]), tuple(everything[1::2])}
  assert jobs._cores() == everything  # this process is not pinned

  assert run(found) == [] and len(starts(tmp_path)) == 8
  shutil.rmtree(found[1].workdir)
  shutil.rmtree(found[0].workdir)  # a base comes back if a row wants it
  assert run(found) == [] and len(starts(tmp_path)) == 10
  longer = ablate.plan(small(common={"rl.steps": 6}), tmp_path, "try")
  assert run(longer) == [] and len(starts(tmp_path)) == 14
  assert "4 to do, with 0 models" in capsys.readouterr().out


def test_one_at_a_time_goes_seed_by_seed(child, tmp_path):
  found = ablate.plan(small(), tmp_path, "try")
  more = dict(at_once=1, cache=tmp_path / "compiled", main=child)
  assert jobs.run(found, threading.Event(), **more) == []
  names = [name for _, name, *_ in starts(tmp_path)]
  assert names == [job.workdir.name for job in found]
  assert [job.seed for job in found if job.row] == [1, 1, 2, 2]


def test_failures_are_named_and_the_others_go_on(child, tmp_path, capsys):
  config = write_config(
      tmp_path,
      f"""title="Clips", question="?", seeds=(1, 2), reference="low",
  common={{"rl.steps": 4}}, measures=("entropy",), rows=[
  ("broken", {SMOKE!r}, {{"log.samples_every": 999, "sft.reuse": "x"}}),
  ("other config", {SMOKE!r}, {{"log.samples_every": 777}}),
  ("low", {SMOKE!r}, {{}})]""",
  )
  argv = [config, f"--out={tmp_path}", f"--workdir={tmp_path}", "--jobs=2"]
  assert ablate.main(argv, child) == 1
  out = capsys.readouterr().out
  assert out.count("  | boom: no such luck") == 2
  assert "broken, seed 1: FAILED, exit code 1" in out
  assert "other config, seed 2: FAILED, a file was changed meanwhile (" in out
  assert "loss.clip_high: 0.123 -> 0.28" in out
  assert "Missing, seed 1: broken, other config." in out
  text = (tmp_path / "clips.md").read_text()
  assert "- Missing, seed 2: broken, other config." in text
  data = json.loads((tmp_path / "clips.json").read_text())
  assert [x["row"] for x in data["runs"]] == ["low", "low"]


def test_rows_whose_base_fails_do_not_run(child, tmp_path, capsys):
  rows = [
      ("low", SMOKE, {"log.samples_every": 999}),
      ("high", SMOKE, {"loss.clip_high": 0.4}),
      ("wide", SMOKE, {"model.mlp": 96}),
  ]
  found = ablate.plan(small(rows=rows, seeds=(1,)), tmp_path, "try")
  more = dict(at_once=1, cache=tmp_path / "compiled", main=child)
  failed = jobs.run(found, threading.Event(), **more)
  assert failed == [found[0].name, "low, seed 1", "high, seed 1"]
  out = capsys.readouterr().out
  assert "high, seed 1: not run, for want of its base" in out
  assert [x.finished() for x in found if x.row] == [False, False, True]


def test_stop_ends_the_children_gently(child, tmp_path):
  c = small(common={"log.samples_every": 888}, seeds=(1,))
  found = ablate.plan(c, tmp_path, "try")
  stop, began = threading.Event(), time.monotonic()

  def watch():
    while len(list(tmp_path.glob("try/*/waits"))) < 2:
      time.sleep(0.05)
    stop.set()

  threading.Thread(target=watch, daemon=True).start()
  more = dict(at_once=2, cache=tmp_path / "compiled", main=child)
  assert jobs.run(found, stop, **more) == []  # stopped is not failed
  assert time.monotonic() - began < 30
  assert [x.finished() for x in found] == [True, False, False]
  assert found[1].record()["seconds"] > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command(child, tmp_path, number):
  config = write_config(
      tmp_path,
      f"""title="Clips", question="?", seeds=(1,), reference="low",
  rows=[("low", {SMOKE!r}, {{"log.samples_every": 888}})]""",
  )
  argv = [config, f"--out={tmp_path}", f"--workdir={tmp_path}"]
  ablate.plan(ablate.load(config.partition("=")[2]), tmp_path, "clips")
  code = f"from rl_reason import ablate\nexit(ablate.main({argv}, {child}))"
  process = subprocess.Popen(
      [sys.executable, "-c", code],
      stdout=subprocess.PIPE,
      text=True,
      start_new_session=True,
  )
  for _ in range(600):
    if list(tmp_path.glob("clips/*/waits")):
      break
    time.sleep(0.05)
  os.killpg(process.pid, number)  # as Ctrl-C does: all in the group
  out, _ = process.communicate(timeout=30)
  assert process.returncode == 143 and "low, seed 1: stopped" in out
  assert list(tmp_path.glob("clips/*/saved"))
  assert not (tmp_path / "clips.json").exists()  # there is nothing to tell


def test_the_whole_command(child, tmp_path, capsys):
  config = write_config(
      tmp_path,
      f"""title="Clips", question="Which?", seeds=(1, 2, 3), reference="low",
  common={{"rl.steps": 4}}, measures=("entropy", "pass@8"),
  rows=[("low", {SMOKE!r}, {{"loss.clip_high": 0.2}}),
        ("high", {SMOKE!r}, {{"loss.clip_high": 0.4}})]""",
  )
  argv = [config, f"--out={tmp_path / 'out'}", f"--workdir={tmp_path}"]
  assert ablate.main([*argv, "--rows", "hihg"], child) == 2
  assert "--rows = 'hihg': there is none; there are low, high" in (
      capsys.readouterr().err
  )
  assert ablate.main([*argv, "--table"], child) == 2
  assert "there are no data yet" in capsys.readouterr().err
  assert ablate.main([*argv, "--rows", "low"], child) == 0
  out = tmp_path / "out" / "clips.json"
  assert {x["row"] for x in json.loads(out.read_text())["runs"]} == {"low"}
  assert ablate.main([*argv, "--config.seeds=1,2"], child) == 0
  data = json.loads(out.read_text())
  found = [(x["row"], x["seed"]) for x in data["runs"]]
  assert found == [("low", 1), ("high", 1), ("low", 2), ("high", 2)]
  assert data["environment"] == {"python": "3.11", "jax": "0.10"}
  assert data["runs"][1]["differs"] == {"loss.clip_high": 0.4}
  assert data["runs"][1]["evaluate"] == {
      "step": [0, 4],
      "tokens": [0, 400],
      "flops": [None, None],
      "accuracy": [0.25, 0.541],
      "ci95": [0.01, 0.01],
      "pass@8": [0.5, 0.73553],
  }
  assert data["runs"][1]["rl"]["entropy"] == [0.4] * 4
  assert data["runs"][1]["rl"]["tokens"] == [100, 200, 300, 400]
  assert data["runs"][1]["after"] == {
      "mean@4": 0.541,
      "pass@8": 0.73553,
      "response length": 9,
  }
  text = (tmp_path / "out" / "clips.md").read_text()
  assert "| high | loss.clip_high 0.4 | 2 | 54.2% |" in text
  assert "| +2.0\xa0±\xa00.0, higher | +2.0\xa0±\xa00.0, higher |" in text
  assert "| 0.4 (+0.20\xa0±\xa00.00) |" in text
  assert "--config.seeds=1,2`" in text and "python 3.11, jax 0.10" in text
  capsys.readouterr()
  before = {x.name: x.read_bytes() for x in out.parent.iterdir()}
  assert ablate.main([*argv, "--table"], child) == 0
  for name, content in before.items():
    assert name.endswith(".png") or content == (out.parent / name).read_bytes()


# Statistics.


def test_interval_by_hand():
  # s = 1, t(0.975, 2) = 4.303: 4.303 / sqrt(3).
  mean, half = compare.interval([1.0, 2.0, 3.0])
  assert mean == 2 and half == pytest.approx(2.48434, abs=1e-5)
  # s = sqrt(2) / 2, t(0.975, 1) = 12.706.
  assert compare.interval([0.0, 1.0])[1] == pytest.approx(6.353, abs=1e-3)
  assert compare.interval([0.7]) == (0.7, None)
  assert compare.interval([0.5] * 4) == (0.5, 0.0)


def test_quantiles_of_student():
  """The density, integrated from 0 to each quantile, gives 0.475."""
  for n, t in enumerate(compare.T975, 1):
    x = np.linspace(0, t, 20_001)
    scale = math.gamma((n + 1) / 2) / math.gamma(n / 2) / (n * math.pi) ** 0.5
    y = scale * (1 + x**2 / n) ** (-(n + 1) / 2)
    assert np.trapezoid(y, x) == pytest.approx(0.475, abs=3.5e-5), n
  assert len(compare.T975) == 30
  many = list(range(100))
  s = np.std(many, ddof=1) / 10
  assert compare.interval(many)[1] == pytest.approx(2.042 * s)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=9), st.floats(-1, 1))
def test_an_interval_moves_with_its_numbers(values, shift):
  mean, half = compare.interval(values)
  moved, same = compare.interval([x + shift for x in values])
  assert moved == pytest.approx(mean + shift, abs=1e-9)
  assert same == pytest.approx(half, abs=1e-6)


def test_verdicts():
  assert compare.verdict(0.3, 0.2) == "higher"
  assert compare.verdict(-0.3, 0.2) == "lower"
  assert compare.verdict(0.2, 0.2) == "no difference seen"
  assert compare.verdict(0.0, 0.0) == "no difference seen"
  assert compare.verdict(0.3, None) == "one seed"


def test_numbers_as_text():
  assert compare.signed([0.01, 0.02, 0.03], True) == "+2.0\xa0±\xa02.5"
  assert compare.signed([-0.01], True) == "-1.0"
  assert compare.signed([10.0, 12.0], False) == "+11\xa0±\xa013"
  assert compare.signed([1e-4, 2e-4, 3e-4], False) == "+0.00020\xa0±\xa00.00025"
  assert compare.signed([0.0, 0.0], False) == "+0.0\xa0±\xa00.0"
  assert compare.signed([], True) == ""
  texts = [compare.amount(x) for x in (40, 1234, 1.26e6, 3.1e14)]
  assert texts == ["40", "1,234", "1.26 M", "310 T"]


def one(row, seed, accuracy, per_step=100, steps=(0, 10, 20), flops=None, **rl):
  """A run of the data."""
  cost = dict(
      step=list(steps),
      tokens=[per_step * x for x in steps],
      flops=[flops and flops * x for x in steps],
  )
  return dict(
      row=row,
      seed=seed,
      seconds=60.0,
      differs={"loss.clip_high": 0.4},
      evaluate=cost | dict(accuracy=accuracy, ci95=[0.01] * len(steps)),
      rl=cost | rl,
      before={},
      after={},
  )


def made_of(runs, reference="a", measures=None):
  rows = dict.fromkeys(x["row"] for x in runs)
  return dict(
      title="T",
      question="Q",
      seeds=sorted({x["seed"] for x in runs}),
      reference=reference,
      common={},
      rows=[[row, "x.py", {}] for row in rows],
      measures=measures or {},
      accuracy="mean@4",
      environment={"python": "3.11"},
      mixed=[],
      runs=runs,
      command="python -m rl_reason.ablate",
  )


def test_values_between_evaluations():
  run = one("a", 1, [0.2, 0.6, None, 0.8], steps=(0, 10, 20, 40))
  assert compare.value_at(run, "accuracy", 5) == pytest.approx(0.4)
  assert compare.value_at(run, "accuracy", 25) == pytest.approx(0.7)
  assert compare.value_at(run, "accuracy", 500, "tokens") == pytest.approx(0.4)
  assert compare.value_at(run, "accuracy", 99) == 0.8
  assert compare.value_at(run, "accuracy", 5, "flops") is None
  # A critic was trained before step 0: until then accuracy is level.
  run["evaluate"]["tokens"] = [2000, 3000, 4000, 6000]
  assert compare.value_at(run, "accuracy", 1000, "tokens") == 0.2
  assert compare.value_at(run, "accuracy", 2500, "tokens") == pytest.approx(0.4)


def test_a_measure_is_the_mean_of_the_last_quarter():
  run = one("a", 1, [0.2] * 5, steps=(1, 10, 16, 18, 20), x=[9, 8, 3, None, 5])
  assert compare.late_mean(run, "x", 20) == 4  # steps 16 to 20; 15 is out
  assert compare.late_mean(run, "x", 10) == 8
  assert compare.late_mean(run, "x", 0.5) is None


def test_ends_that_all_runs_reach():
  runs = [
      one("a", 1, [0.2, 0.3, 0.4]),
      one("b", 1, [0.2, 0.3, 0.4], per_step=50),
      one("c", 1, [0.2, 0.4], steps=(0, 12)),
      one("SFT", 1, [0.1], steps=(0,)),  # did not train: limits nobody
  ]
  assert compare.ends(made_of(runs)) == {"step": 12, "tokens": 1000}
  for run in runs:
    run["evaluate"]["flops"] = [7.0 * x for x in run["evaluate"]["step"]]
  assert compare.ends(made_of(runs))["flops"] == 84
  assert compare.ends(made_of(runs[3:]))["step"] == 0


def test_pairs_by_hand():
  """b costs twice as much: better at equal steps, worse at equal tokens."""
  runs = [
      one("a", 1, [0.2, 0.5, 0.6]),
      one("b", 1, [0.2, 0.6, 0.7], per_step=200),
      one("a", 2, [0.3, 0.6, 0.7]),
      one("b", 2, [0.3, 0.66, 0.78], per_step=200),
      one("b", 3, [0.9, 0.9, 0.9]),  # has no partner
  ]
  data = made_of(runs)
  assert compare.ends(data) == {"step": 20, "tokens": 2000}
  by_step = compare.differences(data, "step", 20)["b"]
  assert by_step == pytest.approx({1: 0.1, 2: 0.08})
  by_tokens = compare.differences(data, "tokens", 2000)["b"]
  assert by_tokens == pytest.approx({1: 0.0, 2: -0.04})
  head, rows = compare.table(data).values()
  assert head[3:5] == [
      "difference at 20 steps",
      "difference at 2,000 generated tokens",
  ]
  cells = [text for text, _ in rows[1]["cells"]]
  # Points 10 and 8: 9 +- 12.706 sqrt(2) / sqrt(2); 0 and -4: -2 +- 25.4.
  assert cells[0] == "3" and cells[2] == "+9.0\xa0±\xa012.7, no difference seen"
  assert cells[3] == "-2.0\xa0±\xa025.4, no difference seen"
  assert [text for text, _ in rows[0]["cells"]][2:4] == ["the reference"] * 2
  assert compare.notes(data) == ["Missing, seed 3: a."]


def test_without_the_reference_there_are_no_differences():
  data = made_of([one("b", 1, [0.2, 0.5, 0.6])])
  data["rows"].insert(0, ["a", "x.py", {}])
  rows = compare.table(data)["rows"]
  assert rows[0]["cells"] == [] and rows[0]["about"] == "has not run"
  cells = [text for text, _ in rows[1]["cells"]]
  assert cells == ["1", "60.0%", "–", "–", "60 to 60"]
  assert "One seed: differences have no interval." in compare.notes(data)


def test_mean_and_extent_over_seeds():
  runs = [
      one("a", 1, [0.2, 0.5, 0.6], per_step=100),
      one("a", 2, [0.4, None, 0.8], per_step=300),
  ]
  line = compare.curve(made_of(runs), "a", "evaluate", "accuracy")
  assert line == dict(
      step=[0, 20],
      tokens=[0, 4000],
      flops=[None, None],
      y=pytest.approx([0.3, 0.7]),
      low=[0.2, 0.6],
      high=[0.4, 0.8],
  )
  assert compare.curve(made_of(runs), "b", "evaluate", "accuracy") == {}


# Pages.


def test_a_page_of_many_rows(tmp_path):
  pytest.importorskip("matplotlib")
  measures = {"entropy": ablate.MEASURES["entropy"]._asdict()}
  rng = np.random.default_rng(0)

  def numbers():
    return rng.random(50).round(5).tolist()

  cost = dict(per_step=98_765, steps=range(0, 1000, 20), flops=1.23456e12)
  runs = [
      one(f"row {i}", seed, numbers(), entropy=numbers(), **cost)
      for i in range(10)
      for seed in range(5)
  ]
  data = made_of(runs, "row 3", measures)
  path = tmp_path / "many.json"
  compare.save(data, path)
  assert json.loads(path.read_text()) == data
  assert path.stat().st_size < 300_000
  assert len(path.read_text().splitlines()) < 150
  found = compare.write(data, path)
  assert [x.name for x in found] == ["many.md", "many.html", "many.png"]
  assert all(x.stat().st_size > 1000 for x in found)
  looks = list(compare.styles(data).values())
  assert len(set(looks)) == 10 and looks[-1] == ("ref", "none")
  html_page = (tmp_path / "many.html").read_text()
  assert not re.search(r"https?:|\bsrc=|\bhref=|@import|url\(", html_page)
  page = compare.page_data(data)
  assert page["x"] == ["step", "tokens", "flops"]
  accuracy, entropy = page["charts"]
  assert len(accuracy["series"]) == len(entropy["series"]) == 10
  first = accuracy["series"][0]
  means = np.mean([x["evaluate"]["accuracy"] for x in runs[:5]], 0)
  assert first["y"] == pytest.approx(means.tolist(), abs=1e-5)
  assert page["axes"][first["axis"]]["tokens"][1] == 20 * 98_765
  assert len(page["forest"]["flops"]["rows"]) == 9


def test_without_matplotlib_there_is_no_figure(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  data = made_of([one("a", 1, [0.2, 0.5, 0.6])])
  found = compare.write(data, tmp_path / "x.json")
  assert [x.name for x in found[:2]] == ["x.md", "x.html"]
  assert "matplotlib is not installed" in str(found[2])


def hostile():
  runs = [
      one(row, seed, [0.2, 0.5, 0.6], x=[1.0, 2.0, 3.0])
      for row in ("a", HOSTILE)
      for seed in (1, 2)
  ]
  measures = {"x": dict(stage="rl", key="", unit=HOSTILE, share=False)}
  return made_of(runs, "a", measures) | dict(title=HOSTILE, question=HOSTILE)


def test_hostile_names_stay_text(tmp_path):
  compare.write(hostile(), tmp_path / "x.json")
  page = (tmp_path / "x.html").read_text()
  empty = page.template("ablation")
  for mark in "<>&":
    assert page.count(mark) == empty.count(mark)
  assert "innerHTML" not in empty and "default-src 'none'" in empty
  for line in (tmp_path / "x.md").read_text().splitlines():
    if line.startswith("| "):
      assert line.count("|") == 9


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_in_a_browser(tmp_path):
  compare.write(hostile(), tmp_path / "x.json")
  path = tmp_path / "x.html"
  probe = """<script>
    const count = what => document.querySelectorAll(what).length;
    const found = [document.title, count("#charts path"),
                   count("#forest circle"), $("where").textContent];
    document.querySelector("input[value=tokens]").click();
    found.push($("where").textContent);
    document.querySelector("#rows input").click();
    found.push(count("#charts path"));
    document.querySelector(".chart svg").focus();
    found.push(document.querySelector(".legend").textContent);
    document.body.textContent = "FOUND" + JSON.stringify(found) + "FOUND";
  </script>"""
  found = found_in_browser(path, probe)
  assert found[0] == f"{HOSTILE}: ablation"
  assert found[1] == 8  # two charts, two rows, a line and a band each
  assert found[2] == 3  # two seeds and their mean
  assert found[3] == "Difference to a at 20 steps"
  assert found[4] == "Difference to a at 2,000 generated tokens"
  assert found[5] == 4
  assert found[6] == f"generated tokens 2000{HOSTILE} 60%"


def test_select_compares_with_another_row_as_of_an_earlier_step():
  def run(row, accuracy):
    lines = dict(step=[0, 5, 10], tokens=[0, 50, 100], flops=[None] * 3)
    lines["accuracy"] = accuracy
    return dict(row=row, seed=1, evaluate=lines)

  runs = [run("a", [0, 0.1, 0.9]), run("b", [0, 0.3, 0.4]), run("c", [0, 1, 1])]
  data = dict(runs=runs, reference="a", rows=[["a"], ["b"], ["c"]])
  some = compare.select(data, ["b"], "a", 5)
  assert [row for row, in some["rows"]] == ["a", "b"]
  assert compare.ends(some) == {"step": 5, "tokens": 50}
  found = compare.differences(some, "step", 5)
  assert found["b"] == {1: pytest.approx(0.2)}
  other = compare.select(data, [], "c", None)
  assert compare.differences(other, "step", 10)["a"] == {1: pytest.approx(-0.1)}
  assert data["reference"] == "a" and len(runs[0]["evaluate"]["step"]) == 3


def test_a_common_field_that_a_row_does_not_read_is_left_out():
  """But not one of the row's own."""
  common = {"advantage.lam": 0.5, "rl.steps": 4}
  fields, given = ablate.configure("configs/vapo.py", common, {"seed": 3})
  assert given == {"rl.steps": 4, "seed": 3} and fields["rl.steps"] == 4
  assert fields["advantage.lam"] == 0.95, "as the run itself will have it"
  _, given = ablate.configure("configs/ppo.py", common, {"seed": 3})
  assert given == common | {"seed": 3}
  with pytest.raises(ablate.ConfigError, match="lam = 0.5: nothing takes it"):
    ablate.configure("configs/vapo.py", {}, {"advantage.lam": 0.5})


def test_rows_that_have_not_begun_are_not_compared():
  """Their critics are pretrained; equal accuracy alone is no sign of it."""
  runs = [one(row, 1, [0.2, 0.6], steps=(0, 10)) for row in "ab"]
  for run in runs:
    run["evaluate"]["tokens"] = [2000, 3000]
  data = made_of(runs)
  assert not compare.begun(data, "b", "tokens", 1000)
  assert compare.begun(data, "b", "tokens", 2500)
  assert compare.finding([0.0], begun=False) == "neither has begun"
  assert compare.finding([0.0], begun=True).endswith("one seed")
