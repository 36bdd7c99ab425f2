"""What the documents name is there, and signatures are those of the code."""

import importlib
import inspect
import json
import re

import pytest
from conftest import ROOT

from configs import base
from rl_reason import config, functions

MODULES = (
    "advantages",
    "surrogates",
    "weights",
    "rewards",
    "corrections",
    "values",
    "losses",
    "schedules",
    "groups",
)
DOCUMENTS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
ALGORITHMS = (ROOT / "docs" / "algorithms.md").read_text()
ARGUMENTS = {
    f"{known.field}.args.{argument}"
    for kind, known in functions.KINDS.items()
    for name in functions.names(kind)
    for argument in functions.signature(kind, name).arguments
}
FIELDS = config.flat(base.get_config()).keys() | ARGUMENTS
SECTIONS = {name.partition(".")[0] for name in FIELDS}
CODE = {p.stem: p.read_text() for p in (ROOT / "rl_reason").rglob("*.py")}
FOLDERS = {p.name for p in ROOT.iterdir() if p.is_dir()} - {"runs"}  # not ours
SOURCE = re.compile(r"[\w./-]+\.(py|md|png|ipynb|sh|toml)(:\w+)?")
PREFIXES = {"actor", "critic", "timing_s", "coef"}  # of f"{prefix}/{name}"


def signature(module: str, name: str) -> str:
  """`module.name(...)` with defaults, without annotations."""
  function = getattr(importlib.import_module(f"rl_reason.{module}"), name)
  said = inspect.signature(function)
  bare = [p.replace(annotation=p.empty) for p in said.parameters.values()]
  out = said.replace(parameters=bare, return_annotation=said.empty)
  return f"{module}.{name}{out}"


def signatures() -> set[str]:
  """Of every public function of the pure core."""
  return {
      signature(module, name)
      for module in MODULES
      for name in config.signatures(module)
  }


def spans(text: str) -> list[str]:
  """What stands in backticks, one line each."""
  prose = re.sub(r"^(```|    ).*$", "", text, flags=re.M)
  return [" ".join(x.split()) for x in re.findall(r"`([^`]+)`", prose)]


def is_path(span: str) -> bool:
  """Whether it names a file or a folder of the repository."""
  folder = "/" in span and span.partition("/")[0] in FOLDERS
  return " " not in span and bool(folder or SOURCE.fullmatch(span))


