"""Pages, figures and README's table are what their committed data give."""

import copy
import importlib.util
import json
import re

import pytest
from conftest import ROOT

from bench import pages, results
from bench.tools import report_picture
from bench.training import seeds
from rl_reason.lab import ablation_pages, comparison
from rl_reason.report import figures, page, rendering


@pytest.mark.slow
def test_all_pages_and_figures_are_what_their_data_give():
  """After a change of data or code: python -m bench.pages."""
  names = {page.name for page in pages.pages()}
  made = {x.stem for x in results.files()}
  assert made == names | {"report"}, "bench/pages.py knows every page"
  assert pages.differences(write=False) == []


def test_a_picture_of_other_data_is_found(monkeypatch, tmp_path):
  """Of one changed number, a page, its figure and README's table differ."""
  monkeypatch.setattr(results, "RESULTS", tmp_path)
  monkeypatch.setattr(results, "ROOT", tmp_path)
  for suffix in ("json", "md", "png"):
    path = ROOT / "results" / f"seeds.{suffix}"
    (tmp_path / path.name).write_bytes(path.read_bytes())
  (tmp_path / "README.md").write_text((ROOT / "README.md").read_text())
  report = ROOT / "results" / "report.json"
  (tmp_path / report.name).write_bytes(report.read_bytes())
  cards = (ROOT / "results" / "surrogates.html").read_text()
  (tmp_path / "surrogates.html").write_text(cards)
  monkeypatch.setattr(pages.cards, "page", lambda: cards)
  page = pages.Page("seeds", seeds.page, seeds.figure)
  monkeypatch.setattr(pages, "pages", lambda: [page])
  assert pages.differences(write=False) == []
  data = results.read("seeds")
  data["runs"][0]["after"]["mean@4"] -= 0.05
  data["runs"][0]["accuracy"][-1] -= 0.05
  results.write_data("seeds", data)
  found = pages.differences(write=False)
  assert found == ["README.md", "seeds.md", "seeds.png"]


@pytest.mark.parametrize(
    ("module", "name"), [(seeds, "seeds"), (report_picture, "report")]
)
def test_numbers_of_readme_are_those_of_the_runs(module, name):
  text = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
  phrases = module.readme_numbers(results.read(name))
  assert phrases
  for phrase in phrases:
    assert phrase in text


def test_the_picture_of_the_report_is_of_the_page(monkeypatch):
  """Of another number, or another template, the picture has another digest."""
  data = results.read("report")
  wanted = report_picture.digest(data)
  assert figures.read_digest(report_picture.PICTURE) == wanted
  other = copy.deepcopy(data)
  other["tiles"][0]["values"][1] = "91.8% ± 1.4"
  assert report_picture.digest(other) != wanted
  monkeypatch.setattr(rendering, "PALETTE", ("#123456",))
  assert report_picture.digest(data) != wanted


def test_the_picture_of_the_report_has_all_data_of_the_page(tmp_path):
  """Without a part of them the script of the page fails."""
  wanted = page.data_of(tmp_path).keys()
  assert wanted <= results.read("report").keys()


def test_a_digest_is_added_to_a_picture(tmp_path):
  path = tmp_path / "x.png"
  path.write_bytes(report_picture.PICTURE.read_bytes())
  figures.write_digest(path, "abc")
  assert figures.read_digest(path) == "abc"
  header, *rest = figures._chunks(path.read_bytes())
  assert header[0] == b"IHDR" and rest[-1][0] == b"IEND"


def test_a_digest_depends_on_data_and_is_read_from_the_file(tmp_path):
  panel = figures.lines([figures.series("a", [0, 1], [0.25, 0.5])], x="step")
  figure = figures.figure(figures.block([panel], columns=1, height=2))
  other = copy.deepcopy(figure)
  other["blocks"][0]["panels"][0]["series"][0]["y"][1] = 0.6
  assert figures.digest(figure) != figures.digest(other)
  path = tmp_path / "x.png"
  path.write_bytes((ROOT / "results" / "seeds.png").read_bytes())
  wanted = figures.digest(seeds.figure(results.read("seeds")))
  assert figures.read_digest(path) == wanted
  path.write_bytes(figures.SIGNATURE)
  assert figures.read_digest(path) == ""


