"""--stage=size: formulas by hand, beside TPU programs, and what it says."""

import contextlib
import dataclasses
import json
import math
import re

import jax
import pytest
from conftest import ROOT

from bench.memory import aot, hardware, size as size_bench, slices
from bench.speed import dtype, programs
from rl_reason.base import config, errors
from rl_reason.checks import config_checks, config_files, machine_checks
from rl_reason.devices import device_mesh, sharding
from rl_reason.lab import (
    automatic_remat,
    disk_formula,
    memory_formula,
    model_shapes,
    size as size_stage,
    traffic_formula,
)
from rl_reason.models import decoder
from rl_reason.monitoring.display import Display
from rl_reason.stages import model
from rl_reason.stages.initial_state import abstract_arrays
from rl_reason.stages.model import critic_config

GIB = 1 << 30


def sized(path, devices=1, attention="xla", backend="", **changes):
  """The config, the model and the size of a run."""
  given = {k.replace("__", "."): v for k, v in changes.items()}
  c, _ = config_checks.checked(path, given)
  cfg = dataclasses.replace(model_shapes.shape(c), attention=attention)
  machine_checks.devices(c, devices)
  where = size_stage._mesh(c, devices)
  value = critic_config(c, cfg)
  return cfg, memory_formula.estimate(c, cfg, value, where, backend=backend)


# --- formulas ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("Qwen/Qwen2.5-0.5B", 494_032_768),  # as their model cards say
        ("Qwen/Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("Qwen/Qwen2.5-32B", 32_763_876_352),
    ],
)
def test_known_shapes_have_the_parameters_of_their_models(name, count):
  c, _ = config_checks.checked("dapo_qwen", {"model.path": name})
  table = decoder.table(model_shapes.shape(c))
  assert memory_formula.bytes_of(table, sharding.abstract_mesh()) == 4 * count
  # All but norms and biases are split over both axes.
  eight = memory_formula.bytes_of(
      table, sharding.abstract_mesh(fsdp=4, tensor=2)
  )
  assert 4 * count / 8 <= eight < 4 * count / 8 * 1.01


def test_parts_by_hand():
  """Qwen2.5-0.5B: 24 layers, 2 heads of 64 keys and as many values."""
  path, count = "recipes/gsm8k_0_5b", 494_032_768
  cfg, size = sized(path)
  assert size.resident["optimizer state"] == 8 * count
  assert size.rollout["weights of the sampler"] == 2 * count
  length = -(-(384 + 1024) // 128) * 128
  token = 24 * 2 * 2 * 64 * 2
  assert size.rollout["key/value cache"] == 256 * length * token
  assert size.rollout["cache of the prompts"] == 128 * 384 * token
  assert size.update["logits"] == 3 * 4 * 1024 * 151_936
  int8 = sized(path, rollout__cache="int8")[1].rollout["key/value cache"]
  assert int8 == 256 * length * token * (1 + 4 / 64) / 2
  on_tpus = sized(path, attention="tpu")[1].rollout  # heads of 64 as of 128
  assert on_tpus["key/value cache"] == 2 * 256 * length * token
  assert on_tpus["cache of the prompts"] == 2 * 128 * 384 * token
  offload = sized(path, optimizer__offload=True)[1]
  assert offload.resident["optimizer state"] == 0
  assert offload.update_peak < size.update_peak - 7 * count
  muon = sized(path, optimizer__name="muon")[1]  # one moment of a matrix
  others = 151_936 * 896 + 24 * (2 * 896 + 896 + 2 * 128) + 896
  assert muon.resident["optimizer state"] == 4 * (count + others)
  evaluation = size.evaluation  # in 256 slots
  assert evaluation["key/value cache"] == 256 * length * token
  assert evaluation["cache of the prompts"] == 64 * 384 * token
  change = dict(rollout__slots=10_000, evaluate__samples=16)
  all_rows = sized(path, **change)[1].evaluation
  assert all_rows["key/value cache"] == 64 * 17 * length * token
  factors = sized(path, lora__rank=8)[1]
  assert factors.resident["optimizer state"] < 0.02 * 8 * count
  assert factors.resident["parameters"] > 2 * count
  critic = sized(path, advantage__name="gae")[1]
  assert critic.resident[
      "critic, initial critic and its optimizer state"
  ] == pytest.approx(16 * count, rel=1e-3)


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("grpo", {}),
        ("vapo", {}),
        ("grpo", {"lora.rank": 4}),
        ("ppo", {"optimizer.name": "muon"}),
        ("grpo", {"optimizer.name": "sgd"}),
    ],
)
def test_a_checkpoint_is_as_large_as_the_arrays_of_the_state(path, changes):
  c = config_files.smoke(config_checks.checked(path, changes)[0])
  cfg = model_shapes.shape(c)
  value = critic_config(c, cfg)
  mesh, _ = device_mesh.make_meshes(data=jax.device_count())
  arrays = abstract_arrays(c, model.Model(cfg, value, mesh))
  size = sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves(arrays))
  host, disk = disk_formula.estimate(c, cfg, value)
  (one,) = host.values()
  assert one == pytest.approx(size, rel=0.01)
  assert disk["checkpoints of RL, 3 kept and 1 being written"] == 4 * one
  assert ("checkpoint of value pretraining" in disk) == (path == "vapo")


