"""The report of a run in a browser."""

import html
import json
import operator
import shutil

import pytest
from conftest import found_in_browser
from test_report import HOSTILE, data_of, evaluation, put, rl_line, sample

from bench import results
from bench.tools import report_picture
from rl_reason.report import compare, page, terms

pytestmark = pytest.mark.slow


needs_chromium = pytest.mark.skipif(
    not shutil.which("chromium"), reason="needs chromium"
)


@needs_chromium
def test_in_a_browser(tmp_path):
  """Hovered numbers are those of the file, and hostile text does nothing."""
  rows = [sample("rl", 1, text) for text in HOSTILE[:3]]
  long = sample("rl", 1, "token ", count=1000, group=8)
  rows += [sample("evaluate", 0, HOSTILE[1]), long]
  path = page.write(put(tmp_path, [rl_line(1), rl_line(3)], rows))
  probe = """<script>
    const groups = [...document.querySelectorAll(".group")];
    groups.forEach(node => { node.open = true; node.ontoggle(); });
    const tokens = groups.map(node => node.querySelectorAll(".token").length);
    document.querySelectorAll("button").forEach(node => node.click());
    const after = groups.map(node => node.querySelectorAll(".token").length);
    document.querySelectorAll(".token")[2].focus();
    const details = [...document.querySelectorAll("#numbers dd")];
    document.querySelector("#search").value = "TOKEN";
    document.querySelector("#search").oninput();
    const counts = [document.querySelector("#count").textContent];
    document.querySelector("#search").value = "";
    document.querySelector("#search").oninput();
    counts.push(document.querySelector("#held summary").textContent);
    counts.push(document.querySelectorAll("#list .group").length);
    counts.push(document.querySelectorAll("nav a").length
      - document.querySelectorAll("main > section").length);
    document.querySelector("[type=checkbox]:not([disabled])").click();
    document.body.textContent = "FOUND" + JSON.stringify([document.title,
      document.images.length, document.querySelectorAll("#charts path").length,
      tokens, after, counts,
      ...details.map(node => node.textContent)]) + "FOUND";
  </script>"""
  found = found_in_browser(path, probe)
  title, images, paths, tokens, after, counts, token, position, *numbers = found
  assert title == f"{tmp_path.name}: RL report" and not images and paths > 5
  # Newest first: three responses of a group, the long one, the held-out one.
  assert tokens == [9, 300, 3] and after == [9, 1000, 3]
  held = "1 single responses to held-out prompts"
  assert counts == ["1 groups", held, 2, 0]
  assert json.loads(token) == HOSTILE[0] and position == "3 of 3"
  names = ("advantage", "logp", "entropy")
  assert [float(x) for x in numbers] == [rows[0][name][2] for name in names]


@needs_chromium
def test_terms_lead_to_their_definitions_and_back(tmp_path):
  """Texts of the page, once for each chart; words of a model are no terms."""
  lines = [evaluation(0, 0.1, 0.2), rl_line(1), rl_line(2)]
  rows = [sample("rl", 1, "entropy advantage ")]
  path = page.write(put(tmp_path, lines, rows))
  probe = """<script>
    const marked = [...document.querySelectorAll(".term")];
    const names = [...document.querySelectorAll("#terms dt")];
    const of = title => [...document.querySelectorAll(".chart")].find(
      x => x.querySelector("h3").textContent === title);
    const inChart = title => [...of(title).querySelectorAll(".term")]
      .map(x => x.textContent);
    const before = location.href;
    const link = of("Entropy").querySelector(".term");
    link.click();
    const at = document.activeElement.textContent;
    document.activeElement.nextSibling.querySelector("a").click();
    const back = document.activeElement === link;
    document.body.textContent = "FOUND" + JSON.stringify([
      inChart("Entropy"), inChart("KL divergence"), link.title, at, back,
      before === location.href,
      document.querySelectorAll(".model .term, svg .term").length,
      names.length, new Set(names.map(x => x.textContent)).size,
      marked.every(x => names.some(y =>
        y.nextSibling.textContent.startsWith(x.title)))]) + "FOUND";
  </script>"""
  found = found_in_browser(path, probe)
  of_chart, of_kl, title, at, back, same, inside, count, distinct, all_ = found
  assert "Entropy" == of_chart[0] and of_chart.count("Entropy") == 1
  assert "entropy" not in of_chart and "KL divergence" in of_kl
  (entry,) = (x for x in terms.shown() if "entropy" in x["names"])
  assert title == entry["what"] and at == entry["term"]
  assert back and same and not inside and all_
  assert count == distinct > 5


