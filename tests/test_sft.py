"""SFT: who inherits what, old names, and what the end of it says."""

import json
import types

import pytest
from conftest import ROOT

from configs import base, dapo
from rl_reason.base import config, errors
from rl_reason.checks import config_checks, config_files, run_directory
from rl_reason.data import pipelines
from rl_reason.stages import sft, trained_parameters
from rl_reason.tasks import Row, xor

OF_THE_TASK = {
    "sft.steps": 1000,
    "sft.lr": 4e-3,
    "sft.schedule": "cosine",
    "sft.batch": 96,
    "sft.mixture": "careful:1",
    "sft.threshold": 0.95,
    "sft.habits.steps": 80,
    "sft.habits.lr": 3e-4,
    "sft.habits.schedule": "cosine",
    "sft.habits.mixture": "careful:2,leap:2,direct:3,ramble:1,sloppy:2",
}
FILES = {"task.name": "files", "data.train": "gsm8k", "data.evaluate": "gsm8k"}
OWN = ["base", "serve", "sft", "dapo_qwen", "python", "gsm8k_scratch"]
OWN += [
    str(x.relative_to(ROOT / "configs"))
    for folder in ("recipes", "paper")
    for x in sorted((ROOT / "configs" / folder).glob("*.py"))
    if x.stem != "size"
]


@pytest.mark.parametrize("name", ["grpo", "dapo", "vapo", "rloo", "gspo"])
def test_the_numbers_of_the_built_in_task(name):
  c = config_files.read(f"configs/{name}.py")
  assert {x: config.at(c, x) for x in OF_THE_TASK} == OF_THE_TASK


@pytest.mark.parametrize("name", OWN)
def test_other_configs_inherit_nothing_from_it(name):
  s = config_files.read(f"configs/{name.removesuffix('.py')}.py").sft
  assert (s.threshold, s.mixture, s.habits.steps) == (0, "", 0)
  steps = dict(sft=230, gsm8k_scratch=400)
  assert s.steps == steps.get(name, 0)
  assert s.lr == (4e-3 if name == "gsm8k_scratch" else 2e-5)  # random start


def test_another_task_leaves_out_what_a_file_says_about_its_own():
  c, notes = config_checks.checked(
      "configs/dapo.py", FILES | {"tokenizer": "z"}
  )
  assert (c.sft.threshold, c.sft.mixture, c.sft.habits.steps) == (0, "", 0)
  assert (c.sft.steps, c.sft.lr) == (1000, 4e-3)
  assert "task.name = files: leaves out sft.threshold = 0.95" in notes[0]
  assert "sft.habits.steps = 80" in notes[0] and "of arithmetic" in notes[0]
  c, _ = config_checks.checked(
      "configs/dapo.py", FILES | {"tokenizer": "z", "sft.threshold": 0.5}
  )
  assert c.sft.threshold == 0.5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sft.habits.steps": 5}, "sft.habits.steps = 5: a second stage of"),
        (
            {
                "sft.threshold": 0.5,
                "data.kind": "none",
                "data.train": str(ROOT),
            },
            "nothing verifies",
        ),
        ({"sft.warmup_steps": 1000}, "must be less than sft.steps = 1000"),
    ],
)
def test_what_rows_of_files_cannot_have(changes, words):
  fields = FILES | {"tokenizer": "z", "rl.steps": 0} | changes
  with pytest.raises(errors.ConfigError, match=words):
    config_checks.checked("configs/dapo.py", fields)


def test_a_checkpoint_and_the_rate_of_random_parameters():
  fields = {"model.path": "DIR", "sft.lr": 4e-3, "sft.steps": 9}
  _, notes = config_checks.checked("configs/sft.py", fields)
  assert notes[0].startswith("warning: sft.lr = 0.004: suits a small model")
  assert not config_checks.checked("configs/sft.py", fields | {"sft.lr": 1e-5})[
      1
  ]


# --- the names of earlier versions -------------------------------------------


@pytest.mark.parametrize(
    "name", ["steps", "lr", "schedule", "mixture", "threshold"]
)
def test_an_old_field_is_told_its_new_name(name):
  old = f"sft.skill.{name}"
  with pytest.raises(errors.ConfigError, match=f"is now sft.{name}$"):
    config_checks.checked("configs/dapo.py", {old: "1"})
  c = dapo.get_config()
  with c.unlocked():
    c.sft.skill = {name: 1}
  with pytest.raises(errors.ConfigError, match=f"is now sft.{name}$"):
    config_checks.checked(c, {})


