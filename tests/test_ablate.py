"""Ablations: mistakes, shared bases, runs of a fake command, statistics."""

import json
import pathlib
import subprocess
import sys

import pytest
from ablate_runs import HOSTILE, SMOKE, fake_command, ladder, write_config
from conftest import ROOT, data_of_page

from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_files
from rl_reason.lab import ablate, ablation_pages, comparison, halving, jobs

LADDERS = sorted((ROOT / "configs" / "ablations").glob("*.py"))


@pytest.fixture
def child(tmp_path, monkeypatch):
  return fake_command(tmp_path, monkeypatch, ROOT)


def test_seeds_are_those_of_the_hash():
  # sha256("rl_reason") begins 6652 c755 bd84 0092 a1d5.
  assert ablate.fresh_seeds("rl_reason", 5) == (26194, 51029, 48516, 146, 41429)
  seeds = ablate.fresh_seeds("vapo", 8)
  assert len(set(seeds)) == 8 and seeds[:3] == ablate.fresh_seeds("vapo", 3)
  # sha256("rl_reason 1") begins 0e5f 5317; its seeds follow the 16 of the name.
  many = ablate.fresh_seeds("rl_reason", 99)
  assert many[:16] == ablate.fresh_seeds("rl_reason", 16)
  assert len(set(many)) == 99 and many[16:18] == (3679, 21271)


@pytest.mark.parametrize("path", LADDERS, ids=lambda path: path.stem)
def test_every_ladder_can_run(path, monkeypatch):
  monkeypatch.chdir(ROOT)
  monkeypatch.syspath_prepend(str(ROOT))
  c = config_files.read(str(path))
  c.seeds = c.seeds[:2]
  plan = ablate.plan(c, pathlib.Path("runs"), path.stem)
  assert sum(bool(x.row) for x in plan) == len(c.rows) * 2
  assert f"--config=configs/ablations/{path.name}" in path.read_text()


def test_a_plan_touches_no_device():
  code = """
import pathlib, sys
from rl_reason.checks import config_files
from rl_reason.lab import ablate
c = config_files.read("configs/ablations/clip_sweep.py")
ablate.plan(c, pathlib.Path("runs"), "clip_sweep")
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
print(sorted({"matplotlib", "transformers"} & set(sys.modules)))
"""
  argv = [sys.executable, "-c", code]
  done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
  assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(reference="lo"), "reference = 'lo': unknown name; .*low, high"),
        (dict(measures=("entrop",)), "measures = 'entrop': .*entropy, trunc"),
        (dict(seeds=(1, 1)), "seeds = .*each once"),
        (dict(seeds=(-1,)), "row 'low': seed = -1: must be at least 0"),
        (
            dict(rows=[("low", SMOKE, {}), ("Low ", SMOKE, {})]),
            "rows .*'low', 'Low .* two would share a directory; rename one",
        ),
        (
            dict(common={"rl.step": 3}),
            "row 'low': rl.step = 3: .*did you mean rl.steps",
        ),
        (
            dict(common={"rl.steps": "many"}),
            "row 'low': rl.steps = many: must be an integer",
        ),
        (
            dict(rows=[("low", "configs/dpo.py", {})]),
            "row 'low': --config = configs/dpo.py: there is no such file",
        ),
        (
            dict(rows=[("low", "configs/dapo.py:smok", {})]),
            "row 'low': configs/dapo.py:smok: ",
        ),
    ],
)
def test_mistakes_are_refused_before_anything_runs(
    child, tmp_path, changes, message
):
  with pytest.raises(ConfigError, match=message) as e:
    ablate.plan(ladder(**changes), tmp_path, "try")
  assert "\n" not in str(e.value)
  assert [path.name for path in tmp_path.iterdir()] == ["fake.py"]  # nothing


def test_a_config_that_is_no_ablation_is_refused(child, capsys):
  assert ablate.main(["--config=configs/grpo.py"], child) == 2
  assert "rows: missing" in capsys.readouterr().err
  assert ablate.main(["--config=nowhere.py"], child) == 2
  assert "nowhere.py: there is no such file" in capsys.readouterr().err