@needs_chromium
@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_is_wider_than_the_window(tmp_path, width):
  """Numbers of tiles stay on one line; the page does not scroll sideways."""
  lines = [evaluation(0, 0.1, 0.2), rl_line(1), evaluation(4, 0.7, 0.8)]
  path = page.write(put(tmp_path, lines, [sample("rl", 1)]))
  frame = tmp_path / "frame.html"
  text = html.escape(path.read_text(encoding="utf-8"))
  frame.write_text(
      f"""<!doctype html><body><iframe width={width} height=800
      style="border:0" srcdoc="{text}"></iframe>""",
      encoding="utf-8",
  )
  probe = """<script>onload = () => {
    const inner = document.querySelector("iframe").contentWindow;
    const page = inner.document, tiles = [...page.querySelectorAll(".tile b")];
    const lines = tiles.map(node => node.offsetHeight
      / parseFloat(inner.getComputedStyle(node).lineHeight));
    const wide = page.documentElement.scrollWidth;
    document.body.textContent =
      "FOUND" + JSON.stringify([wide, Math.max(...lines)]) + "FOUND";
  }</script>"""
  found, lines_of_tile = found_in_browser(frame, probe)
  assert found <= width and lines_of_tile < 1.5


@needs_chromium
def test_runs_side_by_side(tmp_path):
  """Both runs have a line in each chart; one of them can be hidden."""
  for name in ("a", "b"):
    (tmp_path / name).mkdir()
    put(tmp_path / name, [rl_line(1), rl_line(2)])
  path = compare.write([tmp_path / "a", tmp_path / "b"])
  probe = """<script>
    const lines = () => document.querySelectorAll("#charts path").length;
    const found = [document.title, data.charts.length, lines()];
    document.querySelector("#runs input").click();
    document.body.textContent =
      "FOUND" + JSON.stringify([...found, lines()]) + "FOUND";
  </script>"""
  title, charts, both, one = found_in_browser(path, probe)
  assert title == "a, b: runs" and charts > 5
  assert (both, one) == (2 * charts, charts)


def test_a_report_shows_the_scores_of_validation(tmp_path):
  """In the table those that decide; as curves what is evaluated in between."""
  held = [evaluation(0, 0.2, 0.6), evaluation(4, 0.7, 0.5)]
  chosen = json.loads(json.dumps(held).replace("/toy/", "/validation/"))
  data = data_of(put(tmp_path, list(map(operator.or_, held, chosen))))
  names = [row["name"] for row in data["scores"]["rows"]]
  assert [x for x in names if x.startswith("validation")] == [
      "validation mean@4",
      "validation greedy",
  ]
  shown = {x["label"] for chart in data["charts"] for x in chart["series"]}
  assert shown >= {"held out, mean@4", "validation, mean@4", "validation maj@8"}


@needs_chromium
def test_a_picture_of_a_page_whose_script_fails_is_refused(tmp_path):
  data = results.read("report")
  report_picture.photograph(data, tmp_path / "good.png")
  assert (tmp_path / "good.png").exists()
  del data["pairs"]
  with pytest.raises(SystemExit, match="Cannot read properties of undefined"):
    report_picture.photograph(data, tmp_path / "bad.png")
  assert not (tmp_path / "bad.png").exists()
