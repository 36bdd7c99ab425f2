"""examples/my_verifiers.py with a taskset of the package verifiers."""

import asyncio
import gc
import shutil
import time

import numpy as np
import pytest
from conftest import ROOT

from rl_reason.features.environments import factory
from rl_reason.features.environments.guess import Guess
from rl_reason.tasks import Row

pytestmark = pytest.mark.slow
TASKSET = """
import numpy as np
import verifiers.v1 as vf
from rl_reason.features.environments.guess import Guess

__all__ = ["Games", "Play"]

class Data(vf.TaskData):
  kind: str

class Game(vf.Task[Data]):
  @vf.reward
  async def game(self, trace: vf.Trace) -> float:
    return trace.info.get("score", float(trace.last_reply == "42"))

class Config(vf.EnvConfig):
  agent: vf.AgentConfig = vf.AgentConfig()

class Play(vf.Env[Config]):
  async def run(self, task, agents):
    if task.data.kind == "one turn":
      return await agents.agent.run(task)
    game, score, over = Guess(), 0.0, False
    game.reset(Guess.problem(np.random.default_rng(task.data.idx), 4), None)
    async with agents.agent.interaction(task) as talk:
      turn = await talk.turn()
      while not turn.terminated:
        if task.data.kind == "broken":
          raise ZeroDivisionError("no such turn")
        heard, reward, over = game.step(turn.last_reply)
        score += reward
        if over:
          break
        turn = await talk.turn(heard)
      talk.trace.info["score"] = score

class Games(vf.Taskset[Game]):
  def load(self):
    for n, kind in enumerate(["game"] * 4 + ["one turn", "broken", "late"]):
      prompt = Guess.problem(np.random.default_rng(n), 4).prompt
      seconds = vf.TaskTimeout(agent=0.3 if kind == "late" else None)
      yield Game(
          Data(prompt=prompt, system_prompt="Go", kind=kind, timeout=seconds)
      )
"""
GAMES, ONE_TURN, BROKEN, LATE = range(4), 4, 5, 6


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
  """The module, with the taskset beside it."""
  pytest.importorskip("verifiers.v1")
  folder = tmp_path_factory.mktemp("mine")
  shutil.copy(ROOT / "examples" / "my_verifiers.py", folder)
  (folder / "my_taskset.py").write_text(TASKSET)
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(folder))
    import my_verifiers

    found = factory.find("my_verifiers:Episode", None)
    assert found is my_verifiers.Episode
    yield my_verifiers


def begun(mine, number):
  episode = mine.Episode()
  return episode, episode.reset(Row(str(number), "", 0), None)


def user(text):
  return dict(role="user", content=text)


def test_episodes_play_the_game_itself(mine):
  """Prompts, observations, scores and ends, in several episodes at once."""
  rng = np.random.default_rng(0)
  assert int(mine.Episode().problem(rng, 0).prompt) < 7
  episodes = [begun(mine, number) for number in GAMES]
  for number, (episode, prompt) in zip(GAMES, episodes, strict=True):
    row = Guess.problem(np.random.default_rng(number), 4)
    assert prompt == [dict(role="system", content="Go"), user(row.prompt)]
    turns = ["", *Guess.demonstrate(row, "bisect", rng)]
    game = Guess()
    game.reset(row, rng)
    answers = [game.step(turn) for turn in turns]
    score = sum(reward for _, reward, _ in answers)
    want = [([user(said)], 0.0, False) for said, _, _ in answers[:-1]]
    found = [episode.step(turn) for turn in turns]
    assert found[:-1] == want and len(want) > 2
    assert found[-1] == ("", pytest.approx(score), True)
  assert begun(mine, ONE_TURN)[0].step("42") == ("", 1.0, True)
  assert begun(mine, ONE_TURN)[0].step("41") == ("", 0.0, True)


def test_what_goes_wrong_is_an_exception(mine):
  """In the taskset, by its time-outs, or if it rewrites the chat."""
  with pytest.raises(RuntimeError, match="no such turn"):
    begun(mine, BROKEN)[0].step("1")
  late, _ = begun(mine, LATE)
  time.sleep(1)
  with pytest.raises(RuntimeError, match="time-out"):
    late.step("1")
  changed, _ = begun(mine, 0)
  changed.chat[1] = user("another prompt")
  with pytest.raises(ValueError, match="the episode changed"):
    changed.step("1")


def test_nothing_is_left_of_a_truncated_trajectory(mine):
  """Its episode ends with it: no trace, and no task but idle connections."""

  def playing():
    tasks = asyncio.all_tasks(mine.LOOP)
    return [task for task in tasks if task.get_coro().__name__ == "play"]

  def gone():
    for _ in range(100):
      gc.collect()  # frames of exceptions
      if not playing() and not mine.LINES:
        return True
      time.sleep(0.1)

  assert gone()  # also of the tests before
  truncated = [begun(mine, number)[0] for number in GAMES]
  truncated[0].step("1")
  assert len(playing()) == len(mine.LINES) == len(truncated)
  truncated.clear()
  assert gone()
