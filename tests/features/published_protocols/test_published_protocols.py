"""Published protocols: how sets are sampled, and what makes a score theirs."""

import importlib
import types

import numpy as np
import pytest
import test_published
import tiny_session

from rl_reason import tasks
from rl_reason.base import config as config_lib
from rl_reason.data import held_out, published
from rl_reason.evaluation import results
from rl_reason.features.published_protocols import protocols
from rl_reason.stages import evaluate


def aime(**fields):
  """The config of DAPO's evaluation; `fields` are changed."""
  c = importlib.import_module("configs.base").get_config()
  c.data.update(template="published", chat=True)
  c.evaluate.update(samples=32, mean_of=32, top_p=0.7)
  c.rollout.max_tokens = 20480
  return config_lib.flat(c) | fields


ROW = tasks.Row("", "", kind="math", source="aime24")


@pytest.mark.parametrize(
    ("fields", "prompts", "differs"),
    [
        ({}, 30, ""),
        ({"evaluate.samples": 64}, 30, ""),
        ({"evaluate.samples": 8}, 30, "evaluate.samples = 8, not 32"),
        ({"evaluate.mean_of": 8}, 30, "evaluate.mean_of = 8, not 32"),
        (
            {"evaluate.temperature": 0.6},
            30,
            "evaluate.temperature = 0.6, not 1",
        ),
        ({"evaluate.top_p": 1.0}, 30, "evaluate.top_p = 1.0, not 0.7"),
        ({"evaluate.top_k": 20}, 30, "evaluate.top_k = 20, not 0"),
        ({"data.template": "dapo"}, 30, "data.template = 'dapo', not 'publ"),
        ({"data.template": "math=published"}, 30, ""),
        ({"data.template": "code=published"}, 30, "data.template = 'code="),
        ({"data.chat": False}, 30, "data.chat = False, not True"),
        (
            {"rollout.max_tokens": 512},
            30,
            "rollout.max_tokens = 512, not 20480",
        ),
        ({}, 29, "29 prompts, not 30"),
    ],
)
def test_the_screen_says_in_what_an_evaluation_differs(
    fields, prompts, differs
):
  line = protocols.line("aime24", ROW, prompts, aime(**fields))
  source = "mean@32 of DAPO, arXiv:2503.14476, sec 4.1: "
  same = "aime24: mean@32 is the score of DAPO, arXiv:2503.14476, sec 4.1"
  if differs:
    assert line.startswith(f"aime24: not comparable with {source}{differs}")
    assert ";" not in line
  else:
    assert line == same


@pytest.mark.parametrize("name", ["dapo", "vapo", "ppo"])
def test_the_presets_of_papers_evaluate_as_published(name):
  c = importlib.import_module(f"configs.paper.{name}").get_config()
  protocol = published.PUBLISHED[c.data.evaluate]
  fields = config_lib.flat(c)
  assert not protocols.differences(protocol, "math", 30, fields)


def test_a_greedy_score_needs_no_samples():
  row = ROW._replace(source="gsm8k")
  fields = aime(**{"evaluate.temperature": 0.3, "evaluate.samples": 1})
  assert protocols.line("x", row, 1319, fields) == (
      "x: greedy is the score of verl, examples/data_preprocess/gsm8k.py and"
      " its greedy validation"
  )
  for source in ("svamp", "my/gsm8k", "dapo_math_17k"):
    assert not protocols.line("x", ROW._replace(source=source), 9, fields)


@pytest.mark.parametrize(
    ("source", "most", "sampled"),
    [
        ("aime24", 30000, (32, 1.0, 0.7, 20480)),
        ("aime24", 512, (32, 1.0, 0.7, 512)),  # the sampler has no more room
        ("math500", 30000, (10, 0.5, 1.0, 2048)),
        ("gsm8k", 30000, None),  # its score is greedy, in every evaluation
    ],
)
def test_fields_of_a_protocol(source, most, sampled):
  found = protocols.sampling(source, {"rollout.max_tokens": most})
  assert found.pop("evaluate.repetition_penalty") == 1.0
  names = "evaluate.samples evaluate.temperature evaluate.top_p".split()
  names.append("rollout.max_tokens")
  if sampled is None:
    assert not found
  else:
    assert tuple(found[x] for x in names) == sampled
    assert found["evaluate.mean_of"] == sampled[0]


def test_a_set_without_a_protocol_is_sampled_by_the_config():
  for source in ("arithmetic", "dapo_math_17k", "svamp"):
    assert not protocols.sampling(source, {"rollout.max_tokens": 9})


