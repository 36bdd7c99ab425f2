"""docs/sft.md: its commands are accepted, and its table has the defaults."""

import re

import sft_page

from configs import base
from rl_reason.base.fields import FIELDS
from rl_reason.checks import command_line, config_checks


def test_every_command_is_accepted(tmp_path, monkeypatch):
  sft_page.write(tmp_path)
  monkeypatch.chdir(tmp_path)
  for words in sft_page.commands():
    rest, given = command_line._split_fields(words)
    flags = dict(x.removeprefix("--").split("=") for x in rest)
    if path := flags.get("config"):
      c, notes = config_checks.checked(path, given)
      assert not any("warning" in x for x in notes)
      assert c.sft.steps == (
          0 if c.sft.reuse or "export" in c.model.path else 20
      )
    else:
      assert set(flags) == {"stage", "workdir"}
  assert len(sft_page.commands()) == 6


def test_the_table_has_the_defaults():
  base.get_config()
  table = re.findall(r"(?m)^\| `([\w.]+)` \|([^|]*)\|", sft_page.PAGE)
  shown = {name: value.strip() for name, value in table if name in FIELDS}
  assert {x for x in FIELDS if re.fullmatch(r"sft\.\w+", x)} <= {
      *shown,
      # Of tasks that generate their demonstrations:
      "sft.mixture",
      "sft.difficulties",
  }
  for name, value in shown.items():
    default = FIELDS[name].default
    number = isinstance(default, float | int)
    assert (float(value) if number else value) == default, name