def test_a_common_field_that_a_row_does_not_read_is_left_out():
  """But not one of the row's own."""
  common = {"advantage.args.lam": 0.5, "rl.steps": 4}
  fields, overrides = ablate.configure("configs/vapo.py", common, {"seed": 3})
  assert overrides == {"rl.steps": 4, "seed": 3} and fields["rl.steps"] == 4
  assert "advantage.args.lam" not in fields
  _, overrides = ablate.configure("configs/ppo.py", common, {"seed": 3})
  assert overrides == common | {"seed": 3}
  with pytest.raises(ConfigError, match="lam = 0.5: gae_length_adaptive takes"):
    ablate.configure("configs/vapo.py", {}, {"advantage.args.lam": 0.5})


# Plans.


FIELDS = {
    **{"seed": 0, "task.name": "toy", "tokenizer": "", "model.width": 8},
    **{"sft.reuse": "", "sft.batch": 4, "critic.reuse": "", "kl.coef": 0.0},
    **{
        "critic.pretrain_steps": 0,
        "critic.lr": 0.1,
        "advantage.args.gamma": 1.0,
    },
    **{"advantage.name": "gae", "rollout.max_tokens": 4, "rollout.batch": 8},
    **{"reward.correct": 1.0, "updates.epochs": 1, "optimizer.lr": 0.1},
    **{"optimizer.b1": 0.9, "evaluate.samples": 8, "evaluate.every": 10},
    **{"kl.kind": "none", "rl.steps": 4, "log.samples": 1},
}


@pytest.fixture
def plan(monkeypatch):
  """Plans two rows of made-up configs; returns their bases and all jobs."""

  def configure(_, common, own):
    return FIELDS | common | own, common | own

  monkeypatch.setattr(ablate, "configure", configure)

  def make(common, own, folder="runs", name="try"):
    rows = [("a", "x.py", {}), ("b", "x.py", own)]
    c = ladder(rows=rows, reference="a", common=common, seeds=(1,))
    found = ablate.plan(c, pathlib.Path(folder), name)
    of_row = {job.row: job for job in found}
    return [list(map(str, of_row[x].bases)) for x in "ab"], found

  return make


CRITIC = {"critic.pretrain_steps": 5}


@pytest.mark.parametrize(
    "field, value, sft, critic",
    [
        ("rl.steps", 8, True, True),
        ("optimizer.lr", 0.2, True, True),
        ("advantage.name", "gae2", True, True),
        ("log.samples", 2, True, True),
        ("rollout.batch", 16, True, False),
        ("critic.lr", 0.2, True, False),
        ("reward.correct", 2.0, True, False),
        ("advantage.args.gamma", 0.9, True, False),
        ("task.name", "other", False, False),
        ("model.width", 16, False, False),
        ("sft.batch", 8, False, False),
        ("rollout.max_tokens", 8, False, False),
        ("evaluate.samples", 4, False, False),
    ],
)
def test_bases_that_rows_share(plan, field, value, sft, critic):
  (a, b), _ = plan(CRITIC, {field: value})
  assert (a[0] == b[0]) == sft and (a[1] == b[1]) == critic
  (c, d), _ = plan({}, {field: value})
  assert (c == d) == sft and c == a[:1]  # without a critic, no base of one
  assert plan(CRITIC, {field: value}, name="other")[0] == [a, b]


def test_bases_start_a_few_seeds_ahead_of_their_rows():
  """Row b has a base of its own; a resumed study lacks some bases."""

  def job(name, *bases, row=""):
    return jobs.Job(
        name, pathlib.Path(name), [], {}, tuple(bases), row, int(name[-1])
    )

  bases = [job(f"sft{n}") for n in range(3)]
  bases += [job(f"critic{n}", bases[n].workdir) for n in range(3)]
  rows = [
      job(f"{row}{n}", base.workdir, row=row)
      for n in range(3)
      for row, base in (("a", bases[n]), ("b", bases[n + 3]))
  ]

  def names(ahead, bases=bases):
    return " ".join(x.name for x in jobs.ordered(bases, rows, ahead))

  assert names(2) == (
      "sft0 sft1 sft2 critic0 critic1 a0 b0 critic2 a1 b1 a2 b2"
  )
  assert names(9) == (
      "sft0 sft1 sft2 critic0 critic1 critic2 a0 b0 a1 b1 a2 b2"
  )
  assert names(1) == "sft0 sft1 critic0 a0 b0 sft2 critic1 a1 b1 critic2 a2 b2"
  assert names(1, bases[2:3]) == "a0 b0 a1 b1 sft2 a2 b2"
  # A base that is a row needs no other row.
  assert jobs.ordered([job("c0", row="c")], [], 2) == [job("c0", row="c")]


