"""The pages of the four switches and of the surrogates in a browser."""

import html
import itertools
import shutil

import numpy as np
import pytest
from conftest import found_in_browser
from switch_runs import result

from bench.tools import cards
from studies.four_switches import run as four_switches

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium"),
]
PAGES = {
    "switches": lambda: four_switches.interactive(result()),
    "cards": cards.page,
}


def written(folder, name):
  path = folder / f"{name}.html"
  path.write_text(PAGES[name](), encoding="utf-8")
  return path


def test_formulas_are_those_of_the_package(tmp_path):
  """Loss and derivative of every surrogate, for both signs of A."""
  wanted, asked = [], []
  for name, card in cards.CARDS.items():
    grid = {
        x: (low + 0.2 * (high - low), low + 0.7 * (high - low))
        for x, (low, high, _) in card["sliders"].items()
    }
    if "dual_clip" in grid:
      grid["dual_clip"] = (0.0, 3.0)
    ratios = (0.01, 0.52, 0.97, 1.0, 1.0303, 1.27, 2.9, 3.1, 7.0)
    for values in itertools.product(*grid.values()):
      keywords = dict(zip(grid, values, strict=True))
      for ratio, sign in itertools.product(ratios, (1, -1)):
        asked.append([name, ratio, sign, keywords])
        old = 0.1
        wanted.append(cards.of_package(name, ratio, sign, old, **keywords))
  probe = """<script>
    const asked = ASKED;
    const found = asked.map(([name, r, A, p]) => {
      const {loss, slope} = SURROGATES[name](r, A, p, .1);
      return [loss, slope];
    });
    document.body.textContent = "FOUND" + JSON.stringify(found) + "FOUND";
  </script>""".replace("ASKED", str(asked).replace("'", '"'))
  found = found_in_browser(written(tmp_path, "cards"), probe)
  assert len(found) == len(wanted) > 100
  for one, got, want in zip(asked, found, wanted, strict=True):
    assert got == pytest.approx(want, abs=2e-5), one


def test_sliders_move_the_curves(tmp_path):
  """A keyword moves what the card says; a config sets its sliders."""
  probe = """<script>
    const card = document.querySelector("#ppo");
    const text = () => [...card.querySelectorAll("p")].find(
      x => x.textContent.startsWith("The gradient")).textContent;
    const paths = () => [...card.querySelectorAll("path")].map(
      x => x.getAttribute("d"));
    const found = [text()], before = paths();
    const [low, high, dual] = card.querySelectorAll("input");
    high.value = .5;
    high.dispatchEvent(new Event("input"));
    found.push(text(), paths().filter((d, i) => d !== before[i]).length);
    const of = card.querySelector("select");
    of.value = "dapo.py";
    of.dispatchEvent(new Event("change"));
    const width = card.querySelectorAll("select")[1];
    found.push(text(), [low.value, high.value, dual.value], width.value);
    of.value = "ppo.py";
    of.dispatchEvent(new Event("change"));
    found.push(width.value);
    document.body.textContent = "FOUND" + JSON.stringify(found) + "FOUND";
  </script>"""
  found = found_in_browser(written(tmp_path, "cards"), probe)
  zero = "The gradient is 0 where A > 0: r > {}; A < 0: r < 0.8{}."
  assert found == [
      zero.format("1.2", ""),
      zero.format("1.5", ""),
      4,  # both signs: the vertical axis is longer, too
      zero.format("1.28", " or r > 10"),
      ["0.2", "0.28", "10"],
      "0 to 12",  # with the dual clip
      "0 to 3",
  ]


def test_curves_show_the_clip_and_end_at_a_probability_of_1(tmp_path):
  """GSPO's bound is seen in its loss; p_old = .5 ends DPPO's curve at r = 2."""
  probe = """<script>
    const curve = (name, chart) => document.querySelector(
      `#${name} .chart:nth-child(${chart}) path`).getAttribute("d")
      .slice(1).split("L").map(point => point.split(",").map(Number));
    const heights = curve("gspo", 1).map(([x, y]) => y);
    const ends = name => curve(name, 2).map(([x, y]) => x);
    const found = [heights, ends("ppo"), ends("dppo")];
    const cursor = document.querySelectorAll("#dppo input")[4];
    cursor.value = 1;
    cursor.dispatchEvent(new Event("input"));
    found.push(cursor.nextSibling.textContent);
    document.body.textContent = "FOUND" + JSON.stringify(found) + "FOUND";
  </script>"""
  found = found_in_browser(written(tmp_path, "cards"), probe)
  heights, wide, short, reading = found
  assert max(heights) - min(heights) > 100  # pixels, of 172
  assert heights[-100] == heights[-1]  # clipped
  assert wide[0] == short[0]
  length = (short[-1] - short[0]) / (wide[-1] - wide[0])
  assert length == pytest.approx(2 / 3, abs=1e-3)
  assert reading == "2.000"


