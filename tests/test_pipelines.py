"""Rows of a run by purpose: of a task, and of prepared files."""

# ruff: noqa: F811  (pytest finds fixtures by their names)

import collections

import pytest
from tiny_data import (  # noqa: F401  (fixtures)
    FIVE,
    make,
    make_config,
    rows,
    run,
    tok_dir,
    verifier,
    write,
)

from rl_reason import tasks
from rl_reason.data import held_out, pipelines
from rl_reason.data.datasets import DataError
from rl_reason.stages import demonstrations
from rl_reason.tasks import arithmetic

LEVELS = (2, 3, 4)


def of_task(seed=3):
  return pipelines.RowSource(arithmetic, "arithmetic", LEVELS, seed)


def of_files(place, seed=0):
  return pipelines.RowSource(None, "files", (), seed, place)


@pytest.fixture(scope="module")
def place(tmp_path_factory, tok_dir):
  """Two sources, of 5 and of 12 rows, with weights 3 and 1."""
  directory = tmp_path_factory.mktemp("sources")
  c = make_config(directory, tok_dir, FIVE)
  many = [(f"Number {i}?", str(100 + i)) for i in range(12)]
  other = write(directory / "many.jsonl", many)
  c.data.train = f"{c.data.train}*3, {other}"
  return run(c, directory)


def take(iterator, count):
  return [item for _ in range(count) for item in next(iterator)]


def of_one_source(place, seed):
  """Answers of the source of 12 rows alone, four epochs."""
  parts, _ = pipelines.prepared(place, "train")
  source = pipelines.Mixed(parts[1:], [1.0], seed)
  return [int(source[i][1].answer) for i in range(48)]


# --- rows of a task ----------------------------------------------------------


def prompts(seed=3):
  return of_task(seed).prompts("rl", 4)[1]


def solutions(seed=3, mixture=None):
  mixture = mixture or {"careful": 1, "sloppy": 2}
  return demonstrations.batches(of_task(seed), "sft", 4, mixture)


@pytest.mark.parametrize("make_iterator", [prompts, solutions])
def test_same_seed_same_rows(make_iterator):
  first = take(make_iterator(), 5)
  assert first == take(make_iterator(), 5)
  assert first != take(make_iterator(seed=4), 5)
  assert len(first) == 20


@pytest.mark.parametrize("make_iterator", [prompts, solutions])
def test_resumes_to_the_row(make_iterator):
  """A state taken after three batches leads to the fourth, again and again."""
  stream = make_iterator()
  take(stream, 3)
  state = stream.get_state()
  expected = take(stream, 4)
  fresh = make_iterator()
  fresh.set_state(state)
  assert take(fresh, 4) == expected
  stream.set_state(state)
  assert take(stream, 4) == expected
  assert expected == take(make_iterator(), 7)[12:]


def test_ids_are_positions_in_the_stream():
  """samples.jsonl needs that: a row can be made again from its id alone."""
  source, iterator = of_task().prompts("rl", 4)
  items = take(iterator, 5)
  assert [i for i, _ in items] == list(range(20))
  assert all(source[i][1] == row for i, row in items)
  assert len(source) == 2**31 - 1, "the last id is an int32, too"
  assert source[2**31 - 2][0] == 2**31 - 2


def test_streams_have_training_rows_of_the_levels():
  items = [row for _, row in take(prompts(), 40)]
  assert not any(tasks.held_out(row.prompt) for row in items)
  assert {row.difficulty for row in items} == set(LEVELS)
  pairs = take(solutions(), 20)
  assert not any(tasks.held_out(prompt) for prompt, _ in pairs)


def test_validation_prompts_are_not_trained_on():
  """Held out, and others than those of the evaluation sets."""
  source = of_task()
  rows = held_out.validation_sets(source, 9, 40)["validation"]
  assert len(rows) == 9 and all(tasks.held_out(row.prompt) for row in rows)
  [evaluated] = held_out.evaluation_sets(source, 40).values()
  assert not {x.prompt for x in rows} & {x.prompt for x in evaluated}


def test_a_task_without_further_prompts_has_no_validation():
  few = lambda rng, level: tasks.Row(f"{rng.integers(99)}?", "1", level)  # noqa: E731
  task = type("Few", (), dict(problem=staticmethod(few)))
  source = pipelines.RowSource(task, "few", (1,), 3)
  [rows] = held_out.evaluation_sets(source, 99).values()
  assert 0 < len(rows) < 99 and not held_out.validation_sets(source, 9, 99)
  assert len(held_out.rows_of_task(task, (1,), 9, len(rows) - 1)) == 1