def test_an_ablation_has_a_panel_for_each_row_but_the_reference():
  """Its curves and differences are the numbers of the data."""
  path = ROOT / "studies" / "recent" / "recent.json"
  data = json.loads(path.read_text())
  small, forests = ablation_pages.figure(data)["blocks"]
  names = [panel["title"] for panel in small["panels"]]
  assert names == [row for row, *_ in data["rows"] if row != data["reference"]]
  for panel in small["panels"]:
    grey, own = panel["series"]
    assert grey["color"] == figures.REFERENCE and own["label"] == panel["title"]
  of_row = [x["evaluate"] for x in data["runs"] if x["row"] == "dapo"]
  (panel,) = (x for x in small["panels"] if x["title"] == "dapo")
  last = [x["accuracy"][-1] for x in of_row]
  assert panel["series"][1]["y"][-1] == pytest.approx(
      sum(last) / len(last), rel=1e-3
  )
  assert panel["series"][1]["low"][-1] == pytest.approx(min(last), rel=1e-3)
  end = comparison.ends(data)["step"]
  values = comparison.differences(data, at=end)["dapo"].values()
  mean, half = comparison.interval([100 * x for x in values])
  (row,) = (x for x in forests["panels"][0]["rows"] if x["name"] == "dapo")
  assert (row["mean"], row["half"]) == pytest.approx((mean, half), rel=1e-3)


def test_an_ablation_of_few_rows_has_a_panel_for_each_measure_and_row():
  data = results.read("dapo_ladder")
  _, small, _ = ablation_pages.figure(data)["blocks"]
  names = [k for k, x in data["measures"].items() if x["stage"] == "rl"]
  assert len(small["panels"]) == len(names) * (len(data["rows"]) - 1)
  at = [x["y"] for x in small["panels"]].index("truncation") + 2
  grey, own = small["panels"][at]["series"]
  assert own["label"] == "+ soft punishment, no filtering"
  for one, row in ((own, own["label"]), (grey, data["reference"])):
    runs = [x["rl"] for x in data["runs"] if x["row"] == row]
    last = [x["truncation"][-1] for x in runs]
    assert one["y"][-1] == pytest.approx(sum(last) / len(last), rel=1e-3)
  assert own["y"][-1] < 0.1 < grey["y"][-1]
  assert "training\naccuracy" in [x["y"] for x in small["panels"]]
  lines = [y for x in small["panels"] for y in x["title"].split("\n")]
  assert max(map(len, lines)) <= 17  # five beside each other; none is cut


def test_no_place_for_a_panel_is_empty_where_rows_can_be_full():
  for name, count in ("chain", 9), ("credit", 6), ("group_size_sweep", 4):
    first, *_ = ablation_pages.figure(results.read(name))["blocks"]
    assert len(first["panels"]) == count and count % first["columns"] == 0


def test_pages_and_figures_have_one_palette():
  page = rendering.render("report", {})
  for i, color in enumerate(rendering.PALETTE):
    assert f"--c{i}: {color};" in page
  assert "@PALETTE@" not in page


@pytest.mark.skipif(
    not importlib.util.find_spec("matplotlib"), reason="needs matplotlib"
)
def test_a_drawn_figure_carries_its_digest(tmp_path):
  """All kinds of panels; names with a dollar are text, not mathematics."""
  curve = figures.series("a $_", [1, 10], [0.2, 0.4], low=[0, 0], high=[1, 1])
  level = figures.series("b", [0], [0.3], color=1, low=[0.2], high=[0.4])
  panels = [
      figures.lines([curve, level], x="$", percent=True, labels=True),
      figures.lines([curve | dict(bars=True)], x="x", ticks=[1, 10]),
      figures.forest([("$x", [1, 2], 1.5, 0.5), ("y", [], None, None)], x="x"),
  ]
  figure = figures.figure(
      figures.block(panels, columns=2, height=2), legend=True, note="$"
  )
  figures.draw(figure, tmp_path / "x.png")
  assert figures.read_digest(tmp_path / "x.png") == figures.digest(figure)