def test_the_range_of_a_card_and_its_mask(tmp_path):
  """The range shows the bounds of the settings; delta removes responses."""
  probe = """<script>
    const selects = document.querySelectorAll("#gspo select");
    const found = [selects[1].value];
    selects[0].value = "gspo.py";
    selects[0].dispatchEvent(new Event("change"));
    found.push(selects[1].value);
    const card = document.querySelector("#ppo_sequence_mask");
    const delta = card.querySelectorAll("input")[2];
    delta.value = .1;
    delta.dispatchEvent(new Event("input"));
    found.push([...card.querySelectorAll("p")].find(
      x => x.textContent.startsWith("The gradient")).textContent);
    document.body.textContent = "FOUND" + JSON.stringify(found) + "FOUND";
  </script>"""
  before, after, mask = found_in_browser(written(tmp_path, "cards"), probe)
  assert (before, after) == ("1 ± 0.002", "1 ± 0.1")
  assert f"A < 0: r < {np.exp(-0.1):.6f}." in mask  # and not 0.8


def test_switches_turn_by_press_and_by_number(tmp_path):
  """All are off at the start; readouts are those of the runs."""
  probe = """<script>
    const tile = k => $("tiles").children[k].textContent;
    const checked = () => [...$("switches").children].map(
      x => x.getAttribute("aria-checked"));
    const press = key => document.body.dispatchEvent(
      new KeyboardEvent("keydown", {key, bubbles: true}));
    const found = [checked(), $("count").textContent, tile(0), tile(2)];
    $("switches").children[1].click();
    press("1");
    found.push(checked(), $("count").textContent, tile(0), tile(2));
    found.push($("switches").children[1].textContent);
    press("2");
    const pressed = document.querySelector("#map [aria-pressed=true]");
    pressed.focus();
    pressed.dispatchEvent(new KeyboardEvent("keydown",
      {key: "ArrowRight", bubbles: true}));
    found.push(cell, document.activeElement.title);
    $("outcome").selectedIndex = 3;
    $("outcome").onchange();
    found.push($("switches").children[3].textContent);
    document.body.textContent = "FOUND" + JSON.stringify(found) + "FOUND";
  </script>"""
  first, count, accuracy, entropy, *more = found_in_browser(
      written(tmp_path, "switches"), probe
  )
  assert first == ["false"] * 4 and count == "0 of 4 on"
  assert "21.0" in accuracy and "0.200" in entropy
  assert "collapsed on 3 of 3 seeds" in entropy
  turned, count, accuracy, entropy, effect, moved, title, shaping = more
  assert turned == ["true", "true", "false", "false"] and count == "2 of 4 on"
  assert "27.0" in accuracy and "+6.0\xa0±\xa00.0 points" in accuracy
  assert "healthy on all 3 seeds" in entropy
  assert effect == "2. Dynamic Sampling+6.0\xa0±\xa00.0 points"
  assert moved == [1, 0, 0, 1]
  assert title.startswith("Clip-Higher, Overlong Shaping: 21.0")
  assert shaping == "4. Overlong Shaping\u221210.0\xa0±\xa00.0 tokens"


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_the_window(tmp_path, name, width):
  text = html.escape(written(tmp_path, name).read_text(encoding="utf-8"))
  frame = tmp_path / "frame.html"
  frame.write_text(
      f"""<!doctype html><body><iframe width={width} height=800
      style="border:0" srcdoc="{text}"></iframe>""",
      encoding="utf-8",
  )
  probe = """<script>onload = () => {
    const page = document.querySelector("iframe").contentWindow.document;
    const wide = page.documentElement.scrollWidth;
    document.body.textContent = "FOUND" + JSON.stringify(wide) + "FOUND";
  }</script>"""
  assert found_in_browser(frame, probe) <= width
