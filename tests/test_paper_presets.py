"""The published recipes have the papers' numbers, and say which ones are ours.

Numbers are copied from the papers: DAPO sec 4.1, VAPO sec 5.1, DeepSeekMath sec
4.2. The lines of a preset below "The paper" set these fields, and no others.
"""

import ast
import importlib
import re

import pytest
from conftest import ROOT

from rl_reason.algorithms import schedules
from rl_reason.base import config
from rl_reason.configs import base
from rl_reason.stages import optimizers

AIME = {
    "data.evaluate": "aime24",
    "evaluate.samples": 32,
    "evaluate.mean_of": 32,
    "evaluate.temperature": 1.0,
    "evaluate.top_p": 0.7,
}
QWEN = AIME | {"model.path": "Qwen/Qwen2.5-32B", "optimizer.lr": 1e-6}
DAPO_SIZE = {"data.train": "dapo_math_17k", "rollout.max_tokens": 16384 + 4096}
PPO = {
    "rollout.batch": 8192,
    "rollout.group_size": 1,
    "updates.minibatches": 8192 // 512,
    "advantage.name": "gae",
    "advantage.args.gamma": 1.0,
    "advantage.args.lam": 0.95,
    "critic.lam": 0.95,
    "critic.lr": 2e-6,
    "surrogate.args.clip_low": 0.2,
    "surrogate.args.clip_high": 0.2,
    "reduction.name": "seq_mean_token_mean",
}
VAPO = {
    "critic.pretrain_steps": 50,
    "critic.lam": 1.0,
    "advantage.name": "gae_length_adaptive",
    "advantage.args": {"alpha": 0.05},
    "surrogate.args.clip_high": 0.28,
    "reduction.name": "token_mean",
    "loss.positive_nll": 0.1,
    "rollout.group_size": 8192 // 512,
}
DAPO = {
    "rollout.batch": 512 * 16,
    "rollout.group_size": 16,
    "updates.minibatches": 16,
    "surrogate.args.clip_low": 0.2,
    "surrogate.args.clip_high": 0.28,
    "reduction.name": "token_mean",
    "reward.overlong_buffer": 4096,
    "dynamic_sampling.enabled": True,
    "optimizer.warmup_steps": 20,
}
GRPO = {
    "model.path": "deepseek-ai/deepseek-math-7b-instruct",
    "rollout.batch": 1024,
    "rollout.group_size": 64,
    "rollout.max_tokens": 1024,
    "updates.minibatches": 1,
    "kl.kind": "k3",
    "kl.coef": 0.04,
}
LINES = {
    "size": QWEN | DAPO_SIZE,
    "dapo": DAPO,
    "ppo": PPO,
    "vapo": VAPO,
    "grpo": GRPO,
}
# What a config has that the paper gives, with the lines that it shares.
GIVEN = {
    "dapo": QWEN | DAPO_SIZE | DAPO | {"kl.kind": "none", "reward.correct": 1},
    "ppo": QWEN | PPO,
    "vapo": QWEN | PPO | VAPO,
    "grpo": GRPO | {"optimizer.lr": 1e-6},
}
del GIVEN["vapo"]["advantage.args.lam"]  # it depends on the length
del GIVEN["vapo"]["advantage.args.gamma"]  # the default
HEADINGS = re.compile(r"  # (The paper|The recipe|Ours)[,. ]")
CHOICES = (  # of ours, in the words of the docstrings of PPO and VAPO
    "whitening",
    "the clip of values",
    "the length of the warm-up",
    "20,480 tokens",
    "reward model",
)


def preset(name):
  return importlib.import_module(f"configs.paper.{name}")


def under_headings(path):
  """Dotted names of the fields that lines set -> the heading above them."""
  text = path.read_text()
  heads = {
      number: found[1]
      for number, line in enumerate(text.splitlines(), 1)
      if (found := HEADINGS.match(line))
  }
  out = {}
  for node in ast.walk(ast.parse(text)):
    if not isinstance(node, ast.Assign):
      continue
    for target in node.targets:
      for one in getattr(target, "elts", [target]):
        root, _, name = ast.unparse(one).partition(".")
        if root == "c" and name:
          above = [x for x in heads if x < node.lineno]
          out.setdefault(name, heads[max(above)] if above else "")
  return out


@pytest.mark.parametrize("name", GIVEN)
def test_a_preset_has_the_numbers_of_its_paper(name):
  c = preset(name).get_config()
  for field, value in GIVEN[name].items():
    got = config.at(c, field)
    got = got.to_dict() if isinstance(value, dict) else got
    assert got == value, field


@pytest.mark.parametrize("name", LINES)
def test_each_line_says_whose_number_it_sets(name):
  marked = under_headings(ROOT / "configs" / "paper" / f"{name}.py")
  assert "" not in marked.values(), marked
  of_paper = {x for x, whose in marked.items() if whose == "The paper"}
  assert of_paper == set(LINES[name])


def test_lines_of_recipes_say_whose_numbers_they_set():
  for path in (ROOT / "configs" / "recipes").glob("*.py"):
    assert set(under_headings(path).values()) == {"Ours"}, path
    assert "our choices" in " ".join(path.read_text().split()), path
  marked = under_headings(ROOT / "configs" / "dapo_qwen.py")
  assert set(marked.values()) == {"The paper", "The recipe", "Ours"}


@pytest.mark.parametrize("name", ["ppo", "vapo"])
def test_what_papers_leave_open_is_named(name):
  """And is no default that could change without notice."""
  said = " ".join(preset(name).__doc__.split()).lower()
  assert not [x for x in CHOICES if x not in said]
  marked = under_headings(ROOT / "configs" / "paper" / "ppo.py")
  for field in ("advantage.whiten", "critic.clip", "critic.init"):
    assert marked[field] == "Ours"
  assert base.get_config().critic.init == "policy"


@pytest.mark.parametrize("name", ["ppo", "vapo", "dapo"])
def test_learning_rates_warm_up_and_stay(name):
  c = preset(name).get_config()
  steps = c.rl.steps
  rates = [optimizers.policy_rate(c)]
  if name != "dapo":
    rates.append(optimizers.critic_rate(c, steps))
  for rate in rates:
    peak, total = rate["lr"], rate["total"]
    assert rate["warmup"] == 20 * 16 and total == steps * 16
    at = schedules.learning_rate(
        rate["schedule"], peak=peak, warmup=rate["warmup"], total=total
    )
    got = [float(at(t)) for t in (0, 159, 319, 320, total - 1)]
    assert got == pytest.approx([peak / 320, peak / 2, peak, peak, peak])
