"""The conformance kit in the environments of the peers that are installed."""

import subprocess
import sys

import pytest
from conftest import ROOT, child_env

from conformance import run as conformance

pytestmark = pytest.mark.slow
RESULT = conformance.results.read("conformance")


@pytest.mark.parametrize("name", conformance.PEERS)
def test_a_peer_answers_as_in_the_table(name):
  python = conformance.interpreter(name)
  if not python.exists():
    pytest.skip(f"python -m bench.peers --install {name}")
  answers = conformance.ask(str(python), f"conformance.adapters.{name}")
  known = conformance.differences()[name]
  found = conformance.verdicts(answers, known)
  committed = RESULT["libraries"][name]["verdicts"]
  assert {k: x["verdict"] for k, x in found.items()} == {
      k: x["verdict"] for k, x in committed.items()
  }
  assert {k: x.get("note") for k, x in found.items()} == {
      k: x.get("note") for k, x in committed.items()
  }


def test_an_adapter_by_the_command(tmp_path):
  path = tmp_path / "my_adapter.py"
  path.write_text(
      "class Mine:\n"
      "  def versions(self):\n    return dict(mine='1')\n"
      "  def dr_grpo_advantages(self, rewards_B, groups_B):\n"
      "    return dict(advantages_B=rewards_B)\n"
      "mine = Mine()\n"
  )
  env = child_env()
  env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
  command = [sys.executable, "-m", "conformance.run"]
  done = subprocess.run(
      [*command, "--against=my_adapter:mine"],
      cwd=ROOT,
      env=env,
      capture_output=True,
      text=True,
      check=False,
  )
  assert done.returncode == 1, done.stderr
  assert "fail   dr_grpo/by_hand" in done.stdout
  assert "absent gae/by_hand" in done.stdout
  assert done.stdout.splitlines()[-1].startswith("0 pass, 1 fail, ")


def test_a_peer_that_is_not_there_is_an_error(tmp_path, monkeypatch):
  monkeypatch.setattr(conformance.harness, "ENVIRONMENTS", tmp_path)
  given = conformance.argparse.Namespace(against=["trl"], python="")
  with pytest.raises(SystemExit, match="bench.peers --install trl"):
    conformance.measure(given)
