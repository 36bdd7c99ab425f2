"""docs/comparing.md: its file, its command and its numbers; rows before RL."""

import importlib.util
import json
import re
import runpy

import pytest
from ablate_runs import fake_command
from conftest import ROOT

from bench import results
from rl_reason.lab import ablate, ablation_pages, comparison
from rl_reason.report import figures

PAGE = (ROOT / "docs" / "comparing.md").read_text()
DRAWS = bool(importlib.util.find_spec("matplotlib"))


def test_the_file_of_the_page_makes_the_files_that_it_names(
    tmp_path, monkeypatch, capsys
):
  """The command runs stand-ins of runs; the other block reads the data."""
  child = fake_command(tmp_path, monkeypatch, ROOT)
  config, numbers = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
  assert len(config.splitlines()) <= 21
  (tmp_path / "my_ablation.py").write_text(config)
  (tmp_path / "my_numbers.py").write_text(numbers)
  (argv,) = re.findall(r"^    python -m rl_reason.ablate (.*)$", PAGE, re.M)
  argv = argv.replace("=my_", f"={tmp_path}/my_")
  argv = argv.replace("=paper", f"={tmp_path}/paper").split()
  assert ablate.main([*argv, f"--workdir={tmp_path}"], child) == 0
  paper = tmp_path / "paper"
  made = {x.name for x in paper.iterdir()}
  wanted = set(re.findall(r"^- (my_ablation\.\w+)", PAGE, re.M))
  assert wanted - made == (set() if DRAWS else {"my_ablation.pdf"})
  text = (paper / "my_ablation.md").read_text().split("\n\n")
  assert text[1].startswith("After 4 RL steps no row differs significantly")
  data = json.loads((paper / "my_ablation.json").read_text())
  assert len(data["runs"]) == 6
  monkeypatch.chdir(tmp_path)
  capsys.readouterr()
  runpy.run_path("my_numbers.py")
  printed = capsys.readouterr().out
  assert "groups of 8: +0.0 ± 0.0 points over 3 seeds" in printed


@pytest.mark.skipif(not DRAWS, reason="needs matplotlib")
@pytest.mark.parametrize("form", ["svg", "pdf"])
def test_a_figure_for_a_paper_is_the_same_each_time(tmp_path, form):
  panel = figures.lines([figures.series("a", [0, 1], [0.2, 0.4])], x="step")
  figure = figures.figure(figures.block([panel], columns=1, height=2))
  paths = [tmp_path / f"{x}.{form}" for x in "ab"]
  for path in paths:
    figures.draw(figure, path)
  first, second = (path.read_bytes() for path in paths)
  assert first == second and len(first) > 1000
  with pytest.raises(ValueError, match="its suffix is none of .png, .svg"):
    figures.draw(figure, tmp_path / "x.gif")


def _run(row, seed, accuracy, tokens):
  evaluate = dict(step=[0, 10], tokens=tokens, flops=[None] * 2)
  evaluate |= dict(accuracy=[0.2, accuracy])
  rl = dict(step=[10], tokens=[tokens[-1]], flops=[None])
  own = dict(row=row, seed=seed, seconds=1.0, differs={})
  return own | dict(evaluate=evaluate, rl=rl)


def test_a_row_before_its_rl_is_no_result():
  """Its number is that of its SFT model: it is said, and not drawn."""
  runs = [_run("a", seed, 0.6 + seed / 100, [0, 100]) for seed in (1, 2)]
  runs += [_run("+ b", seed, 0.9, [500, 600]) for seed in (1, 2)]
  data = dict(
      title="T",
      question="Q",
      seeds=[1, 2],
      reference="a",
      rows=[["a", "x.py", {}], ["+ b", "x.py", {"critic.pretrain_steps": 9}]],
      measures={},
      accuracy="mean@4",
      environment={},
      mixed=[],
      runs=runs,
      command="python -m rl_reason.ablate",
  )
  assert comparison.waits(data, "+ b", "tokens", 100)
  assert not comparison.waits(data, "+ b", "step", 10)
  _, row = comparison.table(data)["rows"]
  assert row["cells"][3][0].endswith(", has not started RL")
  assert row["cells"][2][0].endswith(", higher")
  assert ablation_pages.summary(data).startswith(
      "After 10 RL steps 1 of 1 rows differ significantly from a (61.5%"
      " mean@4): + b (+28.5"
  )
  figure = ablation_pages.figure(data)
  by_step, by_tokens = figure["blocks"][-1]["panels"]
  assert by_step["rows"][1]["mean"] and by_tokens["rows"][1]["mean"] is None
  assert "the row has not begun RL" in figure["note"]


def test_titles_of_panels_are_not_cut_and_small_shares_fill_their_panels():
  data = results.read("credit")
  names = [row for row, *_ in data["rows"] if row != data["reference"]]
  _, small, _ = ablation_pages.figure(data)["blocks"]
  titles = [x["title"].replace("\n", " ") for x in small["panels"]]
  assert titles[: len(names)] == names
  data = results.read("clip_sweep")
  _, small, _ = ablation_pages.figure(data)["blocks"]
  at = [x["y"] for x in small["panels"]].index("clipped")
  highest = max(small["panels"][at]["series"][0]["y"])
  assert highest <= small["panels"][at]["top"] <= 3 * highest
