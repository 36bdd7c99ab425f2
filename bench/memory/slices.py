"""The smallest slice that trains a model, by formula and compiled for TPU.

  pip install 'jax[tpu]'       # libtpu; no TPU
  python -m bench.memory.slices       # continues: rows that are missing
  python -m bench.memory.slices --only=32B,v5p   # rows with these words
  python -m bench.memory.slices --only=32B --again
  python -m bench.memory.slices --table

For each model and each kind of accelerator, the smallest slice, mesh and
rematerialization that fit by the formulas of `--stage=size`; on a TPU also the
programs of a step, compiled ahead of time for the topology. Weights are shapes
only, and nothing runs. Writes results/slices.{json,md} after each row.
"""

import dataclasses
import functools
import re
import time
from collections.abc import Callable
from importlib import metadata

import jax
from jax.experimental import topologies

from bench import results
from bench.memory import aot, collectives
from rl_reason.base import errors
from rl_reason.checks import config_checks, machine_checks
from rl_reason.devices import device_mesh, sharding
from rl_reason.lab import (
    automatic_remat,
    compiled_memory,
    memory_formula,
    model_shapes,
)
from rl_reason.monitoring.display import Display
from rl_reason.stages.model import Model, attention_backend, critic_config

GIB = 1 << 30
MODELS = {
    "0.5B": "Qwen/Qwen2.5-0.5B",
    "1.5B": "Qwen/Qwen2.5-1.5B",
    "7B": "Qwen/Qwen2.5-7B",
    "32B": "Qwen/Qwen2.5-32B",
    "70B": "meta-llama/Llama-3.1-70B",
}
PLANES = ["2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"]
BOXES = ["2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8"]
NODES = ["1x8", "2x8", "4x8", "8x8", "16x8", "32x8"]
# Kind -> GiB of a device that programs may take, and the slices.
KINDS = {
    "v5e": (15.75, PLANES),
    "v6e": (31.25, PLANES),
    "v5p": (95.74, BOXES),
    "H100": (79.6, NODES),
    "H200": (139.8, NODES),
}
GPUS = ("H100", "H200")
MARGIN = 0.9  # of the memory, for what the formulas do not count
ROWS = 8  # most packed rows of a micro-batch and a device
SLOTS = 128  # most slots of a shard of the batch
GIVEN = {
    "model.dtype": "bfloat16",
    "rollout.batch": 8192,
    "rollout.group_size": 16,
    "rollout.max_prompt": 1024,
    "rollout.max_tokens": 7168,
    "reward.overlong_buffer": 1024,
    "dynamic_sampling.batches": 1,
    "updates.minibatches": 16,
    "evaluate.batch": 512,
}
LENGTH = GIVEN["rollout.max_prompt"] + GIVEN["rollout.max_tokens"]


def devices_of(place: str) -> int:
  """Number of devices of a slice such as 4x4x4."""
  count = 1
  for size in place.split("x"):
    count *= int(size)
  return count


def config_of(model: str, kind: str, **fields):
  """The config of a run and the shape of its model, with kernels of a kind."""
  given = GIVEN | {"model.path": MODELS[model]}
  given |= {name.replace("__", "."): value for name, value in fields.items()}
  c, _ = config_checks.checked("dapo_qwen", given)
  backend, _ = attention_backend(c, "gpu" if kind in GPUS else "tpu")
  return c, dataclasses.replace(model_shapes.shape(c), attention=backend)


