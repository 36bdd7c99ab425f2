"""Hooks of MkDocs: pages of the API, the results, and what documents link to.

Documents link to files outside docs/ as GitHub resolves them. On the site these
become pages, too: Markdown as it is, and other text as a block of code.
"""

import ast
import functools
import json
import os
import pathlib
import re

from mkdocs.structure.files import File

from rl_reason.lab import ablation_pages
from rl_reason.report import rendering

ROOT = pathlib.Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
CODE_IN_TABLE = re.compile(r"^\|.*`.*\\\|.*", re.MULTILINE)
LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".toml": "toml"}
OUTSIDE = (
    *("CONTRIBUTING.md", "CHANGELOG.md"),
    *("conformance/README.md", "results/README.md", "studies/README.md"),
)


def on_config(config):
  """Lists the pages of the API and of the results in the navigation."""
  rooms = [f"api/{name}.md" for name in api_pages() if name != "index"]
  lists = {"API": ["api/index.md", *rooms], "Results": result_pages()}
  lists["Studies"] = study_pages()
  for item in config.nav:
    for name in lists.keys() & item.keys():
      item[name] = lists[name]
  return config


def on_files(files, config):
  """Adds the pages that are not in docs/."""
  for name, text in api_pages().items():
    files.append(File.generated(config, f"api/{name}.md", content=text))
  todo = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
  todo, seen = [*filter(is_file, todo), *OUTSIDE], set()
  while todo:
    name = todo.pop()
    if name in seen:
      continue
    seen.add(name)
    path = ROOT / name
    if not (ROOT / "docs" / uri(name)).exists():
      if path.suffix in LANGUAGES:
        code = (
            f"# {name}\n\n```{LANGUAGES[path.suffix]}\n{path.read_text()}```\n"
        )
        page = File.generated(config, uri(name), content=code)
      else:
        page = File.generated(config, uri(name), abs_src_path=str(path))
      files.append(page)
    if path.suffix == ".md":
      links = LINK.findall(path.read_text())
      todo += filter(is_file, (resolve(name, link[1]) for link in links))
  for name, data in ablations().items():
    page = rendering.render("ablation", ablation_pages.page_data(data))
    files.append(File.generated(config, f"{name}.html", content=page))
  return files


def on_page_markdown(markdown, page, **_):
  """Points links to where the site has their targets."""
  here = page.file.src_uri
  if here.startswith("api/"):
    return markdown
  inside = (ROOT / "docs" / here).exists()
  name = f"docs/{here}" if inside else here

  def moved(match):
    text, link, anchor = match.groups()
    target = resolve(name, link)
    if not is_file(target):  # a folder: the site has no page of it
      return text
    there = os.path.relpath(uri(target), os.path.dirname(here))
    return f"[{text}]({there}{anchor or ''})"

  markdown = CODE_IN_TABLE.sub(unescaped, LINK.sub(moved, markdown))
  name, stem = here.removesuffix(".md"), pathlib.Path(here).stem
  if name in ablations():
    markdown = markdown.replace(f"`{stem}.html`", f"[{stem}.html]({stem}.html)")
  return markdown


@functools.cache
def ablations() -> dict[str, dict]:
  """The data of all ablations by path; each has an interactive page."""
  found = {}
  for pattern in ("results/*.json", "studies/*/*.json"):
    for path in sorted(ROOT.glob(pattern)):
      data = json.loads(path.read_text())
      if "measures" in data:
        found[path.relative_to(ROOT).with_suffix("").as_posix()] = data
  return found


def unescaped(match) -> str:
  """A row of a table whose code has plain bars: GitHub needs a backslash."""
  return re.sub(r"`[^`]*`", lambda x: x[0].replace("\\|", "|"), match[0])


def result_pages() -> list:
  """The pages of the results, in the order of the tables of their index."""
  index, names = "results/README.md", ("Experiments", "Measurements")
  pages = [
      [f"results/{name}" for _, name, _ in LINK.findall(x) if "/" not in name]
      for x in tables(index)[: len(names)]  # others are of the discussion
  ]
  return [index, *({k: v} for k, v in zip(names, pages, strict=True))]


def study_pages() -> list:
  """The pages of the studies, by the questions of their index."""
  index = "studies/README.md"
  pages = [
      [
          f"studies/{name}"
          for _, name, _ in LINK.findall(x)
          if name.endswith(".md") and not name.endswith("/plan.md")
      ]
      for x in tables(index)
  ]
  names = re.findall("^## (.*)$", (ROOT / index).read_text(), re.MULTILINE)
  return [index, *({k: v} for k, v in zip(names, pages, strict=True))]


def tables(name: str) -> list[str]:
  """The tables of a page."""
  blocks = (ROOT / name).read_text().split("\n\n")
  return [x for x in blocks if x.startswith("|")]


def resolve(page: str, link: str) -> str:
  """The file that a link of a page leads to, relative to the root."""
  return os.path.normpath(os.path.join(os.path.dirname(page), link))


def is_file(name: str) -> bool:
  """Whether the repository has a file of this name."""
  return (ROOT / name).is_file()


def uri(name: str) -> str:
  """Where the site has a file of the repository."""
  if name == "README.md":
    return "index.md"  # README is the overview of GitHub
  page = name.removeprefix("docs/")
  return f"{page}.md" if pathlib.Path(name).suffix in LANGUAGES else page


@functools.cache
def api_pages() -> dict[str, str]:
  """Pages of the API by name: one a room, and an index of all modules."""
  rooms: dict[str, list[str]] = {}
  for path in sorted((ROOT / "rl_reason").rglob("*.py")):
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    room = ".".join(parts[:2]) if path.parent.name != "rl_reason" else parts[0]
    if parts[-1] != "__main__" and "configs" not in parts:
      rooms.setdefault(room, []).append(".".join(parts))
  pages = {
      room: f"# {room}\n\n" + "\n\n".join(f"::: {x}" for x in modules) + "\n"
      for room, modules in rooms.items()
  }
  lines = ["# API", "", "All modules by room; signatures and docstrings.", ""]
  for room, modules in rooms.items():
    lines += [f"## [{room}]({room}.md)", "", "| module | |", "|---|---|"]
    lines += [f"| [{x}]({room}.md#{x}) | {summary(x)} |" for x in modules]
    lines.append("")
  return pages | {"index": "\n".join(lines)}


def summary(module: str) -> str:
  """The first sentence of a module's docstring."""
  path = ROOT.joinpath(*module.split("."))
  path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
  text = ast.get_docstring(ast.parse(path.read_text())) or ""
  return text.partition("\n")[0].replace("|", "\\|")
