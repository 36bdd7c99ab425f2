"""All data sets of reasoning_gym: problems, and points for their answers."""

import pytest

from rl_reason.verifiers import workers

pytestmark = pytest.mark.slow
SCORER_ONLY = {
    *("boxnet", "graph_color", "propositional_logic", "rubiks_cube"),
    "rush_hour",
}
LENIENT = {"game_of_life_halting"}


def examine(name: str, level: int) -> list:
  """Questions of three problems, points of their answers and of a wrong one."""
  from rl_reason.tasks import gym

  out = []
  for seed in range(3):
    data_set, entry = gym.problem(name, level, seed)
    new = gym._made(name, gym._config(name, level, seed))
    assert type(new) is type(data_set)
    row = entry["question"], dict(source=name, level=level, seed=seed)
    points = [gym.points(x, *row) for x in (entry["answer"] or "", "xyzzy 7")]
    out.append([entry["question"], entry["answer"] is not None, *points])
  return out


# Sets whose first level is none that they accept, or takes too long.
BY_LEVEL = {0: set(), 1: {"knight_swap", "sokoban"}}


@pytest.mark.parametrize("level", BY_LEVEL)
def test_each_set_gives_problems_and_accepts_its_answers(level, monkeypatch):
  """In processes with other orders of sets; the exceptions are in the docs."""
  pytest.importorskip("reasoning_gym")
  from reasoning_gym import factory

  from rl_reason.tasks import gym

  assert len(factory.DATASETS) == 106 and len(factory.CURRICULA) == 102
  names = sorted(set(factory.DATASETS) - {"composite"} - BY_LEVEL[level])
  found = []
  for number in "12":
    monkeypatch.setenv("PYTHONHASHSEED", number)
    with workers.Pool(f"{__name__}:examine", 2, 60.0) as pool:
      results = pool.results(pool.submit((name, level) for name in names))
    found.append(dict(zip(names, results, strict=True)))
  assert not [(n, x.failure) for n, x in found[0].items() if x.failure]
  differ, lenient, without, wrong = set(), set(), set(), set()
  for name in names:
    one, two = (results[name].value for results in found)
    if [x[0] for x in one] != [x[0] for x in two]:
      differ.add(name)
    for question, has_answer, own, other in one:
      assert question
      if not has_answer:
        without.add(name)
      elif own != 1:
        wrong.add(name)
      if other >= 1:
        lenient.add(name)
  assert (wrong, without, lenient) == (set(), SCORER_ONLY, LENIENT)
  assert differ <= set(gym._BY_HASH) and (level or differ)
