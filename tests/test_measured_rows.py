"""What rows know of themselves, and who reads it, on rows of three sets."""

# ruff: noqa: F811  (pytest finds fixtures by their names)

import itertools
import json
import threading
import types

import grain
import jax
import numpy as np
import pytest
import tiny_session
from test_collect import InstantEngine
from tiny_data import (  # noqa: F401  (fixtures)
    byte_tokenizer,
    check,
    make,
    report,
    rows,
    run,
    tok_dir,
    verifier,
    write,
)

from rl_reason import tasks
from rl_reason.algorithms import advantage_variants, advantages, credit
from rl_reason.base.errors import ConfigError
from rl_reason.collect import experience
from rl_reason.data import (
    datasets,
    known_sets,
    pipelines,
    prompt_stream,
    screening,
)
from rl_reason.data.datasets import DataError
from rl_reason.features.unequal_groups import group_sizes
from rl_reason.lab import generate
from rl_reason.monitoring import display
from rl_reason.stages import prepare, rl
from rl_reason.tasks import arithmetic

INTERVAL = "the pass rate is not within data.pass_rate = 0.1, 0.9"


def gsm8k(i):
  return dict(question=f"Ann has {i} cats?", answer=f"So <<1>>.\n#### {i}")


def math(i):
  return dict(
      problem=f"What is ${i}$?",
      level=f"Level {1 + i % 5}",
      type=["Algebra", "Geometry"][i % 2],
      solution=rf"It is $\boxed{{{i}}}$.",
  )


def dapo(i):
  return dict(
      data_source="math_dapo",
      prompt=[dict(role="user", content=f"Find {i}.")],
      ability="MATH",
      reward_model=dict(ground_truth=str(i), style="rule-lighteval/MATH_v2"),
      extra_info=dict(index=str(i)),
  )


SETS = dict(gsm8k=gsm8k, math=math, dapo_math_17k=dapo)
of_each_set = pytest.mark.parametrize("name", SETS)


def measured(name, rates):
  """Rows in the columns of a set, with pass rates; None: not measured."""
  return [
      SETS[name](i) | dict(pass_rate=rate, response_tokens=10.0 + i)
      for i, rate in enumerate(rates)
  ]


def config(make, name, lines, /, **fields):
  """A config that reads lines as a known set."""
  c = make(lines, **fields)
  c.data.train = f"{name}@{c.data.train}"
  return c


@of_each_set
def test_a_row_knows_its_source_subject_and_pass_rate(make, tmp_path, name):
  lines = measured(name, [0.25, None])
  lines[1].pop("response_tokens")
  place = run(config(make, name, lines), tmp_path)
  one, two = rows(place)
  assert one.source == name
  assert (one.pass_rate, one.response_tokens) == (0.25, 10.0)
  assert (two.pass_rate, two.response_tokens) == (None, None)
  own = dict(gsm8k="gsm8k", math="Algebra", dapo_math_17k="math_dapo")
  assert one.subject == own[name]
  assert report(place)["pass_rates"] == {"0.2": 1, "unknown": 1}
  text = (place / "data.md").read_text()
  assert "Rows by measured pass rate: 0.2: 1, unknown: 1" in text
  assert f"Rows by subject: {one.subject}: " in text


def test_rows_of_an_earlier_version_are_read(make, tmp_path):
  """An evaluation of an old run reads the rows that the run prepared."""
  path = run(make([("1+1?", "2")]), tmp_path) / "train-0.array_record"
  record = json.loads(pipelines.Prepared(path)._records[0])
  for name in ("subject", "pass_rate", "response_tokens"):
    del record[name]
  with prepare._writer(path) as write_row:
    write_row(record)
  [row] = rows(tmp_path / "data")
  assert (row.prompt, row.answer, row.subject) == ("1+1?", "2", "")


@of_each_set
def test_the_filter_keeps_what_is_within_and_counts_the_rest(
    make, tmp_path, name
):
  """Ends are within; rows that were not measured are left out, aloud."""
  lines = measured(name, [0.0, 0.1, 0.5, 0.9, 0.95, 1.0, None])
  place = run(config(make, name, lines, pass_rate=(0.1, 0.9)), tmp_path)
  assert [row.pass_rate for row in rows(place)] == [0.1, 0.5, 0.9]
  dropped = report(place)["dropped"]
  assert dropped == {INTERVAL: 3, screening.UNMEASURED: 1}


