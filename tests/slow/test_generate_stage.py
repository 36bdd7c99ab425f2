"""The generate stage: resumed to the same files, which prepare reads."""

import hashlib
import json
import types

import jax
import pytest
import tiny_session
from tiny_session import call, half_correct, shared_programs  # noqa: F401, fixtures

from rl_reason.base.errors import RunError, Stopped
from rl_reason.data import datasets, readers
from rl_reason.lab import generate
from rl_reason.monitoring import display
from rl_reason.stages import trained_parameters
from rl_reason.tasks import arithmetic

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path, monkeypatch, request):
  """Runs the stage with a random policy; stops after so many batches."""

  for fixture in ("half_correct", "shared_programs"):
    request.getfixturevalue(fixture)

  def load(c, which, *, model, output):
    session = types.SimpleNamespace(config=c, cfg=model.cfg, mesh=model.mesh)
    return tiny_session.random_params(session), None, 3, "a random policy"

  monkeypatch.setattr(trained_parameters, "policy", load)

  def make(name="run", stop_at=None, **changes):
    usual = dict(prompts=10, batch=4, samples=4) | changes
    session = tiny_session.make_session(
        tmp_path / name, **{f"generate__{k}": x for k, x in usual.items()}
    )
    if stop_at is not None:
      session = tiny_session.interrupted(session, stop_at=stop_at)
    with jax.set_mesh(session.mesh):
      return call(generate.run, session, "newest")

  return make


def contents(out):
  return {x.name: x.read_bytes() for x in out.iterdir()}


def rows_of(out):
  (source, _), *_ = datasets.parse_all(str(out), "train")
  rows = list(datasets.examples(source, datasets.columns(""), "none"))
  assert not [x for x in rows if isinstance(x, datasets.Malformed)]
  return rows


def test_a_stage_that_was_stopped_writes_the_same_files(run):
  out = run()
  assert out.name == "3" and len(contents(out)) == 3
  with pytest.raises(Stopped):
    run("other", stop_at=1)
  other = out.parents[2] / "other" / "generated" / "3"
  assert len(contents(other)) == 1
  (other / "part-000000000.jsonl").write_text("damaged")
  assert contents(run("other")) == contents(out)
  manifest = json.loads(out.with_name("3.json").read_text())
  assert manifest["totals"]["responses"] == manifest["totals"]["rows"] == 40
  for name, entry in manifest["files"].items():
    digest = hashlib.sha256((out / name).read_bytes()).hexdigest()
    assert digest == entry["sha256"]
  with pytest.raises(RunError, match="generate.samples = 4, not 2"):
    run(samples=2)


def test_prepare_reads_what_was_kept(run):
  """The prompts, answers and responses of `all`, and in Parquet of `pairs`."""
  out = run()
  lines = [
      json.loads(line)
      for path in sorted(out.iterdir())
      for line in path.read_text().splitlines()
  ]
  rows = rows_of(out)
  assert [(x.question, x.answer, x.response) for x in rows] == [
      (x["prompt"], x["answer"], x["response"]) for x in lines
  ]
  for x in lines:
    assert len(x["ids"]) == len(x["logps"]) > 0 > max(x["logps"])
    assert x["reward"] == (1 if x["correct"] else -1)
  # The prompts alone know how often their responses are correct.
  prompts = rows_of(run("prompts", keep="prompts"))
  assert len(prompts) == 10
  for row in prompts:
    group = [x for x in lines if x["prompt"] == row.question]
    assert row.pass_rate == sum(x["correct"] for x in group) / len(group)
    assert all(x["pass_rate"] == row.pass_rate for x in group)
  pairs = run("pairs", keep="pairs", format="parquet")
  assert {x.suffix for x in pairs.iterdir()} == {".parquet"}
  groups = {}
  for x in lines:
    groups.setdefault(x["prompt"], []).append(x)
  for row in rows_of(pairs):
    correct = {x["response"]: x["correct"] for x in groups[row.question]}
    assert correct[row.response] and not correct[row.rejected]
  path, *_ = sorted(pairs.iterdir())
  assert next(readers.READERS[".parquet"](path))[1]["chosen_reward"] == 1


def test_failures_are_said(run, monkeypatch):
  """A response without a verdict has none in the file, either."""
  said = []
  monkeypatch.setattr(display.Display, "say", lambda _, x: said.append(x))
  monkeypatch.setattr(
      arithmetic, "verify", lambda text, _: 1 // (len(text) % 2)
  )
  [path] = run(prompts=4).iterdir()
  lines = [json.loads(x) for x in path.read_text().splitlines()]
  failed = sum(x["correct"] is None and not x["truncated"] for x in lines)
  words = f"prompts 0 to 3: the verifier failed on {failed} of 16 responses"
  assert failed and any(words in x for x in said)
