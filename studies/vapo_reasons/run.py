"""VAPO's reasons at 256 tokens: a biased critic, decisions all over a response.

  python -m studies.vapo_reasons.run --jobs 2     # resumable
  python -m studies.vapo_reasons.run --seeds 2    # only the first seeds
  python -m studies.vapo_reasons.run --develop 0  # a seed that is not reported
  python -m studies.vapo_reasons.run --table      # only the pages, from JSON

PPO whose critic starts from a reward model, value pretraining, decoupled GAE
and length-adaptive GAE, one after the other, and controls. All runs start from
one SFT model and one reward model. The task is spread.py, the plan plan.md.
Writes what an ablation writes: vapo_reasons.json, its page, figure and
interactive page.
"""

import argparse
import json
import pathlib
from typing import Any

from bench import results, runs
from rl_reason.lab import ablate, ablation_pages, comparison, jobs
from studies.vapo_reasons import spread

CONFIG = "configs/ppo.py"
NAME = "vapo_reasons"
SEEDS = ablate.fresh_seeds("rl_reason vapo reasons", 8)
STEPS, EVERY = 20, 5
TASK = "studies.vapo_reasons.spread"
COMMON = {
    "task.name": TASK,
    "task.difficulties": spread.DIFFICULTIES,
    "sft.mixture": "noisy:1",
    "sft.habits.steps": 0,
    "sft.habits.mixture": "",
    "sft.steps": 400,
    "sft.batch": 16,
    "sft.lr": 6e-3,
    "sft.threshold": 0.0,
    "rollout.batch": 32,
    "rollout.max_prompt": len(spread.LETTERS) + 1,
    "rollout.max_tokens": spread.MAX_RESPONSE,
    "updates.token_budget": 8192,
    "updates.minibatches": 4,
    "optimizer.lr": 1e-4,
    "reduction.name": "token_mean",
    "rl.steps": STEPS,
    "evaluate.samples": 2,
    "evaluate.mean_of": 2,
    "evaluate.prompts": 64,
    "evaluate.interim_prompts": 64,
    "evaluate.batch": 64,
    "evaluate.every": EVERY,
    "checkpoint.every": STEPS,
    "log.samples_every": STEPS,
    "log.loggers": "",
}
REWARD_MODEL = {
    "reward_model.chosen": "right:1",
    "reward_model.rejected": "wrong:1",
    "reward_model.steps": 200,
    "reward_model.batch": 16,
    "reward_model.evaluate_pairs": 64,
}
PRETRAINED = {"critic.pretrain_steps": 10}
DECOUPLED = PRETRAINED | {"critic.lam": 1.0}
BASE, CONTROL = "PPO", "PPO, critic from the policy"
# Row -> fields; each of the first four adds to the row before.
ROWS: dict[str, dict[str, Any]] = {
    BASE: {},
    "+ value pretraining": PRETRAINED,
    "+ decoupled GAE": DECOUPLED,
    "+ length-adaptive GAE": DECOUPLED
    | {"advantage.name": "gae_length_adaptive"},
    CONTROL: {},
    "lambda 1 for both": DECOUPLED | {"advantage.args.lam": 1.0},
}


def ladder(seeds: tuple[int, ...]):
  """The study as an ablation, for its data and pages."""
  return ablate.ladder(
      title="VAPO's reasons at 256 tokens",
      question=(
          "Do value pretraining, decoupled and length-adaptive GAE help where"
          " the critic starts from a reward model and decisions are spread over"
          " 256 tokens?"
      ),
      seeds=seeds,
      reference=BASE,
      rows=[(name, CONFIG, fields) for name, fields in ROWS.items()],
      measures=("length", "truncation", "explained variance", "value loss"),
  )


def directory(name: str, seed: int) -> pathlib.Path:
  """The work directory of a row, of SFT or of the reward model."""
  return results.RUNS / NAME / f"{ablate.slug(name)}-{seed}"


def plan(seeds: tuple[int, ...]) -> list[jobs.Job]:
  """SFT and the reward model, of the first seed, and all rows of each seed."""
  first = seeds[0]
  sft, reward_model = (directory(x, first) for x in ("sft", "reward model"))

  def fields(seed: int) -> dict[str, Any]:
    return COMMON | {"seed": seed} | runs.HELD_OUT

  reuse = {"sft.reuse": str(sft)}
  base = runs.run(CONFIG, sft, fields(first), (), "--stage=sft")
  scorer = runs.run(
      CONFIG,
      reward_model,
      fields(first) | reuse | REWARD_MODEL,
      (sft,),
      "--stage=reward_model",
  )
  out = [x._replace(row="") for x in (base, scorer)]
  critic = {
      "critic.init": "exported",
      "critic.path": str(reward_model / "export" / "reward_model"),
  }
  for seed in seeds:
    for name, of_row in ROWS.items():
      biased = {} if name == CONTROL else critic
      bases = (sft,) if name == CONTROL else (sft, reward_model)
      job = runs.run(
          CONFIG,
          directory(name, seed),
          fields(seed) | reuse | biased | of_row,
          bases,
      )
      out.append(job._replace(row=name, seed=seed))
  return out


def main() -> None:
  """The command."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
  parser.add_argument("--seeds", type=int, default=len(SEEDS))
  parser.add_argument("--develop", type=int, help="a seed that is not reported")
  parser.add_argument("--table", action="store_true", help="run nothing")
  given = parser.parse_args()
  path = results.folder(NAME) / f"{NAME}.json"
  if given.table:
    data = json.loads(path.read_text())
  else:
    seeds = SEEDS[: given.seeds]
    if given.develop is not None:
      seeds = (given.develop,)
    todo = plan(seeds)
    runs.make(todo, given.jobs)
    c = ladder(seeds)
    command = f"python -m studies.{NAME}.run"
    data = comparison.collect(c, todo, ablate.measures(c), command, {})
    if given.develop is not None:
      print(ablation_pages.markdown_table(data))
      return
    comparison.save(data, path)
  for written in ablation_pages.write(data, path, "png"):
    print(f"wrote {written}")


if __name__ == "__main__":
  main()
