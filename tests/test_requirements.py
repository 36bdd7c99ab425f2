"""The hashed requirements that .ci/run installs, against setup.py."""

import re
import runpy

import pytest
import setuptools
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HASH = r"--hash=sha256:[0-9a-f]{64}"


def metadata(monkeypatch):
  """The arguments of setuptools.setup in setup.py."""
  found = {}
  monkeypatch.setattr(setuptools, "setup", found.update)
  runpy.run_path(str(ROOT / "setup.py"))
  return found


def pinned(name):
  """The requirements of a list, each with its hashes; nothing else is in it."""
  text = (ROOT / ".ci" / name).read_text().replace("\\\n", "")
  lines = [x for x in text.splitlines() if not x.startswith("#")]
  rows = [re.fullmatch(rf"([^#]+?)((?: +{HASH})+)", line) for line in lines]
  assert all(rows), [x for x, row in zip(lines, rows, strict=True) if not row]
  return [Requirement(row[1]) for row in rows]


def version(pins, name, python):
  """The version of a package on Linux, or None."""
  where = dict(
      python_version=python,
      python_full_version=f"{python}.0",
      sys_platform="linux",
      platform_machine="x86_64",
      platform_python_implementation="CPython",
      implementation_name="cpython",
  )
  found = [
      next(iter(x.specifier)).version
      for x in pins
      if canonicalize_name(x.name) == canonicalize_name(name)
      and (x.marker is None or x.marker.evaluate(where))
  ]
  assert len(found) < 2
  return found[0] if found else None


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("test.txt", ["test"]),
        (
            *("slow.txt",),
            ["test", "docs", "interop", "loggers", "notebooks"]
            + ["reasoning-gym", "tpu"],
        ),
    ],
)
@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_every_requirement_is_pinned_within_its_bounds(
    monkeypatch, name, extras, python
):
  given = metadata(monkeypatch)
  lists = [given["install_requires"]]
  lists += [given["extras_require"][x] for x in extras]
  pins = pinned(name)
  assert all(x.specifier and "==" in str(x.specifier) for x in pins)
  for asked in map(Requirement, sum(lists, [])):
    found = version(pins, asked.name, python)
    assert found and asked.specifier.contains(found), (asked, found)


def test_all_tests_run_with_the_versions_of_the_default_ones():
  default, slow = pinned("test.txt"), pinned("slow.txt")
  for python in ("3.11", "3.12"):
    for pin in default:
      if found := version(default, pin.name, python):
        assert version(slow, pin.name, python) == found, pin.name


def test_what_runs_the_tests_installs_nothing_else():
  text = (ROOT / ".ci" / "run").read_text().replace("\\\n", " ")
  installs = re.findall(r"^ *pip install (.*)", text, re.M)
  unhashed = [x for x in installs if "--require-hashes" not in x]
  own, torch = unhashed
  assert "--no-deps --no-build-isolation -e ." in own
  assert torch.endswith('".[parity]"')  # see the comment there
  lists = {x.strip('"') for x in re.findall(r"-r (\S+)", text)}
  assert lists == {".ci/$packages.txt", ".ci/hadolint.txt"}
  assert pinned("hadolint.txt")


def test_an_extra_has_one_name_for_every_installer(monkeypatch):
  known = metadata(monkeypatch)["extras_require"]
  assert all(x == canonicalize_name(x) for x in known)
  named = set()
  paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
  paths += [*ROOT.glob("rl_reason/**/*.py"), *ROOT.glob("configs/**/*.py")]
  for path in paths:
    text = path.read_text(encoding="utf-8")
    for names in re.findall(r"(?:rl_reason|['\"]\.)\[([\w,-]+)\]", text):
      named |= set(names.split(","))
  assert {"reasoning-gym", "test"} <= named <= set(known)
