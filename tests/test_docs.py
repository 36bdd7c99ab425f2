"""What the documents name is there, and signatures are those of the code."""

import importlib
import json
import re

import pytest
import yaml
from conftest import ROOT

import rl_reason
from configs import base
from rl_reason.base import config, fields, function_kinds, functions
from rl_reason.checks import config_facts

DOCUMENTS = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")),
    *(ROOT / name / "README.md" for name in ("conformance", "studies")),
    *sorted((ROOT / "rl_reason" / "features").rglob("*.md")),
]
ALGORITHMS = (ROOT / "docs" / "algorithms.md").read_text()
ARGUMENTS = {
    f"{known.field}.args.{argument}"
    for kind, known in function_kinds.KINDS.items()
    for name in functions.names(kind)
    for argument in functions.signature(kind, name).arguments
}
FIELDS = config.flat(base.get_config()).keys() | ARGUMENTS
SECTIONS = {name.partition(".")[0] for name in FIELDS}
PACKAGE = ROOT / "rl_reason"
CODE = {p: p.read_text() for p in sorted(PACKAGE.rglob("*.py"))}
FOLDERS = {p.name for p in ROOT.iterdir() if p.is_dir()} - {"runs"}  # not ours
SOURCE = re.compile(r"[\w./-]+\.(py|md|png|ipynb|sh|toml)(:\w+)?")
PREFIXES = {"actor", "critic", "timing_s", "coef"}  # of f"{prefix}/{name}"


def spans(text: str) -> list[str]:
  """What stands in backticks, one line each."""
  prose = re.sub(r"^(```|    ).*$", "", text, flags=re.M)
  return [" ".join(x.split()) for x in re.findall(r"`([^`]+)`", prose)]


def is_path(span: str) -> bool:
  """Whether it names a file or a folder of the repository."""
  folder = "/" in span and span.partition("/")[0] in FOLDERS
  return " " not in span and bool(folder or SOURCE.fullmatch(span))


def bad_paths(text: str, folder=ROOT / "docs") -> list[str]:
  """Files and folders that are named or linked, and are not there."""
  links = re.findall(r"\]\(([^)#:]+)\)", text)
  commands = re.findall(r"--config=(\S+?\.py)", text)
  names = [x for x in spans(text) if is_path(x)] + links + commands
  return [
      name
      for name in names
      if name not in (path.name for path in CODE)  # in any room
      and not re.fullmatch(r"my(_\w+)?\.py", name)  # the reader's own
      and not any(
          list(place.glob(name.partition(":")[0].rstrip("/")))
          for place in (ROOT, PACKAGE, folder)
      )
  ]


def modules(name: str) -> list:
  """The modules of a name, in whatever room, and the room of that name."""
  found = [path.with_suffix("") for path in CODE if path.stem == name]
  found += [PACKAGE / name] if (PACKAGE / name).is_dir() else []
  return [
      importlib.import_module(".".join(path.relative_to(ROOT).parts))
      for path in found
  ]


def bad_names(text: str) -> list[str]:
  """Dotted names that are neither a field nor in a module of rl_reason."""
  out = []
  for span in spans(text):
    if is_path(span):
      continue
    for name in re.findall(r"\b[a-z_]\w*(?:\.(?:\w+|\*))+", span):
      name = name.removeprefix("config.")
      first, _, rest = name.partition(".")
      known = name in FIELDS or name == f"{first}.*"
      if known or re.search(r"\.(jsonl?|html|txt)$", name):  # of a run
        continue
      section = name.removesuffix(".*")
      if any(field.startswith(f"{section}.") for field in FIELDS):
        continue  # a section within a section
      places = modules(first)
      known = any(hasattr(place, rest) for place in places)
      if not known and (places or first in SECTIONS):
        out.append(name)
  return out


