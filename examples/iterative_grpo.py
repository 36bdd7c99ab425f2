"""GRPO, or PPO, on reward models of the policy's own samples.

  python examples/iterative_grpo.py --workdir=runs/iterative_grpo
  python examples/iterative_grpo.py --ppo --workdir=runs/ppo_reward_model
  python examples/iterative_grpo.py --smoke --workdir=runs/small

Iterative GRPO (arXiv:2402.03300, algorithm 1): a round samples the policy of
the round before, makes pairs with the verifier, trains the reward model further
on these pairs and on 10% of earlier pairs, and takes 10 steps of GRPO. The
reward is the score of the reward model alone; the reference of the KL is the
policy of the round before. Held-out accuracy: 21% to 54% in the first round
(seed 0, studies/rounds/rounds.md), whose reward model prefers the correct
response in 81% (+- 8) of held-out pairs.

--ppo is InstructGPT (arXiv:2203.02155): SFT, a reward model, then PPO with a
KL to the SFT model and a critic that starts from the reward model; the verifier
judges in place of people. Held-out accuracy: 24% to 55% after 30 of its 40
steps (eight seeds, studies/baselines/baselines.md). At a KL coefficient of .2
the policy exploits the reward model: accuracy rises to 55% at step 5 and ends
at 22%, while the score goes on rising (seed 1, studies/baselines/plan.md).

Round K is the run in WORKDIR/round-K, and its reward model is the run in
WORKDIR/reward_model-K; round 0 is the SFT of the base config. The same command
resumes, with the same bits.
"""

import argparse
import pathlib

import rl_reason
from rl_reason.base import config as config_lib
from rl_reason.checks import config_checks, config_files, run_directory
from rl_reason.configs import base, ppo
from rl_reason.devices.randomness import host_seed
from rl_reason.report import compare

REPLAY = 0.1  # share of the pairs of earlier rounds, as in section 4.2


def get_config(critic: bool):
  """GRPO with a KL of .04 as in the paper, or PPO with a KL in the reward."""
  c = ppo.get_config() if critic else base.arithmetic()
  c.generate.keep = "pairs"
  c.generate.prompts = 2048
  c.reward_model.steps = 150
  if critic:
    # About half of the prompts get correct and incorrect responses: a pair.
    c.generate.samples = 4
    c.kl.update(kind="k1", place="reward", coef=0.8)
    c.critic.init = "exported"  # from the reward model of the round
  else:
    c.rl.steps = 10  # of a round
    c.evaluate.every = 5
    c.kl.update(kind="k3", coef=0.04)
  return c


def of_round(whole, number: int, workdir: pathlib.Path, model: str):
  """The config of a round: SFT in round 0, then RL on a reward model."""
  c = whole.copy_and_resolve_references()
  if not number:
    c.rl.steps = c.optimizer.warmup_steps = c.critic.warmup_steps = 0
    c.critic.init = "policy"  # there is no reward model yet
  else:
    c.seed = host_seed(c.seed, f"round {number}")  # other prompts and noise
    c.model.path = str(workdir / f"round-{number - 1}" / "export" / "policy")
    c.sft.steps = c.sft.warmup_steps = c.sft.habits.steps = 0
    c.sft.difficulties = ()
    c.reward.update(functions=f"{model}*1.0", correct=0.0, incorrect=0.0)
    c.critic.path = model if c.critic.init == "exported" else ""
  return config_lib.with_defaults(c)


def of_reward_model(whole, number: int, workdir: pathlib.Path):
  """The config of the reward model of a round, which continues the last one."""
  c = of_round(whole, number, workdir, "")
  c.reward, c.critic.init, c.critic.path = whole.reward, "policy", ""
  share = REPLAY / max(number - 1, 1)  # of each earlier round
  weights = [share] * (number - 1) + [1 - share * (number - 1)]
  pairs = [
      f"{workdir}/round-{n}/generated/{whole.rl.steps if n else 0}*{weight:.6g}"
      for n, weight in enumerate(weights)
  ]
  own = [x for x in [whole.reward_model.samples] if x]  # ratings of users
  c.reward_model.samples = ",".join(pairs + own)
  if number > 1:
    c.reward_model.init = exported(workdir / f"reward_model-{number - 1}")
  return c


def exported(place: pathlib.Path) -> str:
  """The model that a run of a reward model exports."""
  return str(place / "export" / "reward_model")


def main(workdir: pathlib.Path, whole, rounds: int) -> None:
  """Runs or resumes all rounds."""
  places = [workdir / f"round-{number}" for number in range(rounds + 1)]
  models = [workdir / f"reward_model-{number}" for number in range(rounds + 1)]
  for number in range(rounds + 1):  # before the first one starts
    # Its reward model is not there yet; an id of the hub may be anything.
    config_checks.fields(of_round(whole, number, workdir, "its/model"))
  configs = [
      of_round(whole, number, workdir, exported(model))
      for number, model in enumerate(models)
  ]
  for number, (c, place) in enumerate(zip(configs, places, strict=True)):
    later = places[number + 1 :] + models[number + 1 :]
    if any(x.exists() for x in later):
      run_directory.check(place, c)  # the same round as then
      print(f"round {number} is finished: {place}")
      continue
    if number:
      print(f"round {number}: pairs of samples of the policy before")
      policy = configs[number - 1].copy_and_resolve_references()
      rl_reason.train(policy, workdir=places[number - 1], stage="export")
      policy.reward = whole.reward  # the verifier grades the samples
      rl_reason.train(policy, workdir=places[number - 1], stage="generate")
      print(f"round {number}: {c.reward_model.steps} steps of a reward model")
      learner = of_reward_model(whole, number, workdir)
      rl_reason.train(learner, workdir=models[number], stage="reward_model")
    what = f"{c.rl.steps} steps of RL on its score" if number else "SFT"
    print(f"round {number} of {rounds}: {what}")
    rl_reason.train(c, workdir=place)
  print(f"all rounds side by side: {compare.write(places)}")


if __name__ == "__main__":
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument("--workdir", type=pathlib.Path, required=True)
  parser.add_argument("--ppo", action="store_true", help="one round of PPO")
  parser.add_argument("--smoke", action="store_true", help="within minutes")
  flags = parser.parse_args()
  config = get_config(critic=flags.ppo)
  if flags.smoke:
    config = config_files.smoke(config)
  main(flags.workdir, config, 1 if flags.ppo else 2 if flags.smoke else 4)
