"""The environments of the package, their demonstrations, and the config."""

import functools
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

from rl_reason import tasks
from rl_reason.base import functions
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks
from rl_reason.data import tokenizer
from rl_reason.features.environments import (
    calculator,
    factory,
    guess,
    observations,
    tools,
)
from rl_reason.stages import demonstrations

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", ["guess", "calculator"])
def test_demonstrations_solve_the_task(name):
  """Observations come from the environment; turns alone are learned."""
  task, lengths = tasks.get(name), {}
  make = factory.find("", task)
  tok = tokenizer.load("", task.ALPHABET)
  for style in task.STYLES[:2]:
    for level in task.DIFFICULTIES[:5]:
      row = task.problem(RNG, level)
      environment = make()
      turns = task.demonstrate(row, style, RNG)
      prompt, texts = factory.transcript(environment, row, turns, RNG)
      assert prompt == row.prompt and texts[::2] == turns[: len(texts)]
      _, reward, over = environment.step(texts[-1])
      assert over or name == "guess"
      lengths.setdefault(style, []).append(len(turns))
      tokens_BL, _, mask_BT = demonstrations.pack(
          tok, [(prompt, texts)], 12, 120
      )
      ids = tokens_BL[0, 12:]
      learned = "".join(x + tok.eos_token for x in texts[::2])
      assert tok.decode(ids[mask_BT[0]]) == learned
      whole = (
          learned if len(texts) == 1 else tok.decode(ids).replace("<pad>", "")
      )
      assert len(whole.replace(tok.eos_token, "")) == sum(map(len, texts))


def test_no_play_takes_fewer_turns_than_bisection():
  """3 numbers: the middle, then the one that is left."""
  task = tasks.get("guess")
  for size, least in [(1, 1), (3, 2), (7, 3), (8, 4), (31, 5)]:
    row = tasks.Row(f"10-{9 + size}:", "", 5)
    assert guess.bisection_turns(size) == least
    assert len(task.demonstrate(row, "bisect", RNG)) == least
    plays = [len(task.demonstrate(row, "random", RNG)) for _ in range(50)]
    assert min(plays) >= least and (size < 31 or np.mean(plays) > least + 1)


def test_guess_answers():
  """Whatever leaves more numbers; what is impossible changes nothing."""
  game = guess.Guess()
  game.reset(tasks.Row("17-48:", "6", 5), RNG)
  for turn, said in [("40", "<"), ("9", ">"), ("3+", "?"), ("60", "<")]:
    assert game.step(turn) == (said, -guess.COST, False)
  assert (game.low, game.high) == (17, 39)
  for turn, said in [("18", ">"), ("38", "<"), ("29", "<"), ("20", ">")]:
    assert game.step(turn) == (said, -guess.COST, False)
  assert (game.low, game.high) == (21, 28)
  game.low = 28
  assert game.step("28") == ("", 1.0, True)
  assert guess.Guess.answer("40<9>3+?18", tasks.Row("", "", 1)) == "4"


def test_calculator_answers():
  tool = calculator.Calculator()
  tool.reset(tasks.Row("5-1+9=", "13", 3), RNG)
  assert tool.step("5-1+9?") == ("13;", -0.1, False)
  assert tool.step("2-9?") == ("-7;", -0.1, False)
  assert tool.step("?")[0] == tool.step("5-?")[0] == "?"
  assert tool.step("5-1=4;4+9=13;#13") == ("", 1.0, True)
  assert tool.step("#12") == ("", 0.0, True)


def test_what_is_no_environment_is_refused():
  plain = tasks.get("arithmetic")
  assert factory.find("", plain) is None
  with pytest.raises(ValueError, match="has no method step"):
    factory.find("json:JSONDecoder", plain)
  assert factory.find("guess", plain) is guess.Guess


class Shop(tools.Tools):
  """Prices to add up."""

  def price(self, item: str) -> float:
    """The price of an item.

    Args:
      item: its name.
    """
    return dict(tea=2.5, milk=1.0)[item]

  def cut(self, response):
    """A turn without an end ends the trajectory."""
    return "", 0.0, True

  def score(self, response):
    """Whether the sum is in the response."""
    return float(self.row.answer in response)


CALL = '<tool_call>{"name": "price", "arguments": {"item": "%s"}}</tool_call>'
CHAT = (
    "{% for t in tools or [] %}[{{ t['function']['name'] }}:"
    "{{ t['function']['description'] }}]{% endfor %}"
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<eos>"
    "{% endfor %}<assistant>"
)


