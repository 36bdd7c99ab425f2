"""docs/sft.md: its commands are accepted."""

import sft_page

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
