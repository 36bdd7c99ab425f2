"""A command that stands in for rl_reason.main, and ablations that run it."""

import json
import sys

from rl_reason.lab import ablate

SMOKE = "configs/dapo.py:smoke"
HOSTILE = "</script><script>document.title='owned'</script>|<b>"

# Stands in for rl_reason.main: logs as RL does, and notes when it started and
# ended, and on which cores. The config of each work directory is in a file.
FAKE = """
import json, os, pathlib, signal, sys, time
start = time.time()
flags = dict(x[2:].split("=", 1) for x in sys.argv[1:])
workdir = pathlib.Path(flags["workdir"])
here = pathlib.Path(__file__).parent
fields = json.loads((here / "fields.json").read_text())[str(workdir)]
fields |= {k[7:]: v for k, v in flags.items() if k.endswith(".reuse")}
if steps := flags.get("config.rl.steps"):  # a rung has less of them
  fields["rl.steps"] = int(steps)
stage, trick = flags.get("stage", "all"), flags.get("config.log.samples_every")
if trick == "999":
  sys.exit("boom: no such luck")
if trick == "888" and stage == "all":
  def save(*_):
    (workdir / "saved").touch()
    sys.exit(143)
  signal.signal(signal.SIGTERM, save)
  (workdir / "waits").touch()
  time.sleep(60)
if trick == "777":
  fields["optimizer.lr"] = 0.123
(workdir / "config.json").write_text(json.dumps(fields))
(workdir / "machine.json").write_text('{"python": "3.11", "jax": "0.10"}')
lines = []
def held_out(step, accuracy):
  core = "val-core/toy/acc/"
  line = {"stage": "evaluate", "step": step, core + "mean@4": accuracy}
  score = {"val-aux/score": accuracy + (lr == 0.3)}  # on other prompts
  lines.append(line | {core + "pass@8": accuracy ** 0.5} | score)
if stage == "all":
  lr, seed = fields["optimizer.lr"], fields["seed"]
  held_out(0, 0.25)
  if (workdir / "metrics.jsonl").exists():  # the run goes on
    old = map(json.loads, open(workdir / "metrics.jsonl"))
    lines += [x for x in old if x["step"] and x["stage"] == "evaluate"]
  for step in range(1, fields["rl.steps"] + 1):
    costs = {"tokens/step": 100, "tokens/generated": 100 * step}
    lines.append({"stage": "rl", "step": step, "actor/entropy": lr} | costs)
  held_out(step, 0.5 + lr / 10 + seed / 1000)
text = "".join(json.dumps(x) + "\\n" for x in lines)
(workdir / "metrics.jsonl").write_text(text)
cores = sorted(os.sched_getaffinity(0))
with open(here / "starts.jsonl", "a") as f:
  f.write(json.dumps([stage, workdir.name, start, time.time(), cores]) + "\\n")
"""


def fake_command(folder, monkeypatch, root) -> list[str]:
  """A command that takes main's arguments, for work directories in a folder."""
  monkeypatch.chdir(root)
  monkeypatch.syspath_prepend(str(root))
  (folder / "fake.py").write_text(FAKE)
  plan = ablate.plan

  def noted(*args):
    found = plan(*args)
    fields = {str(job.workdir): job.fields for job in found}
    (folder / "fields.json").write_text(json.dumps(fields))
    return found

  monkeypatch.setattr(ablate, "plan", noted)
  return [sys.executable, str(folder / "fake.py")]


def ladder(**changes):
  """Two rows on two seeds."""
  rows = [
      ("low", SMOKE, {"optimizer.lr": 0.2}),
      ("high", SMOKE, {"optimizer.lr": 0.4}),
  ]
  fields = dict(title="A try", question="Does it?", seeds=(1, 2), rows=rows)
  fields |= dict(reference="low", measures=("entropy", "pass@8"))
  fields |= dict(common={"rl.steps": 4})
  return ablate.ladder(**fields | changes)


def write_config(folder, body):
  """Writes an ablation; returns the flag that names it."""
  path = folder / "clips.py"
  path.write_text(
      "from rl_reason.lab import ablate\n\n\ndef get_config():\n"
      f"  return ablate.ladder({body})\n"
  )
  return f"--config={path}"