def test_tools_are_offered_called_and_answered():
  """By the chat template; the policy reads its own errors."""
  tok = tokenizer.characters("")
  tok.chat_template = CHAT
  shop = Shop()
  prompt = shop.reset(tasks.Row("tea?", "2.5"), RNG)
  offered = tools.tools_of(shop)
  assert [x.__name__ for x in offered] == ["price"]
  assert observations.prompt_text(tok, prompt, offered) == (
      "[price:The price of an item.]<user>tea?<eos><assistant>"
  )
  said, reward, over = shop.step(
      f"hm {CALL % 'tea'} {CALL % 'ink'} <tool_call>{{</tool_call>"
  )
  assert (reward, over) == (0.0, False)
  texts = [x["content"] for x in said]
  assert texts[:2] == ["2.5", "error: KeyError: 'ink'"]
  assert texts[2].startswith("error: JSONDecodeError")
  after = functools.partial(observations.observation_text, tok, tools=offered)
  assert after(said[:1], ended="<eos>") == "<tool>2.5<eos><assistant>"
  assert after("go on", ended="") == "<eos><user>go on<eos><assistant>"
  assert shop.step("2.5")[1:] == (1.0, True)


PAGE = (ROOT / "docs" / "environments.md").read_text()
GAME, SHOP, REMOTE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_of_environments(tmp_path, monkeypatch):
  """The example has at most 40 lines, runs as printed, and is a task."""
  assert len(GAME.splitlines()) <= 40
  (tmp_path / "my_game.py").write_text(GAME)
  (tmp_path / "my_tools.py").write_text(SHOP)
  (tmp_path / "my_openenv.py").write_text(REMOTE)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  settings = f"--config={ROOT / 'pyproject.toml'}"
  command = [sys.executable, "-m", "ruff", "check", settings, "."]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout
  fields = re.search(r"--config\.task\.name=(\S+) --config\S+=\"(.*)\"", PAGE)
  given = {"task.name": fields[1], "task.difficulties": fields[2]}
  c, _ = config_checks.checked(str(ROOT / "configs" / "guess.py"), given)
  task = tasks.get(c.task.name)
  for level in c.task.difficulties:
    row = task.problem(RNG, level)
    assert len(row.prompt) <= c.rollout.max_prompt
    turns = task.demonstrate(row, "random", RNG)
    environment = factory.find("", task)()
    _, texts = factory.transcript(environment, row, turns, RNG)
    assert texts[-1] == row.answer
  game = factory.of_task(task)()
  game.reset(tasks.Row("", "103"), RNG)
  assert game.step("120") == ("12:", -0.05, False)
  shop = functions.load("my_tools:Shop")()
  shop.reset(tasks.Row("tea?", "2.5"), RNG)
  assert shop.step(CALL % "tea")[0] == [dict(role="tool", content="2.5")]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"environment.name": "json:JSONDecoder"}, "has no method step"),
        ({"environment.stop_strings": ("#",)}, "one turn"),
        ({"environment.workers": 2}, "one turn"),
        (
            {"environment.name": "guess", "rollout.stop_strings": ("#",)},
            "end a turn in environment.stop_strings",
        ),
        ({"rollout.stop_strings": ("a", "")}, "none of them empty"),
        ({"rollout.stop_strings": ("a" * 300,)}, "300 bytes, more than 256"),
        (
            {
                "rollout.stop_strings": ("#",),
                "rollout.engine.name": "vllm",
                "rollout.engine.args.transfer": "m:f",
            },
            "stop_strings = .*for the sampler of this package",
        ),
        (
            {"rollout.include_stop_str_in_output": True},
            "does nothing without rollout.stop_strings",
        ),
        ({"advantage.name": "returns_by_turn"}, "one turn"),
        ({"environment.name": "guess", "reward.correct": 2.0}, "environment"),
        (
            {
                "environment.name": "guess",
                "reward.outcome.name": (
                    "rl_reason.algorithms.rewards:correctness"
                ),
            },
            "environment gives",
        ),
    ],
)
def test_a_config_that_cannot_work(fields, text):
  with pytest.raises(ConfigError, match=text):
    config_checks.checked(str(ROOT / "configs" / "dapo.py"), fields)


@pytest.mark.parametrize(
    ("string", "fields", "warned"),
    [
        ("</answer>", {"reward.functions": "tags"}, True),
        ("</answer>", {}, False),
        ("\nQuestion:", {"reward.functions": "tags"}, False),
        (
            "</answer>",
            {
                "reward.functions": "tags",
                "rollout.include_stop_str_in_output": True,
            },
            False,
        ),
    ],
)
def test_a_stop_string_that_the_format_needs_is_said(string, fields, warned):
  given = fields | {"rollout.stop_strings": (string,)}
  _, notes = config_checks.checked(str(ROOT / "configs" / "dapo.py"), given)
  remedy = "set rollout.include_stop_str_in_output = True"
  assert any(remedy in x for x in notes) == warned