def test_an_old_section_of_a_file_is_told_its_new_name(tmp_path):
  path = tmp_path / "own.py"
  text = (
      "from rl_reason.configs import {0}\n"
      "def get_config():\n"
      "  c = {0}.get_config()\n"
      "  {1}\n"
      "  return c\n"
  )
  path.write_text(text.format("dapo", "c.sft.skill.steps = 0"))
  words = "own.py: there is no section sft.skill: sft.skill.steps is now sft.st"
  with pytest.raises(errors.ConfigError, match=words):
    config_files.read(str(path))
  path.write_text(text.format("dapo", "c.covariance.name = 'kl_cov'"))
  words = (
      "own.py: there is no section covariance: covariance.name was taken out"
  )
  with pytest.raises(errors.ConfigError, match=words):
    config_files.read(str(path))
  path.write_text(text.format("dapo", "{}['sft']"))
  with pytest.raises(errors.ConfigError, match="own.py: .*'sft'"):
    config_files.read(str(path))
  path.write_text((ROOT / "configs" / "sft.py").read_text())
  with pytest.raises(errors.ConfigError, match="configs/sft_control.py"):
    config_files.read(f"{path}:control")


def test_an_old_work_directory_is_refused_with_the_reason(tmp_path):
  saved = config.flat(config.with_defaults(dapo.get_config()))
  del saved["sft.steps"]
  (tmp_path / "config.json").write_text(
      json.dumps(saved | {"sft.skill.steps": 9})
  )
  words = "json: sft.skill.steps is now sft.steps: the run is of an earlier ver"
  with pytest.raises(errors.ConfigError, match=words):
    run_directory.check(tmp_path, dapo.get_config())
  (tmp_path / "checkpoints" / "skill" / "9").mkdir(parents=True)
  c = base.arithmetic()
  c.sft.reuse = str(tmp_path)
  output = types.SimpleNamespace(
      workdir=tmp_path, display=types.SimpleNamespace(say=None)
  )
  with pytest.raises(errors.RunError, match="skill is now checkpoints/sft"):
    trained_parameters.sft(c, model=None, output=output)


# --- the end of SFT ----------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "threshold", "said", "error"),
    [
        ("4", 0.0, "SFT: 25.0% of held-out prompts correct (greedy)", ""),
        ("4", 0.3, "SFT: 25.0% of held-out prompts correct (greedy)", "30%"),
        ("", 0.3, "SFT: no accuracy, since no row has a reference answer", ""),
    ],
)
def test_only_a_threshold_ends_a_run(answer, threshold, said, error):
  c, lines, logged = base.get_config(), [], []
  c.sft.update(steps=7, threshold=threshold)
  rows = [Row("2+2=", answer, kind="math")]
  responses = types.SimpleNamespace(name="own", rows=rows, chooses=False)
  values = {"val-core/own/acc/greedy": 0.25}
  output = types.SimpleNamespace(
      log=types.SimpleNamespace(metrics=lambda *x: logged.append(x)),
      display=types.SimpleNamespace(say=lines.append),
  )

  def finish():
    evaluate = lambda *_, **__: (values, [responses])  # noqa: E731
    sft._evaluate(c, evaluate, output, None, params=None)

  if error:
    words = "sft.threshold = 30%, reached 25.0% after 7 steps"
    with pytest.raises(sft.TooWeak, match=words):
      finish()
  else:
    finish()
  assert lines == [said] and logged == [("sft", 7, values)]


def test_problems_of_sft_have_difficulties_of_their_own():
  """RL keeps task.difficulties; () draws what RL draws."""
  c = config_files.read("configs/xor.py")
  rows = pipelines.RowSource(xor, "xor", (xor.FREE,), seed=0)

  output = types.SimpleNamespace(display=types.SimpleNamespace(say=print))
  session = types.SimpleNamespace(row_source=rows, tok=None, output=output)

  def lengths():
    found = next(sft._stream(c, session, "sft"))
    return {len(prompt) for prompt, _ in found}

  free = 8 * 3 + 1
  named = {8 * 4 + 1 + digits for digits in (1, 2, 3)}
  assert lengths() == {8 + 1, free} | named
  c.sft.difficulties = ()
  assert lengths() == {free}