def test_bases_come_first_and_rows_reuse_them(plan):
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
  assert row_b.fields["critic.reuse"] == b[1] and value.bases == row_a.bases
  assert "--config.critic.pretrain_steps=5" in row_b.args
  (a, b), found = plan({}, {"sft.reuse": "mine"})
  assert len(a) == 1 and b == []  # the row names its own base
  assert "--config.sft.reuse=mine" in found[-1].args


# Runs.


def test_failures_are_named_and_the_other_rows_run(child, tmp_path, capsys):
  config = write_config(
      tmp_path,
      f"""title="Clips", question="?", seeds=(1,), reference="low",
  common={{"rl.steps": 4}}, measures=("entropy",), rows=[
  ("base fails", {SMOKE!r}, {{"model.mlp": 96, "log.samples_every": 999}}),
  ("row fails", {SMOKE!r}, {{"log.samples_every": 999, "sft.reuse": "x"}}),
  ("other config", {SMOKE!r}, {{"log.samples_every": 777}}),
  ("low", {SMOKE!r}, {{}})]""",
  )
  argv = [config, f"--out={tmp_path}", f"--workdir={tmp_path}", "--jobs=1"]
  assert ablate.main(argv, child) == 1
  out = capsys.readouterr().out
  assert out.count("  | boom: no such luck") == 2
  assert "base fails, seed 1: not run, because its base failed" in out
  assert "row fails, seed 1: FAILED, exit code 1" in out
  failed = "other config, seed 1: FAILED, its config changed during the run ("
  assert failed in out
  assert "Missing, seed 1: base fails, row fails, other config." in out
  data = json.loads((tmp_path / "clips.json").read_text())
  assert [x["row"] for x in data["runs"]] == ["low"]


def test_the_command_writes_data_and_pages(child, tmp_path, capsys):
  config = write_config(
      tmp_path,
      f"""title="Clips", question="Which?", seeds=(1, 2, 3), reference="low",
  measures=("entropy", "pass@8"),
  rows=[("low", {SMOKE!r}, {{"rl.steps": 4}}),
        ("high", {SMOKE!r}, {{"rl.steps": 4, "optimizer.lr": 0.4}})]""",
  )
  argv = [config, f"--out={tmp_path / 'out'}", f"--workdir={tmp_path}"]
  assert ablate.main([*argv, "--rows", "hihg"], child) == 2
  assert "--rows = 'hihg': unknown name; choose from low, high" in (
      capsys.readouterr().err
  )
  assert ablate.main([*argv, "--table"], child) == 2
  assert "there are no data yet" in capsys.readouterr().err
  assert ablate.main([*argv, "--config.seeds=1,2"], child) == 0
  out = tmp_path / "out" / "clips.json"
  data = json.loads(out.read_text())
  found = [(x["row"], x["seed"]) for x in data["runs"]]
  assert found == [("low", 1), ("high", 1), ("low", 2), ("high", 2)]
  assert data["environment"] == {"python": "3.11", "jax": "0.10"}
  assert data["runs"][1]["differs"] == {"optimizer.lr": 0.4}
  assert data["runs"][1]["evaluate"] == {
      "step": [0, 4],
      "tokens": [0, 400],
      "flops": [None, None],
      "accuracy": [0.25, 0.541],
      "pass@8": [0.5, 0.73553],
  }
  assert data["runs"][1]["rl"]["entropy"] == [0.4] * 4
  assert data["runs"][1]["rl"]["tokens"] == [100, 200, 300, 400]
  text = (tmp_path / "out" / "clips.md").read_text()
  assert "| high | optimizer.lr 0.4 | 2 | 54.2% |" in text
  assert "higher | " in text and "python 3.11, jax 0.10" in text
  assert "--config.seeds=1,2`" in text
  before = {x.name: x.read_bytes() for x in out.parent.iterdir()}
  assert {"clips.json", "clips.md", "clips.html"} <= before.keys()
  assert ablate.main([*argv, "--table"], child) == 0
  for name, content in before.items():
    assert name.endswith(".png") or content == (out.parent / name).read_bytes()
  # In a clone without these runs, only the third seed is run.
  other = [*argv[:2], f"--workdir={tmp_path / 'clone'}", "--keep_data"]
  capsys.readouterr()
  assert ablate.main(other, child) == 0
  printed = capsys.readouterr().out
  assert f"4 runs of {out} are not made again" in printed
  assert "2 runs: 0 are done, 2 to do" in printed
  more = json.loads(out.read_text())
  assert [x["seed"] for x in more["runs"]] == [1, 1, 2, 2, 3, 3]
  assert more["runs"][:4] == data["runs"] and more["mixed"] == []
  assert more["runs"][5]["differs"] == {"optimizer.lr": 0.4}
  # One more seed alone: the file keeps the others.
  code = ablate.main([*other, "--config.seeds=4"], child)
  more = json.loads(out.read_text())
  assert code == 0 and more["seeds"] == [1, 2, 3, 4]
  assert [x["seed"] for x in more["runs"]] == [1, 1, 2, 2, 3, 3, 4, 4]
  # The data are of other fields, or there is nothing to add.
  out.write_text(json.dumps(more | dict(reference="high")))
  assert ablate.main(other, child) == 2
  assert "reference = high, and low in the ablation" in capsys.readouterr().err
  with pytest.raises(SystemExit):
    ablate.main([*other, "--rungs", "1"], child)


