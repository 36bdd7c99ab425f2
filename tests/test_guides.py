"""Code printed in the guides works, links lead somewhere, terms are found."""

import importlib
import re

import pytest
import yaml
from conftest import ROOT

from rl_reason import checks, config
from rl_reason.tasks import Row, reward_functions, reward_terms

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [
    *DOCS,
    *(ROOT / f"{x}.md" for x in ("README", "CONTRIBUTING", "AGENTS")),
]


def blocks(name: str) -> list[str]:
  """The blocks of Python of a page."""
  text = (ROOT / "docs" / name).read_text()
  return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def anchors(text: str) -> set[str]:
  """Anchors of the headings of a page, as GitHub and MkDocs make them."""
  prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
  headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
  plain = [re.sub(r"[^\w\- ]", "", x.lower()) for x in headings]
  return {x.strip().replace(" ", "-") for x in plain}


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
  """Files; and headings, also of the page itself."""
  for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
    if target.startswith(("http:", "https:")):
      continue
    file, _, anchor = target.partition("#")
    found = path if not file else path.parent / file
    assert found.exists(), target
    if anchor:
      assert anchor in anchors(found.read_text()), target


def test_every_guide_is_on_the_map_and_in_the_site():
  index = (ROOT / "docs" / "index.md").read_text()
  mapped = set(re.findall(r"\]\((\w+\.md)", index)) | {"index.md"}
  assert mapped == {path.name for path in DOCS}
  site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
  listed = re.findall(r"'(\w+\.md)'", str(site["nav"]))
  assert mapped <= set(listed) and len(listed) == len(set(listed))


TERMS = """GRPO DAPO VAPO PPO RLOO GSPO CISPO RLVR LoRA FSDP TPU CUDA;pass@k;
dynamic sampling;clip-higher;token-level loss;overlong reward shaping;KV cache;
decoupled GAE;value pretraining;continuous batching;sequence packing"""


def test_terms_that_people_search_for_are_on_the_first_page():
  text = " ".join((ROOT / "docs" / "index.md").read_text().split())
  first, *phrases = re.split(";\\s*", TERMS)
  assert not [x for x in [*first.split(), *phrases] if x not in text]


def test_the_config_of_a_user_of_trl_is_accepted(tmp_path, monkeypatch):
  [code] = [x for x in blocks("coming_from.md") if "GRPO as TRL" in x]
  (tmp_path / "my_grpo.py").write_text(code)
  monkeypatch.chdir(tmp_path)
  c = config.read("my_grpo.py")
  checks.fields(c)
  assert (c.kl.coef, c.reduction.name) == (0.001, "token_mean")


def test_the_reward_of_a_user_of_verl_is_called(tmp_path, monkeypatch):
  [code] = [x for x in blocks("coming_from.md") if "compute_score" in x]
  (tmp_path / "my_score.py").write_text(code)
  monkeypatch.syspath_prepend(str(tmp_path))
  [name] = re.findall(r'reward.functions = "(.*?)"', code)
  importlib.invalidate_caches()
  function = reward_terms.find(name)
  row = Row("1+1=", "2", 0)
  texts = [reward_functions.Response(x, 0.5, False) for x in ("it is 2", "3")]
  assert [function.function(x, row) for x in texts] == [1.0, 0.0]