def test_the_filter_needs_measured_rows(make, tmp_path):
  c = config(make, "gsm8k", [gsm8k(1), gsm8k(2)], pass_rate=(0.1, 0.9))
  with pytest.raises(DataError, match="generate.keep = 'prompts' measures it"):
    run(c, tmp_path)
  for wrong in ((0.5,), (0.9, 0.1), (0, 2), ("a", "b"), (0.1, 0.5, 0.9)):
    c.data.pass_rate = wrong
    with pytest.raises(ConfigError, match=r"two numbers, 0 <= low <= high"):
      check(c)


def test_evaluation_rows_are_not_filtered(make, tmp_path):
  c = make([gsm8k(1) | dict(pass_rate=0.5)], [gsm8k(7)], pass_rate=(0.1, 0.9))
  assert len(rows(run(c, tmp_path), "evaluate")) == 1


@pytest.mark.parametrize("wrong", [-0.1, 75, "half", [0.5], float("nan")])
def test_what_is_no_pass_rate_is_malformed(make, tmp_path, wrong):
  lines = [gsm8k(1), gsm8k(2) | dict(pass_rate=wrong)]
  place = run(config(make, "gsm8k", lines), tmp_path)
  assert report(place)["dropped"] == {screening.MALFORMED: 1}


def test_a_rate_has_another_column(make, tmp_path):
  """Big-Math calls it by the model that was measured."""
  line = gsm8k(1) | dict(llama8b_solve_rate="0.5")
  c = make([line], columns="pass_rate=llama8b_solve_rate")
  [row] = rows(run(c, tmp_path))
  assert row.pass_rate == 0.5 == known_sets.measured("0.5")


@of_each_set
def test_rows_that_were_measured_are_read_as_before(make, tmp_path, name):
  """Of --stage=generate in two files: what a set has, and the rates."""
  before = rows(run(config(make, name, measured(name, [None] * 2)), tmp_path))
  place = tmp_path / "generated" / "0"
  place.mkdir(parents=True)
  for n, row in enumerate(before):
    found = dict(pass_rate=n / 2, response_tokens=5.0)
    line = generate.prompt_columns(row, "prompts") | found
    write(place / f"part-00000000{n}.jsonl", [line])
  c = make()
  c.data.train = f"{name}@{place}"
  after = rows(run(c, tmp_path / "again"))
  same = "prompt", "answer", "difficulty", "kind", "source", "subject"
  for n, (old, new) in enumerate(zip(before, after, strict=True)):
    assert all(getattr(old, x) == getattr(new, x) for x in same)
    assert (new.pass_rate, new.response_tokens) == (n / 2, 5.0)


# --- who reads it ------------------------------------------------------------


@pytest.fixture
def stream(tmp_path):
  """(name, rates, options of `PromptStream`) -> the stream, and all rows.

  In a cycle, the rows come in the order of the file.
  """

  def read(name, rates, curriculum=0, cycle=False, **options):
    path = write(tmp_path / "rows.jsonl", measured(name, rates))
    source = datasets.parse(f"{name}@{path}")
    found = [
        tasks.Row(x.question, **{y: getattr(x, y) for y in FIELDS})
        for x in datasets.examples(source, datasets.columns(""), "math")
    ]
    options = dict(types="pass_rate") | options
    if cycle:
      rows_again = itertools.cycle(found)
      by_id = ([item] for item in enumerate(rows_again))
      return prompt_stream.PromptStream(found, by_id, **options), found
    mixed = pipelines.Mixed([found], [1.0], 0, curriculum)
    iterator = pipelines.iterate(grain.MapDataset.source(mixed), 1)
    return prompt_stream.PromptStream(mixed, iterator, **options), found

  return read


@pytest.mark.parametrize(
    "types, rates, words",
    [
        ("difficulty", [0.5, 1.0], "goes by the difficulty (type)"),
        ("subject", [0.5, 1.0], "goes by the subject (type)"),
        (
            "pass_rate",
            [0.5, None, None],
            "2 of 3 training rows have no measure",
        ),
        ("pass_rate", [0.5, 0.5], ""),
    ],
)
def test_the_screen_says_which_types_are_all_the_same(
    make, tmp_path, monkeypatch, types, rates, words
):
  """Of rows like those of GSM8K; without a reader of types, nothing."""
  said = []
  monkeypatch.setattr(display.Display, "say", lambda _, x: said.append(x))
  c = config(make, "gsm8k", measured("gsm8k", rates))
  c.advantage.groups, c.rollout.types = "type", types
  prepare.run(c, tmp_path, display.Display(False), threading.Event())
  warned = [x for x in said if x.startswith("warning: ")]
  assert len(warned) == bool(words) and all(words in x for x in warned)


FIELDS = "answer", "difficulty", "subject", "pass_rate", "response_tokens"