def bad_metrics(text: str) -> list[str]:
  """Metrics that nothing logs."""
  everything = "\n".join(CODE.values())
  logged = set(re.findall(r'"([a-z_]+)/\w', everything))
  out = []
  for name in spans(text):
    prefix, _, rest = name.partition("/")
    plain = re.fullmatch(r"\w+", rest) and not is_path(name)
    if not plain or prefix not in logged | PREFIXES:
      continue
    # As a keyword of dict(), or as a key.
    built = prefix in PREFIXES and re.search(rf'\b{rest}=|"{rest}"', everything)
    if not built and f'"{name}"' not in everything:
      out.append(name)
  return out


def test_every_config_is_explained():
  for folder in ("configs", "configs/paper"):
    for path in sorted((ROOT / folder).glob("*.py")):
      assert f"`{folder}/{path.name}`" in ALGORITHMS


def test_the_guide_tells_what_configs_cost_and_reach():
  measured = json.loads((ROOT / "studies" / "table" / "table.json").read_text())
  rows = re.findall(r"^\| `configs/(\w+)\.py` \| (.*) \|$", ALGORITHMS, re.M)
  assert len(rows) > 10
  for name, cells in rows:
    c = importlib.import_module(f"configs.{name}").get_config()
    critic = "no"
    if config_facts.has_critic(c):
      critic = "pretrained" if c.critic.pretrain_steps else "yes"
    sampling = c.dynamic_sampling
    rounds = f"up to {sampling.max_rounds}" if sampling.enabled else "1"
    updates = c.updates.minibatches * c.updates.epochs
    costs = [critic, rounds, str(c.rollout.group_size), str(updates)]
    last = [
        run["accuracy"][-1]
        for run in measured["runs"]
        if (run["task"], run["row"]) == ("arithmetic", name)
    ]
    score = f"{sum(last) / len(last):.1%}".removesuffix("%")
    assert cells.split(" | ")[1:] == [*costs, score], name


def section(name: str) -> str:
  """The field that a reader looks for: the arguments stand with the name."""
  return re.sub(r"\.args$", ".name", name)


@pytest.mark.parametrize(
    "path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT))
)
def test_what_is_named_is_there(path):
  text = path.read_text()
  if path.name == "coming_from.md":  # later columns are fields of others
    text = re.sub(r"^(\|[^|]*\|).*$", r"\1", text, flags=re.M)
    text = text.partition("## What is")[0] + text.partition("## Fields")[2]
    text = re.sub(r"`(reward_model.ground_truth|GRPOConfig.*?)`", "", text)
  if path.name == "scope.md":
    text, _, attic = text.partition("## Attic")
    assert [x for x in fields.REMOVED if f"`{section(x)}`" not in attic] == []
  assert not bad_paths(text, path.parent)
  assert not bad_names(text)
  assert not bad_metrics(text)


def test_the_map_for_agents_has_every_room():
  text = (ROOT / "AGENTS.md").read_text()
  for path in PACKAGE.glob("*/__init__.py"):
    assert f"`rl_reason/{path.parent.name}/`" in text


def test_the_citation_is_of_this_version():
  citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
  assert citation["version"] == rl_reason.__version__
  setup = (ROOT / "setup.py").read_text()
  assert f'license="{citation["license"]}"' in setup


def test_mistakes_are_seen():
  paths = "`configs/a.py` `stages/rl.py` `rl.py` `training/credit.py` `b.py`"
  assert bad_paths(paths) == ["configs/a.py", "training/credit.py", "b.py"]
  assert bad_paths("`configs/` [x](design.md) [y](a.md)") == ["a.md"]
  assert bad_paths("    main --config=configs/a.py:b") == ["configs/a.py"]
  names = "`surrogate.args.clip_top` `surrogate.args.clip_high` `log.*`"
  assert bad_names(names) == ["surrogate.args.clip_top"]
  assert bad_names("`sampler.sample` `sampler.simple = 1`") == [
      "sampler.simple"
  ]
  assert bad_names("`advantages.gone` `sft.habits`") == ["advantages.gone"]
  some = "`actor/ess` `actor/gone` `kl/reference` `coef/kl` `train/gone`"
  assert bad_metrics(some) == ["actor/gone", "train/gone"]