@pytest.mark.parametrize(
    "flags, why",
    [
        (["--against=low"], "--against: needs --table, which runs nothing"),
        (["--table", "--at=4"], "--at: needs --against"),
        (["--at=4"], "--at: needs --against"),
    ],
)
def test_a_comparison_runs_nothing(flags, why, child, tmp_path, capsys):
  argv = [f"--config={tmp_path}/no.py", f"--out={tmp_path}", *flags]
  with pytest.raises(SystemExit):
    ablate.main(argv, child)
  assert capsys.readouterr().err.endswith(f"error: {why}\n")


@pytest.mark.slow
def test_successive_halving(child, tmp_path, capsys):
  """Of 4 rows and the reference 3 go on at step 2, and 2 at step 3."""
  config = write_config(
      tmp_path,
      f"""title="Rates", question="Which?", seeds=(1, 2), reference="0.1",
  common={{"rl.steps": 4}},
  rows=[(f"{{x:g}}", {SMOKE!r}, {{"optimizer.lr": x}})
        for x in (.1, .2, .3, .4, .5)]""",
  )
  argv = [config, f"--out={tmp_path}", f"--workdir={tmp_path}", "--jobs=1"]
  assert ablate.main([*argv, "--rungs", "2", "3"], child) == 0
  out = capsys.readouterr().out
  assert "rung 2: 0.2: validation score 0.5215; ends" in out
  assert "rung 2: 0.1: validation score 0.5115\n" in out  # the reference
  # 0.3 is the best on prompts for validation, though not on held-out ones.
  assert "rung 3: 0.3: validation score 1.532\n" in out
  assert "rung 3: 0.5: validation score 0.5515; ends" in out
  data = json.loads((tmp_path / "clips-halving.json").read_text())
  assert {(x["row"], x["seed"]) for x in data["runs"]} == {
      *(("0.1", 1), ("0.1", 2), ("0.3", 1), ("0.3", 2))
  }
  assert data["ended"] == {
      "0.2": "ended at step 2: validation score 0.5215",
      "0.4": "ended at step 2: validation score 0.5415",
      "0.5": "ended at step 3: validation score 0.5515",
  }
  assert data["common"]["evaluate.validation"]
  assert "Missing" not in out
  text = (tmp_path / "clips-halving.md").read_text()
  assert "| 0.4 | ended at step 2: validation score 0.5415 |" in text
  # The same command makes no run again.
  started = (tmp_path / "starts.jsonl").read_text()
  assert ablate.main([*argv, "--rungs", "2", "3"], child) == 0
  assert (tmp_path / "starts.jsonl").read_text() == started