@pytest.mark.slow
def test_one_command_samples_each_set_by_its_protocol(tmp_path, monkeypatch):
  """Three protocols of small sizes; responses equal those of such a config."""
  session = tiny_session.make_session(
      tmp_path, evaluate__prompts=4, evaluate__interim_prompts=4
  )
  rows = list(held_out.rows_of_task(session.task, (2, 3), 4))
  protocols = dict(
      aime24=dict(samples=3, temperature=0.7, top_p=0.9, tokens=2),
      gsm8k={},
  )
  for name, fields in protocols.items():
    protocol = published.Protocol("a paper", "{question}", "", 4, **fields)
    monkeypatch.setitem(published.PUBLISHED, name, protocol)
  sets = {
      name: [x._replace(source=name) for x in rows]
      for name in (*protocols, "own")
  }
  monkeypatch.setattr(held_out, "evaluation_sets", lambda *_: sets)
  params = tiny_session.random_params(session)

  def evaluated(**fields):
    session.c.evaluate.update(fields)
    of_sets = protocols.Protocols(session.c, print, replaces=True)
    return tiny_session.call(
        evaluate.evaluate, session, params, 4, "", sampling=of_sets.sampling
    )

  numbers, found = evaluated()
  sizes = {x.name: np.shape(x.texts_NG) for x in found}
  assert sizes == dict(aime24=(4, 4), gsm8k=(4, 3), own=(4, 3))
  of_aime, of_gsm8k, own = found
  assert of_aime.lengths_NG.max() == 2 < own.lengths_NG.max()
  means = [x for x in numbers if x.endswith(("mean@3", "mean@1"))]
  names = "aime24/acc/mean@3", "gsm8k/acc/mean@1", "own/acc/mean@1"
  assert [x for x in means if "val-core" in x] == [
      f"val-core/{x}" for x in names
  ]
  assert own.sampling == {} and of_gsm8k.texts_NG == own.texts_NG
  # One set has a config of its own.
  how = results.harness_results(
      numbers, found, config_lib.flat(session.c), dropped={}
  )["configs"]
  assert [how[x]["repeats"] for x in sizes] == [3, 2, 2]
  assert how["aime24"]["generation_kwargs"] == dict(
      do_sample=True, temperature=0.7, top_p=0.9, max_gen_toks=2
  )
  line = protocols.line(
      *("aime24", ROW, 4),
      config_lib.flat(session.c)
      | {"data.template": "published", "data.chat": True}
      | of_aime.sampling,
  )
  assert line == "aime24: mean@3 is the score of a paper"
  sets = dict(own=rows)
  _, [same] = evaluated(samples=3, mean_of=3, temperature=0.7, top_p=0.9)
  assert np.shape(same.texts_NG) == (4, 4)
  for cut_G, full_G in zip(of_aime.texts_NG, same.texts_NG, strict=True):
    for cut, full in zip(cut_G, full_G, strict=True):
      assert full.startswith(cut)


@pytest.mark.parametrize(
    ("name", "kind", "prompts", "before", "rows"),
    [
        ("mbpp", "code", 500, test_published.SOLVED, 3),
        ("folio", "choice", 204, test_published.FOLIO_SOLVED, 2),
    ],
)
def test_the_prompt_shows_its_solved_tasks(name, kind, prompts, before, rows):
  protocol = published.PUBLISHED[name]
  fields = {"data.template": "published", "data.chat": False}
  last = {
      "mbpp": test_published.asked(11),
      "folio": test_published.FOLIO_HEAD + test_published.ASKED,
  }[name]
  shown = before + last
  if name == "folio":
    head = test_published.FOLIO_HEAD
    shown = head + before + test_published.ASKED
  for prompt, wanted in (
      (shown, []),
      (last, [f"no solved tasks in the prompt, not {rows}"]),
  ):
    found = protocols.differences(protocol, kind, prompts, fields, prompt)
    assert found == wanted


def test_an_evaluation_says_whether_its_scores_are_published():
  """Copies have no published score; no field, and no set is sampled so."""
  said = []
  c = config_lib.unflat(aime())
  part = protocols.Protocols(c, said.append, replaces=False)
  x = lambda name, row: types.SimpleNamespace(  # noqa: E731
      name=name, rows=[row] * 30, sampling={}
  )
  own = ROW._replace(source="rows.jsonl")
  sets = [x("aime24", ROW), x("aime24~paraphrase", ROW), x("own", own)]
  assert part.metrics(None, sets, ()) == {} and part.sampling(ROW) == {}
  assert said == [
      "aime24: mean@32 is the score of DAPO, arXiv:2503.14476, sec 4.1"
  ]
  part = protocols.Protocols(c, said.append, replaces=True)
  assert part.sampling(ROW)["evaluate.samples"] == 32 and not part.sampling(own)
