"""Writes the pages of the reference: python docs/reference_pages.py.

fields.md    every field: default, values, what it needs, and its comment
functions.md every function that a field names: arguments and what it does
alerts.md    the rules by which a run is checked
terms.md     terms of papers, from rl_reason/report/terms.toml and features

Defaults, bounds and needs come from the config as it is built, so that they are
those of a run, whichever file declares a field. A comment is read beside the
declaration: at the end of its line, or on the lines above it.
"""

import ast
import inspect
import io
import pathlib
import re
import sys
import tokenize

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]  # a script has only its own folder there

from rl_reason.base import (  # noqa: E402
    config,
    fields,
    function_kinds,
    functions,
    resume_rules,
)
from rl_reason.configs import base  # noqa: E402
from rl_reason.monitoring import alerts  # noqa: E402
from rl_reason.report import terms  # noqa: E402

SOURCES = ("configs/base.py", "configs/variants.py", "rl_reason/features")
FIELD = re.compile(r"\b[a-z_]+(?:\.[a-z_]+)+\b")
WRITTEN = "It is written by `python docs/reference_pages.py`."
FIELDS = f"""# Fields

Every field of a config, by section. {WRITTEN}

A field is set in a config file (`c.rollout.batch = 128`) or on the command line
(`--config.rollout.batch=128`). The column *values* has the bounds, the choices,
and what the field needs: a field without what it needs does nothing, and is
refused. A section with `name` selects a [function](functions.md), whose
arguments are its `args`.
"""
RESUMED = """
## Fields of a resumed run

These fields may change when a run resumes, because no number depends on them
(except for rounding, and for what a time-out or a threshold stops): {}. So may
`rl.steps` if no schedule depends on it, and paths such as `model.path` and
`data.train`, whose files must have the same names and contents. A run with
another value of any other field is another run.
"""
FUNCTIONS = f"""# Functions

The functions that a config names. {WRITTEN}

Arguments are keyword arguments, which the field `args` of the section sets. The
positional parameters are what a run supplies by name: a [function of your
own](own_functions.md) takes any of them.
"""
ALERTS = f"""# Alerts

The rules of `rl_reason/monitoring/alerts.toml`. {WRITTEN}

The [playbook](playbook.md) tells how to read an alert and what to change first.
Metrics are in `metrics.jsonl` of the work directory, in lines of RL unless they
begin with `val-`; a number that is not finite is `null`.

| alert | metric | likely cause | try |
|---|---|---|---|
"""

TERMS = f"""# Terms

{WRITTEN[:-1]}
from `rl_reason/report/terms.toml` and the files of features.

## Words with one meaning here

| word | meaning |
|---|---|
{{}}

## Terms of papers, and where they are

What a term means, where its formula is, and the field or page that it is here.
The report of a run underlines these terms, and has the definitions of those
that it uses at its end; below each chart it says what the chart shows.

| term | what it is | formula | field, page |
|---|---|---|---|
{{}}
"""


def pages() -> dict[str, str]:
  """The text of each page, by its name."""
  return {
      "fields.md": field_page(),
      "functions.md": function_page(),
      "alerts.md": alert_page(),
      "terms.md": term_page(),
  }


# --- terms -------------------------------------------------------------------


def term_page() -> str:
  """Words and terms, in alphabetical order."""
  found = terms.read()
  return TERMS.format(
      "\n".join(f"| {x['term']} | {x['what']} |" for x in found["word"]),
      "\n".join(
          f"| {x['term']} | {x['what']} | {x['formula']} | {x['where']} |"
          for x in found["term"]
      ),
  )


# --- fields ------------------------------------------------------------------


def field_page() -> str:
  """Every field by section, in the order in which a config has them."""
  c = base.get_config()
  said = comments()
  sections: dict[str, list[str]] = {}
  for name in config.flat(c):
    if name in fields.FIELDS:
      sections.setdefault(name.rpartition(".")[0], []).append(name)
  lines = [FIELDS.rstrip()]
  for section, names in sections.items():
    needed = fields.SECTION_NEEDS.get(section)
    lines += ["", f"## {section or 'top level'}", ""]
    lines += [f"All of them need {spelled(needed)}.", ""] if needed else []
    lines += ["| field | default | values | |", "|---|---|---|---|"]
    for name in names:
      spec = fields.FIELDS[name]
      cells = (shown(spec.default), values(spec), said.get(name, ""))
      lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
  free = [
      f"`{x}*`" if x.endswith(".") else f"`{x}`"
      for x in resume_rules.free_fields()
  ]
  # Hashes of files, which no config has; a field with a condition of its own.
  free = [x for x in free if x not in ("`content.*`", "`rl.steps`")]
  return "\n".join(lines) + "\n" + RESUMED.format(", ".join(free))


def shown(value) -> str:
  """A value as code."""
  if isinstance(value, str):
    return f'"{value}"' if value else '""'
  return f"{value}"


def spelled(need: str) -> str:
  """What a field needs: a field as code, a fact in words."""
  return " or ".join(
      f"`{x}`" if x in fields.FIELDS else x for x in need.split(" or ")
  )