@pytest.mark.parametrize(
    "rungs, changes, message",
    [
        ((3, 2), {}, "rungs = .3, 2.: name ascending"),
        ((0, 2), {}, "name ascending numbers"),
        ((2, 4), {}, "row 'low' has rl.steps = 4; name rungs below"),
        (
            (2,),
            {"optimizer.schedule": "cosine"},
            "row 'low' has a schedule over rl.steps",
        ),
    ],
)
def test_rungs_that_compare_nothing_are_refused(
    child, tmp_path, rungs, changes, message
):
  c = ladder(common={"rl.steps": 4} | changes)
  plan = ablate.plan(c, tmp_path, "try")
  with pytest.raises(ConfigError, match=message):
    halving.check(plan, ("low", "high"), rungs)


def test_survivors_by_hand():
  found = {"a": 0.1, "b": 0.4, "c": 0.4, "d": 0.3, "e": None}
  assert halving.survivors(found, "a") == ["a", "b", "c"]
  assert halving.survivors(found, "e") == ["b", "c", "e"]
  assert halving.survivors({"a": None, "b": None}, "a") == ["a"]


# Statistics.


def test_interval_by_hand():
  # s = 1, t(0.975, 2) = 4.30265: 4.30265 / sqrt(3).
  mean, half = comparison.interval([1.0, 2.0, 3.0])
  assert mean == 2 and half == pytest.approx(2.48414, abs=1e-5)
  # s = sqrt(2) / 2, t(0.975, 1) = 12.7062.
  assert comparison.interval([0.0, 1.0])[1] == pytest.approx(6.3531, abs=1e-4)
  assert comparison.interval([0.7]) == (0.7, None)
  assert comparison.interval([0.5] * 4) == (0.5, 0.0)


def test_numbers_as_text():
  assert comparison.signed([0.01, 0.02, 0.03], True) == "+2.0\xa0±\xa02.5"
  assert comparison.signed([-0.01], True) == "-1.0"
  assert comparison.signed([10.0, 12.0], False) == "+11\xa0±\xa013"
  assert (
      comparison.signed([1e-4, 2e-4, 3e-4], False) == "+0.00020\xa0±\xa00.00025"
  )
  texts = [comparison.amount(x) for x in (40, 1234, 1.26e6, 3.1e14)]
  assert texts == ["40", "1,234", "1.26 M", "310 T"]
  for values, verdict in (
      ([0.3, 0.31], "higher"),
      ([-0.3, -0.31], "lower"),
      ([0.0, 0.0], "no significant difference"),
      ([0.3], "one seed"),
  ):
    assert comparison.finding(values, True).endswith(f", {verdict}")
  assert comparison.finding([0.0], False) == "neither has started RL"


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
      differs={"optimizer.lr": 0.4},
      evaluate=cost | dict(accuracy=accuracy),
      rl=cost | rl,
  )


def data_of(runs, reference="a", measures=None):
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

  def at(x, axis="step"):
    return comparison.value_at(run, "accuracy", x, axis, "evaluate")

  assert at(5) == pytest.approx(0.4) and at(25) == pytest.approx(0.7)
  assert at(500, "tokens") == pytest.approx(0.4) and at(99) == 0.8
  assert at(5, "flops") is None
  # Value pretraining costs tokens before step 0: accuracy is constant there.
  run["evaluate"]["tokens"] = [2000, 3000, 4000, 6000]
  assert at(1000, "tokens") == 0.2
  data = data_of([run])
  assert not comparison.started(data, "a", "tokens", 1000)
  assert comparison.started(data, "a", "tokens", 2500)


def test_a_measure_is_the_mean_of_the_last_quarter():
  run = one("a", 1, [0.2] * 5, steps=(1, 10, 16, 18, 20), x=[9, 8, 3, None, 5])
  found = [
      comparison.value_at(run, "x", at, "step", "rl") for at in (20, 10, 0.5)
  ]
  assert found == [4, 8, None]  # steps 16 to 20; 15 is not among them
  # A step without rows was once logged with a length and an entropy of 0.
  columns = dict(length=[9, 9, 40, 0, 50], entropy=[1, 1, 0.2, 0, 0.1])
  run = one("a", 1, [0.2] * 5, steps=(1, 10, 16, 18, 20), x=[0] * 5, **columns)
  found = [
      comparison.value_at(run, name, 20, "step", "rl")
      for name in ("length", "entropy", "x")
  ]
  assert found == [45, pytest.approx(0.15), 0]


