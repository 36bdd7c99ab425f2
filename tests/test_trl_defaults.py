"""configs/trl_grpo.py has the defaults of TRL that results/ recorded."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np

from bench import results
from bench.peers import __main__ as peers
from configs import base, trl_grpo
from rl_reason.algorithms import kl
from rl_reason.base import config, function_kinds, functions
from studies.trl_defaults import run as trl_defaults

RESULT = results.read("trl_defaults")
DEFAULTS, FIELDS = RESULT["defaults"], trl_defaults.fields()
# Fields of configs/trl_grpo.py that GRPOConfig leaves to other arguments of the
# trainer, to its data and to its reward, or that change no result.
OTHERS = {
    *("task.name", "task.difficulties", "data.train", "data.evaluate"),
    *("data.chat", "reward.incorrect", "rollout.max_prompt"),
    *("advantage.args.eps", "updates.token_budget", "evaluate.prompts"),
    "evaluate.validation",
}


def values(c) -> dict:
  """The fields of a config, and the arguments of its functions by default."""
  out = config.flat(c)
  for kind, known in function_kinds.KINDS.items():
    name = out.get(f"{known.field}.name")
    if name:
      for argument, spec in functions.signature(kind, name).arguments.items():
        out.setdefault(f"{known.field}.args.{argument}", spec.default)
  return out


OURS = values(trl_grpo.get_config())


def fault(name: str) -> str:
  """What is wrong with the row of a field of TRL; '' if nothing is."""
  row, default = FIELDS[name], DEFAULTS[name]
  if "field" not in row:
    return "" if row.keys() == {"note"} and row["note"] else "no reason"
  here, wanted = map(
      json.dumps, (OURS[row["field"]], row.get("value", default))
  )
  if "value" in row and wanted == json.dumps(default):
    return "the value of TRL is written again"
  return "" if here == wanted else f"{here}, not {wanted}"


def test_each_default_of_trl_is_here_or_has_a_reason():
  assert len(DEFAULTS) > 150
  faults = {name: fault(name) for name in DEFAULTS}
  assert {name: x for name, x in faults.items() if x} == {}


def test_the_notes_name_fields_that_exist():
  sections = {name.partition(".")[0] for name in OURS}
  for row in FIELDS.values():
    for name in re.findall(r"\b([a-z_]+(?:\.[a-z_]+)+)\b", row.get("note", "")):
      assert (
          name in OURS
          or name.partition(".")[0] not in sections - {"data"}
          or (".args." in name)
      ), name


def test_no_other_field_of_trl_is_named():
  assert FIELDS.keys() == DEFAULTS.keys()


def test_all_other_fields_are_those_of_the_base():
  plain = values(base.get_config())
  changed = {name for name, x in OURS.items() if plain.get(name) != x}
  known = {row["field"] for row in FIELDS.values() if "field" in row}
  assert changed - known == OTHERS
  assert OURS["advantage.args.eps"] == 1e-4  # a constant of GRPOTrainer


def test_the_table_is_of_the_version_that_is_installed_by_the_command():
  versions = RESULT["peers"]["trl"]
  pinned = dict(x.split("==") for x in peers.REQUIREMENTS["trl"] if "==" in x)
  assert versions["trl"] == pinned["trl"] == "1.16.0"
  assert versions["trl"] in trl_grpo.__doc__


def test_the_trainer_of_trl_took_the_same_steps():
  assert len(RESULT["trl"]) == len(RESULT["ours"]) == trl_defaults.STEPS
  for trl, ours in zip(RESULT["trl"], RESULT["ours"], strict=True):
    for name in ("learning_rate", "grad_norm"):
      np.testing.assert_allclose(ours[name], trl[name], rtol=1e-5)
  assert RESULT["trl"][0]["grad_norm"] > 1  # and was clipped
  assert RESULT["difference"] < 1e-3


def test_the_page_is_of_the_data():
  page = (results.folder("trl_defaults") / "trl_defaults.md").read_text()
  assert page.splitlines() == trl_defaults.page(RESULT)


def test_k2_has_the_gradient_of_trls_kl():
  """k3 times the ratio, at a ratio of 1: use_bias_correction_kl."""
  rng = np.random.default_rng(0)
  logps_BT, ref_BT = jnp.array(rng.normal(-1, 0.5, (2, 4, 8)))

  def trl(x_BT):
    ratio_BT = jnp.exp(x_BT - jax.lax.stop_gradient(x_BT))
    return (ratio_BT * kl.k3(x_BT, ref_BT)).sum()

  gradients = [
      jax.grad(f)(logps_BT)
      for f in (trl, lambda x_BT: kl.k2(x_BT, ref_BT).sum())
  ]
  np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-6)
  plain = jax.grad(lambda x_BT: kl.k3(x_BT, ref_BT).sum())(logps_BT)
  assert np.abs(plain - gradients[0]).max() > 0.1