def test_mixture_of_styles():
  """Weights 6 and 2 are shares of 3/4 and 1/4; 400 rows give +- 0.065 (3 s)."""
  pairs = take(solutions(mixture=dict(direct=6, careful=2, ramble=0)), 100)
  styles = collections.Counter(
      "direct" if answer.startswith("#") else "careful" for _, answer in pairs
  )
  assert abs(styles["direct"] / 400 - 0.75) < 0.065
  for prompt, answer in pairs:
    assert answer.count(";") in (0, prompt.count("+") + prompt.count("-"))


def test_preferences_have_one_prompt_and_different_verdicts():
  styles = dict.fromkeys(arithmetic.STYLES, 1.0)
  for evaluation in (False, True):
    source = of_task()
    pairs = demonstrations.preferences(
        source, 16, styles, styles, evaluation=evaluation
    )
    for prompt, better, worse in next(pairs):
      row = tasks.Row(prompt, str(eval(prompt[:-1])))  # the test's arithmetic
      assert arithmetic.verify(better, row)
      assert not arithmetic.verify(worse, row)
      assert tasks.held_out(prompt) == evaluation


def test_styles_that_are_never_incorrect_are_named():
  careful = {"careful": 1}
  pairs = demonstrations.preferences(
      of_task(), 4, careful, careful, evaluation=False
  )
  with pytest.raises(DataError, match="no incorrect response to .* 1000 draws"):
    next(pairs)


# --- rows of files -----------------------------------------------------------


def test_ids_are_positions_over_epochs(place):
  """So a row of another epoch has another id, and is found by it again."""
  source, iterator = of_files(place).prompts("rl", 4)
  items = take(iterator, 60)
  assert [i for i, _ in items] == list(range(240))
  assert all(source[i] == (i, row) for i, row in items)
  assert len({row.prompt for _, row in items}) == 17


def test_an_epoch_has_every_row_once_and_the_next_another_order(place):
  answers = of_one_source(place, 0)
  epochs = [tuple(answers[k : k + 12]) for k in range(0, 48, 12)]
  assert [sorted(x) for x in epochs] == [list(range(100, 112))] * 4
  assert len(set(epochs)) == 4
  assert of_one_source(place, 0) == answers != of_one_source(place, 1)


def test_weights_are_shares_of_the_stream(place):
  items = take(of_files(place).prompts("rl", 4)[1], 100)
  assert sum(int(row.answer) < 100 for _, row in items) == 300


@pytest.mark.parametrize("done", [1, 7])
def test_a_stream_resumes_in_the_middle_of_an_epoch(place, done):
  everything = take(of_files(place).prompts("rl", 4)[1], done + 9)
  stream = of_files(place).prompts("rl", 4)[1]
  take(stream, done)
  state = stream.get_state()
  take(stream, 2)
  fresh = of_files(place).prompts("rl", 4)[1]
  fresh.set_state(state)
  assert take(fresh, 9) == everything[4 * done :]


def test_without_weights_every_row_comes_equally_often(make, tmp_path):
  c = make(FIVE)
  many = [(f"Number {i}?", str(100 + i)) for i in range(15)]
  c.data.train += "," + write(tmp_path / "many.jsonl", many)
  place = run(c, tmp_path)
  assert pipelines.prepared(place, "train")[1] == [5, 15]
  items = take(of_files(place).prompts("rl", 4)[1], 50)
  counts = collections.Counter(row.answer for _, row in items)
  assert set(counts.values()) == {10}


def test_a_directory_that_is_not_prepared(tmp_path):
  for text in (None, "[]", "{}", '{"sources": [3]}', '{"sources": []}', "\0"):
    if text is not None:
      (tmp_path / "data.json").write_text(text)
    with pytest.raises(DataError, match="run --stage=prepare"):
      pipelines.prepared(tmp_path, "train")


