"""The notebooks have real outputs, and their code names what exists."""

import ast
import importlib
import json
import re

import pytest
from conftest import ROOT

from rl_reason.base import config, errors
from rl_reason.configs import base
from rl_reason.report import notebook

NAMES = ("quickstart", "own_task", "real_model")
TEXTS = {x: (ROOT / "notebooks" / f"{x}.ipynb").read_text() for x in NAMES}
CELLS = {x: json.loads(text)["cells"] for x, text in TEXTS.items()}
FIELD = r"[a-z_]+(\.[a-z_]+)+"
each_notebook = pytest.mark.parametrize("name", NAMES)


def sources(name: str) -> list[str]:
  return ["".join(cell["source"]) for cell in CELLS[name]]


def code_cells(name: str) -> list[dict]:
  return [cell for cell in CELLS[name] if cell["cell_type"] == "code"]


def outputs(name: str) -> list[dict]:
  return [output for cell in code_cells(name) for output in cell["outputs"]]


def printed(name: str) -> str:
  return "".join("".join(x["text"]) for x in outputs(name) if "text" in x)


def polylines(name: str) -> int:
  pictures = [
      "".join(x.get("data", {}).get("image/svg+xml", "")) for x in outputs(name)
  ]
  return sum(x.count("<polyline ") for x in pictures)


def parsed(name: str) -> ast.Module:
  code = ["".join(cell["source"]) for cell in code_cells(name)]
  return ast.parse("\n\n".join(code))


@each_notebook
def test_its_outputs_are_those_of_a_whole_run(name):
  counts = [cell["execution_count"] for cell in code_cells(name)]
  assert counts == [*range(1, len(counts) + 1)], "executed once, in order"
  assert not [x for x in outputs(name) if x["output_type"] == "error"]
  assert re.search(r"held-out \w+ \(mean@\d, 95% intervals\): ", printed(name))
  assert polylines(name) >= 4
  assert len(TEXTS[name]) < 200_000


def test_the_quickstart_ran_all_steps_and_an_export():
  smoke = any("SMOKE = True\n" in x for x in sources("quickstart"))
  text = printed("quickstart")
  assert f"after {3 if smoke else 24} steps" in text and "written to " in text


def test_a_task_of_ones_own_says_its_time():
  text = printed("own_task")
  assert len(re.findall(r"[\d.]+ minutes, \d+ CPU seconds", text)) == 2
  assert "alerts: " in text and "after 40 steps" in text


def test_the_real_model_shows_its_responses_before_and_after():
  text = printed("real_model")
  assert "at step 0" in text and "after 40 steps" in text
  assert len(re.findall(r"^    SFT +(?:right|wrong)  '", text, re.M)) >= 6
  assert len(re.findall(r"^    RL +(?:right|wrong)  '", text, re.M)) >= 6
  assert re.search(r"^rl: \d+ minutes$", text, re.M)


@each_notebook
def test_it_names_no_path_of_a_machine_and_no_address(name):
  paths = re.findall(
      r"(?<![\w/:.<])/(?:home|root|tmp|opt|usr|work)/[\w/]*", TEXTS[name]
  )
  assert not paths
  addresses = set(re.findall(r"https?://[^\s\"\\]+", TEXTS[name]))
  assert addresses <= {
      "https://github.com/OWNER/rl_reason",
      "http://www.w3.org/2000/svg",
  }
  assert TEXTS[name].count('REPOSITORY = \\"') == 1


@each_notebook
def test_the_code_compiles_and_names_existing_functions(name):
  tree = parsed(name)
  modules = {}
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and node.module.startswith("rl_reason"):
      for alias in node.names:
        full = f"{node.module}.{alias.name}"
        modules[alias.name] = importlib.import_module(full)
  assert modules
  for node in ast.walk(tree):
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
      if node.value.id in modules:
        assert hasattr(modules[node.value.id], node.attr)