def leaves(arrays):
  return [x for x in jax.tree.leaves(arrays) if hasattr(x, "dtype")]


def sent(path, devices, **changes):
  """The traffic of a step."""
  given = {k.replace("__", "."): v for k, v in changes.items()}
  c, _ = config_checks.checked(path, given)
  cfg = model_shapes.shape(c)
  where = size_stage._mesh(c, devices)
  return traffic_formula.estimate(c, cfg, critic_config(c, cfg), where)


def test_traffic_by_hand():
  """Qwen2.5-0.5B: 4 updates of 256 rows, 12 rows in a micro-batch of a shard.

  The width of all but norms and biases is split over fsdp = 2.
  """
  path, mesh = "recipes/gsm8k_0_5b", dict(mesh__data=2, mesh__fsdp=2)
  kept = 24 * (2 * 896 + 896 + 2 * 128) + 896
  split = 494_032_768 - kept
  assert sent(path, 1) == {}
  found = sent(path, 4, **mesh)
  micro = 6  # 256 rows / (4 shards x 12 rows), rounded up
  of_sampler = found.pop("weights of the sampler, gathered")
  assert of_sampler == split + kept  # half of 2 bytes
  assert found == {
      # bfloat16: a half is 1 byte per parameter, forward and backward.
      "weights, gathered for the update": 4 * micro * 2 * split,
      # float32: half of 4 bytes over fsdp, and then, over data, twice a
      # half of the half that is left. The rest: twice 3/4 over all devices.
      "gradients, reduced": 4 * micro * (4 * split + 6 * kept),
      "weights, gathered for log-probs": 4 * micro * split,
  }
  # Data parallelism gathers nothing; the gradient is twice 3/4 of 4 bytes.
  replicas = sent(path, 4, mesh__data=4, mesh__fsdp=1)
  assert replicas == {"gradients, reduced": 4 * micro * 6 * (split + kept)}
  # Tensor parallelism splits the arrays, and not the rows: 22 micro-batches.
  assert sent(path, 2, mesh__fsdp=1, mesh__tensor=2) == {}
  of_tensor = sent(path, 4, mesh__data=1, mesh__fsdp=2, mesh__tensor=2)
  gathers = 4 * -(-256 // 24)
  assert of_tensor["weights, gathered for log-probs"] == gathers * split / 2
  # Once for all rows: on-policy, and a KL to the initial policy.
  assert "weights, gathered for log-probs" not in sent(
      path, 4, **mesh, updates__minibatches=1
  )
  more = sent(
      path, 4, **mesh, kl__kind="k3", kl__coef=0.1, rollout__weights="int8"
  )
  assert more["reference policy, gathered"] == 4 * micro * split
  assert more["weights of the sampler, gathered"] < 0.7 * of_sampler
  critic = sent(path, 4, **mesh, advantage__name="gae")
  assert critic["critic, gathered"] == pytest.approx(12 * micro * split, 1e-3)
  assert critic["gradients of the critic, reduced"] == pytest.approx(
      found["gradients, reduced"], 1e-3
  )
  # Whole weights for each device that samples, and once for an engine.
  assert (
      sent(path, 4, mesh__rollout=2, rl__staleness=1, mesh__fsdp=4)[
          "weights, to the devices that only sample"
      ]
      == 2 * 2 * (split + kept) / 4
  )
  engine = sent(
      path,
      4,
      **mesh,
      rollout__engine__name="vllm",
      rollout__engine__args__model="x",
  )
  assert engine["weights, to the engine"] == 2 * (split + kept) / 4


def test_memory_and_disk_of_32_billion_parameters():
  """The bytes that docs/memory.md states, of all devices together."""
  text = " ".join((ROOT / "docs" / "memory.md").read_text().split())
  cfg, size = sized("paper/dapo", 64, mesh__tensor=8)
  whole = sharding.abstract_mesh()
  count = memory_formula.bytes_of(decoder.table(cfg), whole) / 4
  by_name = {**size.resident, **size.update}
  names = [
      "parameters",
      "initial parameters",
      "optimizer state",
      "gradients, 4 arrays in float32",
  ]
  found = [round(64 * by_name[name] / count) for name in names]
  assert found == [4, 4, 8, 16]
  assert f"{sum(found)} bytes per parameter" in text
  gathered = by_name["weights gathered for the products"]
  assert 8 * gathered / count == pytest.approx(2, rel=0.01)
  c, _ = config_checks.checked("paper/dapo", {})
  host, disk = disk_formula.estimate(c, cfg, critic_config(c, cfg))
  assert host == {"copy of the state while a checkpoint is written": 12 * count}
  assert "12 bytes per parameter" in text
  assert f"{12 * count / 1e9:.0f} GB" in text
  assert sum(disk.values()) == 4 * 12 * count
  moved = c.optimizer.offload = True
  host, _ = disk_formula.estimate(c, cfg, critic_config(c, cfg))
  assert moved and sum(host.values()) == 20 * count


def test_formulas_are_those_of_programs_compiled_for_tpu():
  """Within 10% of results/aot.json; caches to the byte."""
  found = json.loads((ROOT / "results" / "aot.json").read_text())
  assert len(found["programs"]) == 9
  for x in found["programs"]:
    cfg = dataclasses.replace(aot.CFG, layers=x["layers"])
    table = decoder.table(cfg)
    if x["program"] == "decode":
      where, rows = sharding.abstract_mesh(data=2, tensor=2), aot.SLOTS // 2
      length = aot.PROMPT + aot.RESPONSE
      cache = memory_formula.cache_bytes(cfg, where, rows, length, "same")
      assert cache == x["cache"]
      prompts = aot.PROMPTS // 2, aot.PROMPT, "same"
      # The benchmark has parameters in fp32, which the program casts.
      weights = [memory_formula.bytes_of(table, where, size) for size in (4, 2)]
      parts = cache, memory_formula.cache_bytes(cfg, where, *prompts), *weights
      estimate = sum(parts) + memory_formula.decode_bytes(cfg, where, rows)
    else:
      where = sharding.abstract_mesh(fsdp=2, tensor=2)
      fp32 = memory_formula.bytes_of(table, where)
      low = memory_formula.bytes_of(table, where, 2, gathered=True)
      tokens = aot.ROWS // 2 * aot.LENGTH
      saved, transient = memory_formula.activations(cfg, where, tokens)
      copies = 1 if "offload" in x["program"] else 3
      estimate = (copies + memory_formula.GRADIENT_COPIES) * fp32 + low + saved
      estimate += max(transient, memory_formula.logit_bytes(cfg, where, tokens))
    peak = x["arguments"] + x["temporary"] + x["outputs"] - x["aliased"]
    assert estimate == pytest.approx(peak, rel=0.1), x["program"]


def test_no_program_of_a_slice_exceeds_its_memory():
  """Of results/slices.json: all rows of TPUs, as they were compiled."""
  found = json.loads((ROOT / "results" / "slices.json").read_text())["rows"]
  tpus = [x for x in found if found[x] and not x.endswith(slices.GPUS)]
  assert len(tpus) == 12
  for name in tpus:
    gib, _ = slices.KINDS[name.split()[1]]
    for phase in "update", "rollout":
      assert found[name][phase].get("peak", float("inf")) <= gib * GIB, name


# --- the hardware of guides ---------------------------------------------------


def test_the_page_is_what_the_formulas_say():
  found = json.loads((ROOT / "results" / "hardware.json").read_text())
  assert hardware.measure(None) == found
  text = (ROOT / "results" / "hardware.md").read_text()
  assert text == "\n".join(hardware.page(found)) + "\n"


@pytest.mark.parametrize(
    ("need", "has", "word"),
    [
        (9, 8, "too little"),
        (8, 8, "enough"),
        (5, 8, "enough"),
        (4, 8, "too much"),
        (math.inf, 8, "too little"),
    ],
)
def test_verdicts_on_hardware(need, has, word):
  assert hardware.verdict(need, has) == word


def test_hosts_and_disk_are_judged_with_the_settings_that_fit():
  """13-32B: 8 devices, 512 GB and 10 TB."""
  sizes = dict(host=393e9, disk=1e12)
  row = {
      "size": "13-32B",
      "as it is": sizes | dict(devices=32),
      "least": dict(devices=8, host=655e9, disk=6e12),
      "LoRA": dict(devices=4, host=1e9, disk=1e9),
  }
  assert hardware.judged(row) == dict(
      devices="enough with the least memory", host="too little", disk="enough"
  )
  row["least"]["devices"] = 16
  assert hardware.judged(row) == dict(
      devices="enough with LoRA", host="too much", disk="too much"
  )
  row["LoRA"] = sizes  # on no number
  assert hardware.judged(row) == dict(
      devices="too little", host="enough", disk="too much"
  )
  row["as it is"]["devices"] = 4
  assert hardware.judged(row)["devices"] == "too much"


# --- recipes -----------------------------------------------------------------

RECIPES = [
    (path, int(devices), float(memory), update, rollout)
    for path, devices, memory, update, rollout in re.findall(
        r"^\| `(\S+)` \|.*\| (\d+) x ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$",
        (ROOT / "docs" / "start.md").read_text(),
        re.MULTILINE,
    )
]


def test_every_recipe_is_in_the_table():
  files = {
      f"configs/{folder}/{path.name}"
      for folder in ("recipes", "paper")
      for path in (ROOT / "configs" / folder).glob("*.py")
      if path.name != "size.py"
  }
  assert {path.partition(":")[0] for path, *_ in RECIPES} == files


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda x: x[0])
def test_a_recipe_is_complete_and_fits(recipe):
  """Model, data, evaluation; on the devices and in the memory of the table."""
  path, devices, memory, update, rollout = recipe
  for name in (path, f"{path}:smoke"):
    c, notes = config_checks.checked(name, {})
    assert machine_checks.files(c) == []
    assert not notes and c.model.path and c.data.train and c.data.evaluate
    assert c.rl.steps and not c.sft.steps
  _, size = sized(path, devices, "tpu" if "v5e" in path else "xla")
  assert f"{size.update_peak / GIB:.1f}" == update
  assert f"{size.rollout_peak / GIB:.1f}" == rollout
  assert size.peak < 0.9 * memory * GIB
  text = (ROOT / path.partition(":")[0]).read_text()
  assert re.search(r"not\s+measured|never\s+(run|ran)", text, re.IGNORECASE)