def test_ends_that_all_training_runs_reach():
  runs = [
      one("a", 1, [0.2, 0.3, 0.4]),
      one("b", 1, [0.2, 0.3, 0.4], per_step=50),
      one("c", 1, [0.2, 0.4], steps=(0, 12)),
      one("SFT", 1, [0.1], steps=(0,)),  # without RL it limits no axis
  ]
  assert comparison.ends(data_of(runs)) == {"step": 12, "tokens": 1000}
  for run in runs:
    run["evaluate"]["flops"] = [7.0 * x for x in run["evaluate"]["step"]]
  assert comparison.ends(data_of(runs))["flops"] == 84
  assert comparison.ends(data_of(runs[3:]))["step"] == 0


def test_differences_by_hand():
  """b costs twice as much: better at equal steps, worse at equal tokens."""
  runs = [
      one("a", 1, [0.2, 0.5, 0.6]),
      one("b", 1, [0.2, 0.6, 0.7], per_step=200),
      one("a", 2, [0.3, 0.6, 0.7]),
      one("b", 2, [0.3, 0.66, 0.78], per_step=200),
      one("b", 3, [0.9, 0.9, 0.9]),  # has no partner
  ]
  data = data_of(runs)
  assert comparison.ends(data) == {"step": 20, "tokens": 2000}
  by_step = comparison.differences(data, at=20)
  assert by_step["b"] == pytest.approx({1: 0.1, 2: 0.08})
  head, rows = comparison.table(data).values()
  assert head[3:5] == [
      "difference at 20 steps",
      "difference at 2,000 generated tokens",
  ]
  cells = [text for text, _ in rows[1]["cells"]]
  # Points 10 and 8: 9 +- 12.706 sqrt(2) / sqrt(2); 0 and -4: -2 +- 25.4.
  assert cells[0] == "3"
  assert cells[2] == "+9.0\xa0±\xa012.7, no significant difference"
  assert cells[3] == "-2.0\xa0±\xa025.4, no significant difference"
  assert [text for text, _ in rows[0]["cells"]][2:4] == ["the reference"] * 2
  assert comparison.notes(data) == ["Missing, seed 3: a."]

  data = data_of(runs[1:2])  # without the reference
  data["rows"].insert(0, ["a", "x.py", {}])
  rows = comparison.table(data)["rows"]
  assert rows[0] == dict(name="a", about="has not run", cells=[])
  cells = [text for text, _ in rows[1]["cells"]]
  assert cells == ["1", "70.0%", "–", "–", "60 to 60"]
  assert "One seed: differences have no interval." in comparison.notes(data)


def test_another_reference_as_of_an_earlier_step():
  runs = [
      one("a", 1, [0, 0.1, 0.9]),
      one("b", 1, [0, 0.3, 0.4]),
      one("c", 1, [0, 1, 1]),
  ]
  data = comparison.select(data_of(runs), ["b"], "a", 10)
  assert [row for row, *_ in data["rows"]] == ["a", "b"]
  assert comparison.ends(data) == {"step": 10, "tokens": 1000}
  assert "| +20.0, one seed | " in ablation_pages.markdown_table(data)
  other = comparison.select(data_of(runs), [], "c", None)
  assert "| a | optimizer.lr 0.4 | 1 | 90.0% | -10.0" in (
      ablation_pages.markdown_table(other)
  )


def test_hostile_names_stay_text(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  runs = [
      one(row, seed, [0.2, 0.5, 0.6], x=[1.0, 2.0, 3.0])
      for row in ("a", HOSTILE)
      for seed in (1, 2)
  ]
  measures = {"x": dict(stage="rl", key="", unit=HOSTILE, share=False)}
  data = data_of(runs, "a", measures) | dict(title=HOSTILE, question=HOSTILE)
  comparison.save(data, tmp_path / "x.json")
  assert json.loads((tmp_path / "x.json").read_text()) == data
  found = ablation_pages.write(data, tmp_path / "x.json")
  assert [x.name for x in found[:2]] == ["x.md", "x.html"]
  assert "matplotlib is not installed" in str(found[2])
  page = (tmp_path / "x.html").read_text()
  shown = data_of_page(page, "ablation")
  assert shown["title"] == HOSTILE and shown["x"] == ["step", "tokens"]
  assert [row[0] for row in shown["rows"]] == ["a", HOSTILE]
  for line in (tmp_path / "x.md").read_text().splitlines():
    if line.startswith("| "):
      assert line.count("|") == 9