def choose(model: str, kind: str) -> dict | None:
  """The smallest slice on which a run fits, and the fields of the run.

  Of its meshes the one with the least tensor parallelism, and then what is
  recomputed least.
  """
  gib, places = KINDS[kind]
  limit = MARGIN * gib * GIB
  for place in places:
    count = devices_of(place)
    for tensor in (1, 2, 4, 8):
      for remat in ("dots", "full"):
        c, cfg = config_of(
            model, kind, model__remat=remat, mesh__tensor=tensor, mesh__data=1
        )
        try:
          machine_checks.devices(c, count)
        except errors.ConfigError:
          continue
        mesh = sharding.abstract_mesh(fsdp=count // tensor, tensor=tensor)
        value = critic_config(c, cfg)

        def budget_fits(rows, args=(c, cfg, value, mesh)):
          size = memory_formula.estimate(*args, token_budget=rows * LENGTH)
          return size.update_peak <= limit

        def slots_fit(
            slots, args=(c, cfg, value, mesh), shards=count // tensor
        ):
          size = memory_formula.estimate(*args, slots=slots * shards)
          return size.rollout_peak <= limit

        shards = count // tensor
        most = GIVEN["rollout.batch"] // GIVEN["updates.minibatches"] // shards
        rows = automatic_remat.largest(budget_fits, min(ROWS, most))
        slots = automatic_remat.largest(slots_fit, SLOTS) * shards
        if rows and slots:
          slots = min(slots, GIVEN["rollout.batch"])
          return dict(
              place=place,
              mesh=dict(data=1, fsdp=shards, tensor=tensor),
              remat=remat,
              token_budget=rows * LENGTH,
              slots=slots,
          )
  return None


def opened(model: str, kind: str, row: dict, compiles: bool, **fields):
  """Config and model of the row, with abstract devices or the topology's."""
  c, cfg = config_of(
      model,
      kind,
      model__remat=row["remat"],
      updates__token_budget=row["token_budget"],
      rollout__slots=row["slots"],
      **{f"mesh__{name}": size for name, size in row["mesh"].items()},
      **fields,
  )
  mesh = sharding.abstract_mesh(**row["mesh"])
  if compiles:
    devices = topologies.get_topology_desc(
        platform="tpu", topology_name=f"{kind}:{row['place']}"
    ).devices
    mesh, _ = device_mesh.make_meshes(**c.mesh, devices=devices)
  value = critic_config(c, cfg)
  size = memory_formula.estimate(c, cfg, value, mesh)
  return c, Model(cfg, value, mesh), size


def timed(compile_it: Callable[[], dict]) -> dict:
  """Bytes of programs and the time that it took, or what libtpu refused."""
  start, cpu = time.monotonic(), time.process_time()
  try:
    out = compile_it()
  except jax.errors.JaxRuntimeError as e:  # more than the device has
    found = re.search(r"Used \S+ of \S+ hbm|temporaries .*\)", str(e))
    out = dict(error=found[0] if found else str(e)[:300])
  seconds, cpu = time.monotonic() - start, time.process_time() - cpu
  return out | dict(seconds=round(seconds), cpu_seconds=round(cpu))


def update(c, model: Model, size: memory_formula.Size) -> dict:
  """Compiles an update; its peak with all resident arrays."""
  program, _ = compiled_memory.update(c, model, Display(False))
  return dict(
      peak=compiled_memory.peak(program) + size.resident["initial parameters"],
      collectives=collectives.largest(program.as_text()),
  )


def rollout(c, model: Model, size: memory_formula.Size) -> dict:
  """Compiles the sampler; its peak with all resident arrays."""
  resident = sum(size.resident.values())
  if not size.rollout["weights of the sampler"]:
    resident -= size.resident[
        "parameters"
    ]  # the sampler reads them as they are
  peak = compiled_memory.sampler_peak(list(compiled_memory.rollout(c, model)))
  return dict(peak=resident + peak)


def page(result: dict) -> list[str]:
  """Returns the table in Markdown."""
  g = GIVEN
  about = [
      "Which is the smallest slice of each kind of accelerator on which a step"
      " of DAPO fits, by the formulas of `--stage=size`, at"
      f" {MARGIN:.0%} of the memory? Nothing was run. Rows of"
      f" {g['rollout.max_prompt']} + {g['rollout.max_tokens']}"
      f" tokens, {g['rollout.batch']} responses a step in"
      f" {g['updates.minibatches']} minibatches, AdamW with fp32 parameters"
      " and moments, bfloat16 products. Qwen2.5, and Llama 3.1 for 70B.",
      "",
      "mesh: fsdp x tensor. Tokens: `updates.token_budget`, of a device; at"
      f" most {ROWS} rows. Slots: of all devices; at most {SLOTS} for each of"
      " fsdp. Peaks of update and rollout in GiB per device, by formula /"
      " compiled ahead of time for the topology, with all that the run holds"
      " beside. A dash: not compiled; on GPUs nothing can be. Collectives:"
      " those of an update that move most, as calls x bytes of the result on a"
      " device; a loop over micro-batches counts once. Compile: CPU seconds of"
      " update and sampler.",
  ]
  out = [
      "| model | slice | mesh | remat | tokens | slots | update | rollout"
      " | collectives | compile |",
      "|---|---|---|---|---|---|---|---|---|---|",
  ]
  for name, row in result["rows"].items():
    model, kind = name.split(" ")
    if row is None:
      none = f"none of {KINDS[kind][1][-1]} fits"
      out.append(results.row(model, kind, none))
      continue
    mesh = row["mesh"]
    done = [row.get(phase, {}) for phase in ("update", "rollout")]
    peaks = [
        f"{row[phase + '_formula'] / GIB:.1f} / {peak_of(found)}"
        for phase, found in zip(("update", "rollout"), done, strict=True)
    ]
    sent = ", ".join(
        f"{x['kind']} {x['calls']} x {x['bytes'] / 2**20:.0f} MiB"
        for x in done[0].get("collectives", ())
    )
    seconds = " + ".join(str(x["cpu_seconds"]) for x in done if x)
    cells = [model, f"{kind} {row['place']}"]
    cells += [f"{mesh['fsdp']} x {mesh['tensor']}", row["remat"]]
    cells += [row["token_budget"], row["slots"], *peaks]
    cells += [sent or "-", seconds or "-"]
    out.append(results.row(*cells))
  tpus = [x for name, x in result["rows"].items() if x and "H" not in name]
  done = sum("update" in row for row in tpus)
  made = [f"{x} {result[x]}" for x in ("jax", "libtpu") if x in result]
  count = f"Of the {len(tpus)} rows of TPUs {done} were compiled so far"
  out += ["", f"{count}."]
  commits: dict[str, list[str]] = {}
  for name, row in result["rows"].items():
    for phase in "update", "rollout":
      if commit := (row or {}).get(phase, {}).get("commit"):
        commits.setdefault(commit, []).append(f"{name} {phase}")
  return results.document(
      "Which slice trains which model",
      _finding(result["rows"]),
      about,
      out,
      made="Made by `python -m bench.memory.slices`.",
      versions=[
          f"{', '.join(made)}." if made else "Nothing is compiled.",
          "",
          *(f"- Commit {k}: {', '.join(x)}." for k, x in commits.items()),
      ],
  )


def _finding(rows: dict) -> str:
  """The smallest slices of each model."""
  words: dict[str, list[str]] = {}
  for name, row in rows.items():
    model, kind = name.split(" ")
    fits = words.setdefault(model, [])
    if row:
      fits.append(f"{kind} {row['place']}")
  found = (f"{k} on {results.joined(x, 'or')}" for k, x in words.items())
  return f"The smallest slices train {'; '.join(found)}."


def peak_of(found: dict) -> str:
  """GiB of what was compiled, or why there is none."""
  if "peak" in found:
    return f"{found['peak'] / GIB:.1f}"
  return found.get("error", "-")


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--only", default="", help="words of a row: 32B,v5p")
  parser.add_argument("--again", action="store_true", help="rows of --only")
  parser.add_argument("--formula", action="store_true", help="compile nothing")


def measure(given) -> dict:
  """Makes the rows that are missing, each of which is kept at once."""
  result = results.read("slices") or dict(rows={})
  aot.without_tpu()
  commit = results.commit()  # before results change
  rows = result["rows"]
  names = [f"{model} {kind}" for model in MODELS for kind in KINDS]
  only = [x for x in names if all(word in x for word in given.only.split(","))]
  for name in names:  # all formulas first: they take seconds
    if name not in rows or (given.again and name in only):
      model, kind = name.split(" ")
      rows[name] = choose(model, kind)
      if row := rows[name]:
        *_, size = opened(model, kind, row, compiles=False)
        row["update_formula"] = size.update_peak
        row["rollout_formula"] = size.rollout_peak
  results.write("slices", result, page(result))
  for name in only:
    model, kind = name.split(" ")
    if given.formula or kind in GPUS or not rows[name]:
      continue
    for phase in (update, rollout):
      if phase.__name__ not in rows[name]:
        parts = opened(model, kind, rows[name], compiles=True)
        found = timed(functools.partial(phase, *parts))
        found["commit"] = commit
        rows[name][phase.__name__] = found
        print(name, phase.__name__, found, flush=True)
        result |= dict(
            jax=jax.__version__,
            libtpu=metadata.version("libtpu"),
        )
        results.write("slices", result, page(result))
  return result


if __name__ == "__main__":
  results.main(__doc__, "slices", measure, page, flags=flags)
