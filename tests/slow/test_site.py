"""The site of the documentation: built strictly, without raw Markdown."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow
TEXT_OF_LINK = re.compile(r'<a\s[^>]*?href="([^"]+)"[^>]*>(.*?)</a>', re.DOTALL)
# What Markdown leaves in the text of a page where it was not understood.
RAW = re.compile(r"\]\([^)]*\)|\|-{3}|<p>[^<]*\n(?:- |\d+\. )|```|:::|`[a-z]")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
  """The directory of the built site."""
  for name in ("mkdocs", "material", "mkdocstrings"):
    pytest.importorskip(name, reason="pip install -e '.[docs]'")
  out = tmp_path_factory.mktemp("site")
  command = [
      sys.executable,
      "-m",
      "mkdocs",
      "build",
      "--strict",
      "-d",
      str(out),
  ]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return out


@pytest.fixture(scope="module")
def site(built):
  """The articles of the built site, without code, by the path of the page."""
  pages = {}
  for path in built.rglob("index.html"):
    article = re.search(r"<article.*?</article>", path.read_text(), re.DOTALL)
    text = re.sub(r"<(pre|code)\b.*?</\1>", "", article[0], flags=re.DOTALL)
    pages[str(path.parent.relative_to(built))] = text
  return pages


def test_no_page_shows_raw_markdown(site):
  shown = {name: RAW.search(text) for name, text in site.items()}
  assert not {name: found[0] for name, found in shown.items() if found}


def test_links_of_a_guide_with_one_text_lead_to_one_place(site):
  guides = [path.stem for path in (ROOT / "docs").glob("*.md")]
  wrong = []
  for name in {".", *guides} & site.keys():
    found = {}
    for place, text in TEXT_OF_LINK.findall(site[name]):
      found.setdefault(re.sub("<[^>]+>", "", text).strip(), set()).add(place)
    found.pop("&para;", None)  # of every heading
    wrong += [(name, x) for x, places in found.items() if len(places) > 1]
  assert not wrong


def test_every_guide_room_and_linked_file_has_its_page(site):
  guides = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
  rooms = {
      f"api/rl_reason.{path.parent.name}"
      for path in (ROOT / "rl_reason").glob("*/__init__.py")
      if path.parent.name != "configs"
  }
  linked = {"results", "results/seeds", "examples/own_reward.py", "CHANGELOG"}
  assert guides | rooms | linked | {".", "api"} <= site.keys()
  assert "Source code" in site["api/rl_reason.algorithms"]
  assert len(re.findall(r"<h3", site["api/rl_reason.algorithms"])) > 40


def test_the_home_page_has_a_picture_the_results_and_two_schemes(site, built):
  """The sidebar lists every page of the results."""
  home = (built / "index.html").read_text()
  assert 'src="results/seeds.png"' in site["."]
  assert (built / "results" / "seeds.png").exists()
  for scheme in ("default", "slate"):
    assert f'data-md-color-scheme="{scheme}"' in home
  pages = {path.stem for path in (ROOT / "results").glob("*.md")} - {"README"}
  listed = set(re.findall(r'href="results/(\w+)/" class="md-nav__link"', home))
  assert listed == pages