@of_each_set
def test_group_sizes_go_by_what_was_measured(stream, name):
  """p (1 - p) + .01 is .26 and .01; lengths are 10 and 11 tokens."""
  prompts, found = stream(name, [0.5, 1.0])
  accuracy_N, length_N = prompts.expected(found)
  np.testing.assert_array_equal(accuracy_N, [0.5, 1])
  np.testing.assert_array_equal(length_N, [10, 11])
  assert group_sizes.by_variance(accuracy_N, 16).tolist() == [14, 2]
  assert group_sizes.by_length(length_N, 42).tolist() == [22, 20]


@of_each_set
def test_a_pass_rate_follows_the_policy(stream, name):
  """It starts from the file, or from the first group; each group is a half."""
  prompts, found = stream(name, [0.5, 1.0, None])
  # A prompt without any gets the mean of all that are known.
  np.testing.assert_array_equal(prompts.expected(found)[0], [0.5, 1, 0.75])
  assert prompts.types(found).tolist() == [5, 0, 2]
  prompts.update([found[0], found[2]], [1.0, 0.25], [20.0, 40.0])
  other, _ = stream(name, [0.5, 1.0, None])
  other.set_state(json.loads(json.dumps(prompts.get_state())))
  accuracy_N, length_N = other.expected(found)
  np.testing.assert_array_equal(accuracy_N, [0.75, 1, 0.25])
  np.testing.assert_array_equal(length_N, [15, 11, 26])
  # So do group sizes, and the types that advantages read: .25 is 2.5 tenths.
  assert group_sizes.by_variance(accuracy_N, 40).tolist() == [19, 2, 19]
  assert other.types(found).tolist() == [2, 0, 8]


@of_each_set
def test_a_round_goes_by_the_file_and_then_by_the_rounds_before(
    stream, tmp_path, monkeypatch, name
):
  """Rates of .5 and 1 give 14 and 2 responses; the second round sees .75 twice.

  Of the first prompt all are correct, of the second the first of two is.
  """
  options = dict(rollout__types="pass_rate", advantage__groups="type")
  options |= dict(rollout__batch=16, rollout__group_size=8)
  options["rollout__group_sizes__name"] = "by_variance"
  prompts, (first, _) = stream(name, [0.5, 1.0], cycle=True)
  session = tiny_session.make_session(tmp_path / "run", **options)
  tok = byte_tokenizer()
  tok.pad_token = tok.eos_token
  session = session.replace(tok=tok)
  session = session.replace(engine=InstantEngine(session))
  session.config.rollout.max_prompt = 64
  collector = tiny_session.collector(session, "test")
  collector.prompts = prompts
  monkeypatch.setattr(
      arithmetic, "verify", lambda text, row: row == first or text[1] == "0"
  )
  monkeypatch.setattr(arithmetic, "answer", lambda text, row: text)
  rounds = [collector.collect(None) for _ in range(2)]
  groups = [
      [
          (len(group), rows.types_B[group].tolist())
          for group in experience.groups(rows.rollouts.ids_B)
      ]
      for rows in rounds
  ]
  assert groups[0] == [(14, [5] * 14), (2, [0] * 2)]
  assert groups[1] == [(8, [2] * 8)] * 2


REWARDS = np.array([1.0, -1, 1, 1, -1, -1], np.float32)
RATES = [0.9, 0.9, 0.9, 0.1, 0.1, 0.1]


def assigned(types_B, groups, advantage):
  """Advantages of one response of two tokens to each prompt."""
  mask_BT = np.ones((len(types_B), 2), bool)
  arrays = dict(
      rewards_B=REWARDS,
      age_B=np.zeros(len(types_B), np.int32),
      groups_B=np.arange(len(types_B)),
      problems_B=np.arange(len(types_B)),
      types_B=types_B,
      mask_BT=mask_BT,
      logps_BT=np.zeros(mask_BT.shape, np.float32),
  )
  found = credit.assign(arrays, advantage=advantage, groups=groups)
  return np.asarray(found["advantages_BT"])[:, 0]


@of_each_set
def test_responses_are_compared_within_their_pass_rate(stream, name):
  """Means of the types are 1/3 and -1/3; the mean of the batch is 0."""
  prompts, found = stream(name, RATES)
  types_B = prompts.types(found)
  assert types_B.tolist() == [1] * 3 + [9] * 3
  wanted = REWARDS - np.array([1 / 3] * 3 + [-1 / 3] * 3)
  found_B = assigned(types_B, "type", advantages.group_mean)
  np.testing.assert_allclose(found_B, wanted, rtol=1e-6)
  # The types of hierarchical advantages are the same.
  by_type_B = assigned(types_B, "type", advantages.group_norm)
  of_both = assigned(types_B, "prompt", by_types)
  np.testing.assert_allclose(of_both, by_type_B, rtol=1e-6)
  assert (
      abs(by_type_B - assigned(types_B, "batch", advantages.group_norm)).max()
      > 0.1
  )