def bad_paths(text: str) -> list[str]:
  """Files and folders that are named or linked, and are not there."""
  links = re.findall(r"\]\(([^)#:]+)\)", text)
  commands = re.findall(r"--config=(\S+?\.py)", text)
  names = [x for x in spans(text) if is_path(x)] + links + commands
  return [
      name
      for name in names
      if not any(
          list(place.glob(name.partition(":")[0].rstrip("/")))
          for place in (ROOT, ROOT / "rl_reason", ROOT / "docs")
      )
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
      if known or re.search(r"\.(jsonl?|html)$", name):  # of a run
        continue
      if any(field.startswith(f"{name}.") for field in FIELDS):
        continue  # a section within a section
      module = first in CODE or (ROOT / "rl_reason" / first).is_dir()
      if module:
        place = importlib.import_module(f"rl_reason.{first}")
        known = hasattr(place, rest)
      if not known and (module or first in SECTIONS):
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


def test_signatures():
  lines = re.findall(rf"^((?:{'|'.join(MODULES)})\.\w+\(.*)$", ALGORITHMS, re.M)
  missing = sorted(signatures() - set(lines))
  assert not missing, "not in docs/algorithms.md:\n" + "\n".join(missing)
  assert sorted(lines) == sorted(signatures()), "stale or twice"


def test_every_config_has_a_section():
  headings = " ".join(re.findall(r"^#+ (.*)$", ALGORITHMS, re.M))
  for path in sorted((ROOT / "configs").glob("*.py")):
    assert f"`configs/{path.name}`" in headings
  for path in sorted((ROOT / "configs" / "paper").glob("*.py")):
    assert f"`configs/paper/{path.name}`" in ALGORITHMS


def test_the_guide_tells_what_configs_cost_and_reach():
  measured = json.loads((ROOT / "results" / "algorithms.json").read_text())
  rows = re.findall(r"^\| `configs/(\w+)\.py` \| (.*) \|$", ALGORITHMS, re.M)
  assert len(rows) > 10
  for name, cells in rows:
    c = importlib.import_module(f"configs.{name}").get_config()
    critic = "no"
    if config.has_critic(c):
      critic = "pretrained" if c.critic.pretrain_steps else "yes"
    sampling = c.dynamic_sampling
    rounds = f"up to {sampling.max_rounds}" if sampling.enabled else "1"
    updates = c.updates.minibatches * c.updates.epochs
    costs = [critic, rounds, str(c.rollout.group_size), str(updates)]
    last = [
        run["evaluate"]["accuracy"][-1]
        for run in measured["runs"]
        if run["row"] == name
    ]
    score = f"{sum(last) / len(last):.1%}".removesuffix("%")
    assert cells.split(" | ")[1:] == [*costs, score], name


def test_every_function_that_a_field_names_is_explained():
  body = ALGORITHMS.partition("## Signatures")[0]
  for kind in functions.KINDS:
    for name in functions.names(kind):
      found = functions.signature(kind, name)
      module = found.module.rpartition(".")[2]
      assert not module or f"`{module}.{found.function}`" in body


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_what_is_named_is_there(path):
  text = path.read_text()
  assert not bad_paths(text)
  assert not bad_names(text)
  assert not bad_metrics(text)


def test_mistakes_are_seen():
  assert bad_paths("`configs/a.py` `stages/rl.py` `rl.py`") == [
      "configs/a.py",
      "rl.py",
  ]
  assert bad_paths("`configs/` [x](design.md) [y](a.md)") == ["a.md"]
  assert bad_paths("    main --config=configs/a.py:b") == ["configs/a.py"]
  names = "`surrogate.args.clip_top` `surrogate.args.clip_high` `log.*`"
  assert bad_names(names) == ["surrogate.args.clip_top"]
  assert bad_names("`rollout.sample` `rollout.simple = 1`") == [
      "rollout.simple"
  ]
  assert bad_names("`advantages.gone` `sft.skill`") == ["advantages.gone"]
  some = "`actor/ess` `actor/gone` `kl/reference` `coef/kl` `train/gone`"
  assert bad_metrics(some) == ["actor/gone", "train/gone"]


def test_a_signature_is_written_plainly():
  assert (
      signature("advantages", "group_norm")
      == "advantages.group_norm(rewards_B, groups_B, *, eps=1e-06, ddof=1)"
  )


# --- code lines --------------------------------------------------------------

LINES = re.compile(r"\n(\[`\w+\.\w+`\]: \S+\n)+\Z")


def linked(text: str) -> str:
  """Functions `module.name` as links to the line of their `def`."""
  found = {}

  def link(match):
    module, name = match.groups()
    path = ROOT / "rl_reason" / f"{module}.py"
    lines = path.read_text().splitlines() if path.exists() else []
    at = [n for n, x in enumerate(lines, 1) if x.startswith(f"def {name}(")]
    if not at:
      return match[0]
    found[match[0]] = f"../rl_reason/{module}.py#L{at[0]}"
    return f"[{match[0]}]"

  text = LINES.sub("\n", text)
  text = re.sub(r"\[(`\w+\.\w+`)\](?!\()", r"\1", text)
  text = re.sub(r"(?<!\[)`(\w+)\.(\w+)`", link, text)
  rows = [f"[{name}]: {where}\n" for name, where in sorted(found.items())]
  return "\n".join([text.rstrip("\n") + "\n", "".join(rows)])


def test_functions_are_linked_to_their_lines():
  assert linked(ALGORITHMS) == ALGORITHMS, "mend: python tests/test_docs.py"
  assert "advantages.py#L" in ALGORITHMS


def test_a_line_that_moved_is_mended():
  text = "See `losses.kl`, not `losses.nothing` or `loss.kl`.\n"
  once = linked(text)
  assert "See [`losses.kl`], not `losses.nothing`" in once
  moved = re.sub(r"#L\d+", "#L1", once)
  assert moved != once and linked(moved) == linked(once) == once


if __name__ == "__main__":
  (ROOT / "docs" / "algorithms.md").write_text(linked(ALGORITHMS))