# --- the command -------------------------------------------------------------


def say(path, memory, devices=1, **changes):
  lines, screen = [], Display(False)
  screen.say = lines.append
  given = {k.replace("__", "."): v for k, v in changes.items()}
  size_stage.run(config_checks.checked(path, given)[0], screen, memory, devices)
  return lines


def test_the_smallest_number_of_devices_fits_and_its_half_does_not():
  line, *_ = say("paper/vapo", 80.0, devices=-1)
  found = re.match(
      r"the smallest number of devices of 80.0 GiB: (\d+), with mesh = data 1 x"
      r" fsdp (\d+) x .* x tensor (\d+) ",
      line,
  )
  count, fsdp, tensor = map(int, found.groups())
  assert count == fsdp * tensor
  for devices, fits in (count, True), (count // 2, False):
    for parts in (1, 2, 4, 8):
      mesh = dict(mesh__data=1, mesh__fsdp=devices // parts, mesh__tensor=parts)
      with contextlib.suppress(errors.ConfigError):
        _, size = sized("paper/vapo", devices, **mesh)
        assert fits or size.peak > 80 * GIB
        if parts == tensor:
          assert (size.peak <= 80 * GIB) == fits
  # The small model fits on one device; of GiB that no number helps, the least.
  assert ": 1, with mesh = data 1 " in say("dapo", 1.0, devices=-1)[0]
  with pytest.raises(errors.ConfigError, match="no number of devices up to"):
    say("paper/vapo", 24.0, devices=-1)


def test_the_largest_budget_and_slots_fit_exactly():
  path = "recipes/gsm8k_0_5b"
  padded, line = say(path, 20.0)
  assert padded == (
      "on TPUs the key/value cache has heads of 128 instead of 64: rollout 18.6"
      " GiB instead of 13.9"
  )
  numbers = map(int, re.findall(r"= (\d+)", line))
  budget, slots, prompts = numbers
  assert line.startswith("fits into 20.0 GiB")
  row = 384 + 1024
  for change, low, high in (
      ("updates__token_budget", budget, budget + row),
      ("rollout__slots", slots, slots + 1),
  ):
    peaks = [
        size.peak
        for value in (low, high)
        for _, size in [sized(path, **{change: value})]
    ]
    assert peaks[0] <= 20 * GIB < peaks[1]
  # The evaluation counts: its batch is the one that fits, or smaller.
  assert prompts == config_checks.checked(path, {})[0].evaluate.batch
  _, line = say(path, 20.0, evaluate__batch=4000)
  *_, prompts = map(int, re.findall(r"= (\d+)", line))
  assert line.startswith("does not fit into 20.0 GiB") and prompts < 4000
  for batch, fits in (prompts, True), (prompts + 1, False):
    _, size = sized(path, evaluate__batch=batch)
    assert (size.evaluation_peak <= 20 * GIB) == fits


def test_auto_is_the_fastest_that_fits_and_is_kept(tmp_path, monkeypatch):
  """Then fewer tokens at a time; a run that resumes does not choose again."""
  path, memory = "recipes/gsm8k_0_5b", 0
  monkeypatch.setattr(automatic_remat, "device_bytes", lambda: memory)

  def chosen():
    lines = []
    c, _ = config_checks.checked(path, {"model.remat": "auto"})
    automatic_remat.fill_in(c, tmp_path, sharding.abstract_mesh(), lines.append)
    (line,) = lines
    assert f"{c.model.remat!r}, updates.token_budget = {budget_of(c)}" in line
    return c

  def budget_of(c):
    return c.updates.token_budget

  def peak(remat, budget):
    change = dict(model__remat=remat, updates__token_budget=budget)
    return sized(path, backend="cpu", **change)[1].update_peak

  full = budget_of(config_checks.checked(path, {})[0])
  for remat in automatic_remat.REMAT:
    memory = int(peak(remat, full) / automatic_remat.MARGIN) + (1 << 20)
    c = chosen()
    assert (c.model.remat, budget_of(c)) == (remat, full)
  row = 384 + 1024
  some = (peak("sqrt", row) + peak("sqrt", full)) / 2
  memory = int(some / automatic_remat.MARGIN)
  c = chosen()
  least, limit = budget_of(c), automatic_remat.MARGIN * memory
  assert c.model.remat == "sqrt" and row <= least < full
  assert peak("sqrt", least) <= limit < peak("sqrt", least + row)
  # The same command on a larger machine.
  (tmp_path / "config.json").write_text(json.dumps(config.flat(c)))
  memory *= 2
  again = chosen()
  assert (again.model.remat, budget_of(again)) == ("sqrt", least)
  (tmp_path / "config.json").unlink()
  memory = GIB
  with pytest.raises(errors.ConfigError, match="one row .* raise mesh.fsdp"):
    chosen()


def test_what_cannot_fit_has_remedies():
  lines = say("recipes/math_1_5b", 24.0)
  assert lines[0].startswith("does not fit into 24.0 GiB")
  assert "mesh.fsdp" in lines[1] and "optimizer.offload" in lines[1]
  auto = say("recipes/math_1_5b", 24.0, model__remat="auto")
  assert auto[0].startswith("model.remat = 'auto': by formula one row")
  assert auto[1].startswith("does not fit") and auto[2:] == lines[1:]
  with pytest.raises(errors.ConfigError, match="no such directory"):
    say("dapo_qwen", 24.0, model__path="no/such/model/anywhere")


def test_a_slow_dtype_is_told_with_the_factors_that_were_measured():
  config = dataclasses.replace(aot.CFG, dtype="bfloat16")
  found = json.loads((ROOT / "results" / "dtype.json").read_text())
  factors = [
      f"{dtype.factor(found, name, 'bfloat16'):.1f} times"
      for name in ("decoding", "gradient")
  ]
  line = model.slow_dtype(config)
  assert [x in line for x in factors] == [True, True], (line, factors)
  assert "model.dtype = 'float32'" in line
  for other in "float32", "float16":
    assert not model.slow_dtype(dataclasses.replace(config, dtype=other))
    assert dtype.factor(found, "gradient", other) < 1.1


def test_formula_and_analysis_agree_with_the_peaks_that_were_measured():
  found = json.loads((ROOT / "results" / "size.json").read_text())["cases"]
  assert set(found) == set(size_bench.CASES)
  for name, phases in found.items():
    for phase, x in phases.items():
      for source in "formula", "xla":
        # Arenas of threads are a few MiB, which matter in the smallest runs.
        most = max(0.3 * x["measured"], 8 * 2**20)
        assert abs(x[source] - x["measured"]) < most, (name, phase, source)


def test_the_formula_is_the_one_of_the_table():
  """On the same backend, of the same configs; nothing compiles."""
  found = json.loads((ROOT / "results" / "size.json").read_text())["cases"]
  for name, phases in found.items():
    path, given = size_bench.CASES[name]
    changes = {k.replace(".", "__"): str(x) for k, x in given.items()}
    _, size = sized(path, backend="cpu", **changes)
    for phase, x in phases.items():
      assert getattr(size, f"{phase}_peak") == x["formula"], (name, phase)


def test_a_second_start_compiled_nothing_and_the_first_one_less_than_before():
  found = json.loads((ROOT / "results" / "programs.json").read_text())
  before, after = found["before"], found["after"]
  assert all(x["hit"] for x in after["second start"]["programs"])
  assert not all(x["hit"] for x in before["second start"]["programs"])
  for name in programs.STARTS:
    assert len(after[name]["programs"]) < len(before[name]["programs"])


def test_largest_is_a_bisection():
  for most in (0, 1, 5, 8):
    for limit in range(most + 1):
      assert automatic_remat.largest(lambda x, to=limit: x <= to, most) == limit


@pytest.mark.slow
def test_programs_of_this_machine_are_compiled():
  lines = []
  screen = Display(False)
  screen.say = lines.append
  screen.table = lambda title, columns, rows: lines.append(rows)
  c = config_files.smoke(config_checks.checked("grpo", {})[0])
  c.rollout.update(batch=64, slots=16)
  config.override(c, {"mesh.data": jax.device_count()})
  size_stage.run(c, screen, None, 0)
  (rows,) = [x for x in lines if isinstance(x, list)]
  for row in rows:
    if row[1] == "peak":
      formula, xla, measured = map(float, row[2:])
      assert formula == pytest.approx(xla, rel=0.3)
      assert measured > 0
  assert lines[-1].startswith("fits into")