@each_notebook
def test_fields_that_it_sets_exist(name):
  """Keys of `overrides`, and targets such as `c.rl.steps`."""
  found = set()
  for node in ast.walk(parsed(name)):
    if isinstance(node, ast.Dict):
      keys = [x.value for x in node.keys if isinstance(x, ast.Constant)]
      found |= {x for x in keys if re.fullmatch(FIELD, str(x))}
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
      target = ast.unparse(node)
      found |= {target[2:]} if target.startswith("c.") else set()
  known = config.known_fields(base.get_config())
  sections = "|".join({x.partition(".")[0] for x in known if "." in x})
  text = " ".join(sources(name))
  found |= {*re.findall(rf"`((?:{sections})\.[\w.]+)`", text)}
  assert found <= {*known}, found - {*known}
  assert len(found) >= 2


@each_notebook
def test_files_that_it_names_exist(name):
  text = re.sub(r"https:\S+", "", "".join(sources(name)))
  folders = "bench|configs|docs|launch|notebooks|results|rl_reason"
  for path in re.findall(rf"(?:{folders})/[\w/.]+\w", text):
    assert (ROOT / path).exists(), path


# --- what it shows -----------------------------------------------------------


def logged(workdir, name, lines):
  (workdir / name).write_text("".join(json.dumps(x) + "\n" for x in lines))


def test_curves_are_those_of_the_log(tmp_path):
  lines = [
      {"stage": "rl", "step": n, "train/accuracy": n / 4} for n in range(1, 5)
  ]
  logged(tmp_path, "metrics.jsonl", lines)
  svg = notebook.curves(
      tmp_path, "Accuracy", "Entropy", status="a < b"
  )._repr_svg_()
  assert svg.count("<polyline ") == 1 and "no numbers yet" in svg
  assert "a &lt; b" in svg and ">training</text>" in svg
  [points] = re.findall(r'points="([^"]*)"', svg)
  xs, ys = zip(*(map(float, x.split(",")) for x in points.split()), strict=True)
  # From a quarter to all of both axes: 302 wide, 132 high, y downwards.
  assert xs == pytest.approx([46 + 302 * n / 4 for n in range(1, 5)], abs=0.06)
  assert ys == pytest.approx([176 - 132 * n / 4 for n in range(1, 5)], abs=0.06)
  assert "no numbers yet" in notebook.curves(tmp_path / "absent").svg
  with pytest.raises(errors.ConfigError, match="did you mean Accuracy"):
    notebook.curves(tmp_path, "Acuracy")


def test_responses_are_the_newest_group_with_signal(tmp_path):
  row = dict(
      stage="rl", group=0, discarded=False, reward=1, tokens=["<b>", "x"]
  )
  rows = [
      row | dict(step=1, prompt="old", advantage=[1, 1]),
      row | dict(step=2, prompt="1+1=", advantage=[1.0, -0.5]),
      row | dict(step=3, prompt="none", advantage=[0, 0], discarded=True),
  ]
  logged(tmp_path, "samples.jsonl", rows)
  text = notebook.responses(tmp_path)._repr_html_()
  assert "Step 2, prompt <code>1+1=</code>" in text and "+1.00" in text
  assert 'rgb(30 130 230 / 50%)">&lt;b&gt;<' in text
  assert 'rgb(230 100 30 / 25%)">x<' in text
  assert "no group" in notebook.responses(tmp_path / "absent").text
  # Without details, and with numbers that were not finite.
  bare = dict(stage="rl", step=4, group=0, discarded=False, prompt="2=")
  rows = [
      bare | dict(reward=None, response="<i>"),
      bare
      | dict(reward=-1, response="ab", tokens=["a", "b"])
      | dict(advantage=[None, 3.0]),
  ]
  logged(tmp_path, "samples.jsonl", rows)
  text = notebook.responses(tmp_path).text
  assert "<td>none</td>" in text and '/ 0%)">&lt;i&gt;<' in text
  assert "<td>-1.00</td>" in text and '/ 0%)">a<' in text
  assert 'rgb(30 130 230 / 50%)">b<' in text