def values(spec: fields.Spec) -> str:
  """Choices, bounds and needs of a field, as a cell of a table."""
  parts = []
  if spec.choices:
    others = [x for x in spec.choices if x != spec.default]
    parts.append("or " + ", ".join(shown(x) for x in others))
  elif spec.low is not None and spec.high is not None:
    parts.append(f"{spec.low:g} to {spec.high:g}")
  elif spec.low is not None or spec.high is not None:
    word, bound = ("≥", spec.low) if spec.high is None else ("≤", spec.high)
    parts.append(f"{word} {bound:g}")
  parts += [f"at most `{spec.at_most}`"] * bool(spec.at_most)
  if spec.needs:
    parts.append("needs " + " and ".join(map(spelled, spec.needs)))
  parts += [f"not with `{x}`: {why}" for x, why in spec.not_with.items()]
  return "; ".join(parts)


def comments() -> dict[str, str]:
  """What the source says beside each field."""
  found: dict[str, str] = {}
  for path in sources():
    text = path.read_text()
    beside = comments_by_line(text)
    for name, first, last in declarations(ast.parse(text)):
      said = linked(comment_of(beside, first, last))
      for known in fields.FIELDS:
        exact = known in (name, f"{name}.name")
        shared = name.startswith("*.") and known.endswith(name[1:])
        if said and (exact or shared and known not in found):
          found[known] = said
  return found


def sources() -> list[pathlib.Path]:
  """The files that declare fields."""
  out = []
  for name in SOURCES:
    path = ROOT / name
    out += sorted(path.rglob("*.py")) if path.is_dir() else [path]
  return [x for x in out if x.exists()]


def declarations(tree: ast.AST):
  """Names of fields with the first and the last line of each.

  A call whose first argument is the name of a section declares its keywords; a
  dict with full names its keys; a dict(...) fields that several sections share.
  """
  for node in ast.walk(tree):
    if isinstance(node, ast.Call):
      texts = [x.value for x in node.args if isinstance(x, ast.Constant)]
      named = bool(texts) and isinstance(texts[0], str)
      shared = isinstance(node.func, ast.Name) and node.func.id == "dict"
      for word in node.keywords:
        if word.arg and (named or shared and not node.args):
          section = f"{texts[0]}." if named else "*."
          yield (
              f"{section}{word.arg}".lstrip("."),
              word.lineno,
              word.value.end_lineno,
          )
    elif isinstance(node, ast.Dict):
      for key, value in zip(node.keys, node.values, strict=True):
        declared = isinstance(value, ast.Call)  # not a reason of `not_with`
        if declared and isinstance(key, ast.Constant) and key.value:
          yield key.value, key.lineno, value.end_lineno
    elif isinstance(node, ast.Assign):
      name = ast.unparse(node.targets[0]).removeprefix("c.")
      yield name, node.lineno, node.end_lineno


def comments_by_line(text: str) -> dict[int, tuple[str, bool]]:
  """Comments by line, and whether nothing else is on the line."""
  tokens = tokenize.generate_tokens(io.StringIO(text).readline)
  return {
      x.start[0]: (x.string.lstrip("# "), not x.line[: x.start[1]].strip())
      for x in tokens
      if x.type == tokenize.COMMENT
  }


def comment_of(beside, first: int, last: int) -> str:
  """The lines above a declaration, then those within it."""
  above = []
  line = first - 1
  while line in beside and beside[line][1]:
    above.insert(0, beside[line][0])
    line -= 1
  within = [beside[x][0] for x in (first, last) if x in beside]
  return " ".join([*above, *dict.fromkeys(within)])


def linked(text: str) -> str:
  """A comment as a cell: pages become links."""
  return cell(re.sub(r"docs/(\w+)\.md", r"[\1](\1.md)", text))


def cell(text: str) -> str:
  """A text as a cell of a table."""
  return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*")


# --- functions ---------------------------------------------------------------


def function_page() -> str:
  """Every function of the package that a field names."""
  lines = [FUNCTIONS.rstrip()]
  for kind, known in function_kinds.KINDS.items():
    lines += ["", f"## {known.field}", ""]
    if known.off:
      lines += [f'The default, "{known.off}", stands for no function.', ""]
    lines += ["A run supplies " + ", ".join(known.inputs) + ".", ""] * bool(
        known.inputs
    )
    lines += ["| name | arguments | |", "|---|---|---|"]
    for name in functions.names(kind):
      found = functions.signature(kind, name)
      if found.function is None:
        continue
      given = ", ".join(argument(*x) for x in found.arguments.items())
      lines.append(f"| `{name}` | {given} | {summary(found.function)} |")
  return "\n".join(lines) + "\n"


def argument(name: str, spec: fields.Spec) -> str:
  """An argument with its default and its values."""
  default = "" if spec.default is fields.REQUIRED else f"={spec.default!r}"
  more = values(spec._replace(needs=()))
  return f"`{name}{default}`" + (f" ({more})" if more else "")


def summary(function) -> str:
  """The first paragraph of a docstring, in one line."""
  return cell((inspect.getdoc(function) or "").partition("\n\n")[0])


# --- alerts ------------------------------------------------------------------


def alert_page() -> str:
  """The rules of the alerts, which the playbook explains."""
  rows = []
  for x in alerts.RULES:
    remedy = FIELD.sub(r"`\g<0>`", x.remedy)
    rows.append(f"| {x.name} | {x.where} | {x.cause} | {remedy} |\n")
  return ALERTS + "".join(rows)


def main() -> None:
  """Writes what differs."""
  for name, text in pages().items():
    path = ROOT / "docs" / name
    if not path.exists() or path.read_text() != text:
      path.write_text(text)
      print(f"docs/{name}")


if __name__ == "__main__":
  main()