def by_types(rewards_B, types_B, valid_B):
  return advantage_variants.hierarchical(rewards_B, types_B, valid_B, mix=1.0)


@of_each_set
def test_lambda_decreases_with_the_measured_complexity(stream, name):
  """Without decay lambda is 1 - c / 20: .95 and .55 at rates of .9 and .1."""
  prompts, found = stream(name, [0.9, 0.1])
  last_BT = np.array([[0, 1.0]] * 2, np.float32)
  advantages_BT = advantage_variants.gae_exp_complexity(
      last_BT,
      np.zeros_like(last_BT),
      np.ones(last_BT.shape, bool),
      prompts.types(found),
      lam=1.0,
      decay=0.0,
      hardest=float(prompt_stream.HARDEST),
  )
  wanted = [[0.95, 1], [0.55, 1]]
  np.testing.assert_allclose(advantages_BT, wanted, rtol=1e-6)


def test_types_by_subject_and_by_difficulty(stream):
  """Of MATH: subjects differ where difficulties are equal, and vice versa."""
  prompts, found = stream("math", [None] * 11, types="subject")
  algebra, geometry = (prompts.types(found)[n] for n in (0, 1))
  assert algebra != geometry
  subjects = [algebra, geometry] * 5 + [algebra]
  assert prompts.types(found).tolist() == subjects
  prompts.update(found[:1], [0.25], [7.0])
  accuracy_N, _ = prompts.expected(found[:3])
  np.testing.assert_array_equal(accuracy_N, [0.25] * 3)
  prompts.update(found[1:2], [0.75], [7.0])
  accuracy_N, _ = prompts.expected(found[:3])
  np.testing.assert_array_equal(accuracy_N, [0.25, 0.75, 0.25])


def test_types_by_difficulty(stream):
  prompts, found = stream("math", [None] * 6, types="difficulty")
  assert prompts.types(found).tolist() == [1, 2, 3, 4, 5, 1]


@of_each_set
def test_a_curriculum_begins_with_the_easiest(stream, name):
  """The same eight prompts, in another order; then the stream goes on."""
  rates = [0.1, 0.9, 0.5, 0.7, 0.3, 1.0, 0.2, 0.8, 0.4, 0.6]
  usual, _ = stream(name, rates)
  prompts, _ = stream(name, rates, curriculum=8)
  _, wanted = usual.draw(15)
  ids, found = prompts.draw(5)
  state = json.loads(json.dumps(prompts.get_state()))
  more_ids, more = prompts.draw(10)
  ids, found = ids + more_ids, found + more
  assert found[:8] == sorted(wanted[:8], key=lambda row: -row.pass_rate)
  assert found[:8] != wanted[:8] and found[8:] == wanted[8:]
  assert ids == list(range(15))
  assert [prompts.row(prompt_id) for prompt_id in ids] == found
  resumed, _ = stream(name, rates, curriculum=8)
  resumed.set_state(state)
  assert resumed.draw(10) == (more_ids, more)


def test_rl_reads_the_curriculum(make, tmp_path):
  """Of prepared rows; a curriculum needs rows that all have a rate."""
  rates = [0.25, 1.0, 0.5, 0.75, 0.0, 0.1, 0.6]
  c = config(make, "gsm8k", measured("gsm8k", rates), pass_rate=(0.0, 1.0))
  place = run(c, tmp_path)
  source = pipelines.RowSource(None, "files", (), 0, place)
  found = {}
  for curriculum in (0, 7):
    by_id, _ = source.prompts("rollout prompts", curriculum=curriculum)
    found[curriculum] = [by_id[n][1].pass_rate for n in range(7)]
  assert found[7] == sorted(rates, reverse=True) != found[0]
  # The loop of RL asks for it.
  asked = {}

  class Asked(Exception):
    pass

  def prompts(purpose, **options):
    asked[purpose] = options
    raise Asked

  session = tiny_session.make_session(tmp_path / "rl")
  session.config.data.curriculum = 7
  session = session.replace(
      row_source=types.SimpleNamespace(prompts=prompts, task=None)
  )
  with pytest.raises(Asked), jax.set_mesh(session.mesh):
    tiny_session.call(rl.train, session, None)
  assert asked == {"rollout prompts": dict(curriculum=7)}
  c.data.update(curriculum=7, pass_rate=())
  with pytest.raises(ConfigError, match="without data.pass_rate: set both"):
    check(c)