def test_files_that_changed(make, tmp_path):
  place = run(make(FIVE), tmp_path)
  path = place / "train-0.array_record"
  data = path.read_bytes()
  path.write_bytes(data[: len(data) // 2])
  with pytest.raises(DataError, match="train-0.array_record: cannot be read"):
    pipelines.prepared(place, "train")
  run(make(FIVE[:3]), tmp_path / "other")
  other = tmp_path / "other" / "data" / "train-0.array_record"
  path.write_bytes(other.read_bytes())
  with pytest.raises(DataError, match="has 3 rows instead of 5"):
    pipelines.prepared(place, "train")


WORKED = [
    {"question": "One and one?", "answer": "1+1=<<1+1=2>>2\n#### 2"},
    {"question": "Two and two?", "answer": f"{'2 ' * 60}\n#### 4"},  # too long
    {"question": "Three and one?", "answer": "#### 4"},  # no solution
]


def test_solutions_become_demonstrations(make, tmp_path):
  """In the template's format; rows without one are still good for RL."""
  c = make(WORKED, template="qwen_boxed")
  c.data.train = f"gsm8k:train@{c.data.train}"
  place = run(c, tmp_path)
  found = rows(place)
  assert [row.answer for row in found] == ["2", "4", "4"]
  response = "1+1=2\n\\boxed{2}"
  assert [row.response for row in found] == [response, "", ""]
  batch = next(demonstrations.batches(of_files(place), "sft", 3, {}))
  assert batch == [(found[0].prompt, response)] * 3


def test_preference_pairs(make, tmp_path):
  pair = dict(question="Which?", chosen="this", rejected="that")
  place = run(make([pair, dict(question="What?", answer="1")]), tmp_path)
  batch = next(
      demonstrations.preferences(of_files(place), 2, {}, {}, evaluation=False)
  )
  assert batch == [("Which?", "this", "that")] * 2


def test_nothing_to_imitate(place, make, tmp_path):
  with pytest.raises(DataError, match="data.train: source 1 has no row"):
    demonstrations.batches(of_files(place), "sft", 2, {})
  evaluated = of_files(run(make((), FIVE), tmp_path))
  words = "data.evaluate: source 1 has no row with a chosen and a rejected"
  with pytest.raises(DataError, match=words):
    demonstrations.preferences(evaluated, 2, {}, {}, evaluation=True)


def test_evaluation_sets_are_fair_samples(make, tmp_path):
  """By name, in a random but fixed order; equal names are told apart."""
  (tmp_path / "b").mkdir()
  other = write(tmp_path / "b" / "evaluate.jsonl", FIVE)
  c = make((), FIVE)
  c.data.evaluate += f",{other}"
  source = of_files(run(c, tmp_path))
  sets = held_out.evaluation_sets(source, 3)
  assert list(sets) == ["evaluate", "evaluate-1"]
  assert [len(x) for x in sets.values()] == [3, 3]
  assert held_out.evaluation_sets(source, 9)["evaluate"][:3] == sets["evaluate"]
  assert [x.prompt for x in sets["evaluate"]] != [q for q, _ in FIVE[:3]]


def test_validation_rows_of_files(make, tmp_path):
  """In a file of their own; nothing else is lost."""
  many = [(f"What is {n} plus {n * n}?", f"{n + n * n}") for n in range(420)]
  c = make(many, FIVE)
  c.evaluate.validation = True
  place = run(c, tmp_path)
  validation = [row.prompt for row in rows(place, "validation")]
  train = [row.prompt for row in rows(place)]
  assert all(map(tasks.for_validation, validation)) and len(validation) > 9
  assert not any(map(tasks.for_validation, train))
  assert len(train) + len(validation) == 420
  sets = held_out.validation_sets(of_files(place), 3, 3)
  assert list(sets) == ["validation"] and len(sets["validation"]) == 3
  # A small file keeps all of its rows: held-out ones choose.
  c = make(many[:99], FIVE)
  c.evaluate.validation = True
  few = of_files(run(c, tmp_path / "few"))
  assert held_out.validation_sets(few, 3, 3) == {}


def test_a_held_out_prompt_that_is_too_long_is_an_error_or_in_the_name(
    make, tmp_path
):
  """Also where the data are prepared already; training rows are dropped."""
  c = make(
      [("z?", "1"), ("y" * 500, "1")], [*FIVE, ("x" * 450, "1"), ("", "3")]
  )
  words = (
      r"data.evaluate: 1 of 7 prompts of .*evaluate.jsonl are longer than"
      r" rollout.max_prompt = 400.*max_prompt to 450.*'drop', which .*_1_long"
  )
  for _ in range(2):
    with pytest.raises(DataError, match=words):
      run(c, tmp_path)
  c.evaluate.long_prompts = "drop"
  source = of_files(run(c, tmp_path))
  [(name, found)] = held_out.evaluation_sets(source, 9).items()
  assert name == "evaluate_without_1_long" and len(found) == 5
  assert list(held_out.dropped(source)) == [name]
  c.rollout.max_prompt, c.evaluate.long_prompts = 450, "error"
  source = of_files(run(c, tmp_path))
  [(name, found)] = held_out.evaluation_sets(source, 9).items()
  assert name == "evaluate" and len(found) == 6


def test_rows_that_are_left_out_are_listed(make, tmp_path):
  """Beside the prepared data, each with its reason; results list them, too."""
  c = make((), [*FIVE, ("", "3"), ("Eight?", "eight")])
  source = of_files(run(c, tmp_path))
  [(name, left_out)] = held_out.dropped(source).items()
  assert name == "evaluate"
  assert [row["where"] for row in left_out] == [
      "evaluate.jsonl:6",
      "evaluate.jsonl:7",
  ]
  assert "cannot be verified" in left_out[1]["reason"]
  assert left_out[1]["text"] and held_out.dropped(of_task()) == {}
