"""The hardware that guides recommend by model size, against the formulas.

  python -m bench.memory.hardware           # seconds; nothing runs
  python -m bench.memory.hardware --table   # the page alone, from the data

For each recipe of the package, with a model of the size, the smallest number of
devices on which it fits by the formulas of `--stage=size`, the memory of the
hosts, the disk and the traffic. Writes results/hardware.{json,md}.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

from bench import results
from rl_reason.base import errors
from rl_reason.checks import config_checks, config_facts, machine_checks
from rl_reason.devices import axes, sharding
from rl_reason.lab import (
    disk_formula,
    fewest_devices,
    memory_formula,
    model_shapes,
    traffic_formula,
)
from rl_reason.models import decoder
from rl_reason.stages.model import attention_backend, critic_config

GIB, GB = 1 << 30, 10**9
MARGIN = 0.9  # of a device, for what the formulas do not count


class Guide(NamedTuple):
  """What the guides name for a size.

  Attributes:
    size: of the models.
    devices: number of GPUs.
    kind: of GPU.
    gib: memory of a GPU.
    host: GB of memory of all hosts.
    disk: GB of storage.
    runs: recipes and models, '' for the recipe's own.
  """

  size: str
  devices: int
  kind: str
  gib: int
  host: int
  disk: int
  runs: tuple[tuple[str, str], ...]


SEVEN, THIRTY = "recipes/dapo_math_7b", "paper/dapo"
LLAMA = "meta-llama/Llama-3.1-70B"
GUIDES = (
    Guide("7-8B", 4, "A100", 40, 256, 5000, ((SEVEN, ""), ("paper/grpo", ""))),
    Guide(
        "13-32B",
        8,
        "GPUs",
        80,
        512,
        10_000,
        (
            (SEVEN, "Qwen/Qwen2.5-14B"),
            (SEVEN, "Qwen/Qwen2.5-32B"),
            (THIRTY, ""),
            ("paper/vapo", ""),
        ),
    ),
    Guide(
        "70B+",
        16,
        "H100",
        80,
        1000,
        20_000,
        ((SEVEN, LLAMA), (THIRTY, LLAMA), ("paper/vapo", LLAMA)),
    ),
)
# Fields that differ from the recipe; all but the first also have rows and slots
# that are set for each mesh. All but LoRA change numbers by rounding alone.
SETTINGS = {
    "as it is": {},
    "least": {"model.remat": "full", "optimizer.offload": True},
    "LoRA": {"model.remat": "full", "lora.rank": 32},
}
ENOUGH = {"least": "enough with the least memory", "LoRA": "enough with LoRA"}


def configured(path: str, model: str, settings: str):
  """The config of a run, the shape of its model and that of its critic."""
  given = {"model.path": model} if model else {}
  given |= {"mesh.data": 1, "mesh.fsdp": -1, "mesh.tensor": 1}
  c, _ = config_checks.checked(path, given | SETTINGS[settings])
  backend, _ = attention_backend(c, "gpu")
  cfg = dataclasses.replace(model_shapes.shape(c), attention=backend)
  return c, cfg, critic_config(c, cfg)


def fits(path: str, model: str, gib: float, settings: str) -> dict:
  """The smallest number of devices, and what a run needs there.

  Args:
    path: of the recipe.
    model: in place of the recipe's; '' for its own.
    gib: memory of a device.
    settings: of SETTINGS; with the first only the mesh differs from the recipe.

  Returns:
    devices, mesh, GiB of a device, bytes of hosts, disk and traffic; no entry
    `devices` if the run fits on none.
  """
  c, cfg, value = configured(path, model, settings)
  host, disk = disk_formula.estimate(c, cfg, value)
  table = decoder.table(cfg)
  files = memory_formula.bytes_of(table, sharding.abstract_mesh(), 2)
  out = dict(host=sum(host.values()), disk=sum(disk.values()) + files)
  for count, mesh in _meshes(c, settings):
    size = memory_formula.estimate(c, cfg, value, mesh)
    if size.peak <= MARGIN * gib * GIB:
      sent = traffic_formula.estimate(c, cfg, value, mesh)
      used = {k: n for k, n in mesh.shape.items() if n > 1}
      sizes = dict(peak=size.peak, traffic=sum(sent.values()))
      return out | dict(devices=count, mesh=axes.text(used), **sizes)
  return out


def _meshes(c, settings: str) -> Iterator:
  """Numbers of devices, each with the meshes that split its batches."""
  for count, parts in fewest_devices.meshes(c):
    c.mesh.update(parts)
    mesh = sharding.abstract_mesh(**config_facts.mesh_sizes(c, count))
    if SETTINGS[settings]:  # a row for each shard
      shards = sharding.num_shards(mesh, "batch")
      c.updates.token_budget = config_facts.row_slots(c)
      c.rollout.slots = c.evaluate.batch = shards
    try:
      machine_checks.devices(c, count)
    except errors.ConfigError:
      continue
    yield count, mesh


def measure(given) -> dict:
  """All rows."""
  del given
  rows = []
  for guide in GUIDES:
    for path, model in guide.runs:
      c, _, _ = configured(path, model, "as it is")
      found = {name: fits(path, model, guide.gib, name) for name in SETTINGS}
      name = c.model.path.split("/")[-1]
      rows.append(dict(size=guide.size, recipe=path, model=name, **found))
  return dict(rows=rows)


def verdict(need: float, has: float) -> str:
  """Too little, enough, or too much: half of it would do."""
  if need > has:
    return "too little"
  return "too much" if 2 * need <= has else "enough"


def judged(row: dict) -> dict[str, str]:
  """The verdict on devices, host memory and disk of a row.

  Host memory and disk are of the settings with which the run fits on the
  guide's devices; if none fits, of the recipe as it is.
  """
  guide = next(x for x in GUIDES if x.size == row["size"])
  most = math.inf
  plain = row["as it is"]
  needs = plain.get("devices", most)
  of_devices, used = verdict(needs, guide.devices), plain
  for name, words in ENOUGH.items():
    enough = row[name].get("devices", most) <= guide.devices
    if of_devices == "too little" and enough:
      of_devices, used = words, row[name]
  return {
      "devices": of_devices,
      "host": verdict(used["host"] / GB, guide.host),
      "disk": verdict(used["disk"] / GB, guide.disk),
  }


def page(result: dict) -> list[str]:
  """Returns the table in Markdown."""
  rows, rank = result["rows"], SETTINGS["LoRA"]["lora.rank"]
  guides = [
      "| size | GPUs | host memory | storage |",
      "|---|---|---|---|",
  ]
  for x in GUIDES:
    gpus = f"{x.devices} x {x.kind} of {x.gib} GB"
    guides.append(
        results.row(x.size, gpus, f"{x.host:,} GB", f"{x.disk / 1000:g} TB")
    )
  out = [
      "| size | recipe | model | devices, as it is | devices, least memory"
      " | devices, LoRA | host GB | disk GB | traffic GiB | devices"
      " | host memory | disk |",
      "|---|---|---|---|---|---|---|---|---|---|---|---|",
  ]
  for row in rows:
    found = [row[name] for name in SETTINGS]
    cells = [row["size"], f"`configs/{row['recipe']}.py`", row["model"]]
    cells += map(_devices, found)
    cells.append("; ".join(f"{x['host'] / GB:,.0f}" for x in found))
    cells.append("; ".join(f"{x['disk'] / GB:,.0f}" for x in found))
    cells.append("; ".join(map(_traffic, found)))
    out.append(results.row(*cells, *judged(row).values()))
  return results.document(
      "Hardware that guides name",
      _finding(rows),
      "Is the hardware that guides to RL of reasoning models name enough for"
      " this package? By the formulas of [`--stage=size`](../docs/memory.md);"
      " nothing was run.",
      "The guides' table:",
      guides,
      "The recipes of the package, with models of these sizes. Devices: the"
      " smallest number, in powers of two, of the guides' memory, of which a"
      f" run may take {MARGIN:.0%}, with its mesh. As it is: only the mesh"
      ' differs from the recipe. Least memory: `model.remat` "full",'
      " `optimizer.offload`, one packed row and one slot at a time for each"
      " shard; the numbers of the run differ by rounding alone, and it is"
      f" slower. LoRA: the same with `lora.rank` {rank} in place of"
      " offload. Host memory: the copy of the state while a"
      " checkpoint is written, and with offload the moments; without Python,"
      " rows and verifiers. Disk: the checkpoints that are kept, one that is"
      " being written, and the files of the model in bfloat16. Traffic: what a"
      " device sends in a step of RL on these devices if all responses are of"
      " maximal length, without activations. These three columns have one"
      " number for each of the three settings.",
      "The last columns judge what the guides name: too little; enough, where"
      " it says so only with other settings; too much, if half of it would do"
      " as the recipe is. Host memory and disk are judged with the settings"
      " that fit on the guides' devices, and as the recipe is if none does.",
      out,
      made="Made by `python -m bench.memory.hardware`.",
  )


def _devices(found: dict) -> str:
  if "devices" not in found:
    return f"none up to {fewest_devices.MOST}"
  mesh = f" ({found['mesh']})" if found["mesh"] else ""
  return f"{found['devices']}{mesh}"


def _traffic(found: dict) -> str:
  if "traffic" not in found:
    return "-"
  return f"{found['traffic'] / GIB:,.0f}"


def _finding(rows: list[dict]) -> str:
  """How often the guides' devices are enough, and for what."""
  found = [(row, judged(row)) for row in rows]

  def those(*verdicts: str) -> list[dict]:
    return [row for row, x in found if x["devices"] in verdicts]

  plain = those("enough", "too much")
  least, lora = (those(x) for x in ENOUGH.values())
  little = those("too little")
  disk = sum(x["disk"] == "too much" for _, x in found)
  host = sum(x["host"] == "too little" for _, x in found)
  return (
      f"Of {len(rows)} recipes the guides' devices hold"
      f" {len(plain) or 'none'} as they are{_named(plain)}, {len(least)} with"
      " the least"
      f" memory{_named(least)}, {len(lora)} only with LoRA{_named(lora)}, and"
      f" {len(little)} not at all{_named(little)}; the memory of the hosts is"
      f" too little for {host}, and the disk at least twice what {disk} need."
  )


def _named(rows: list[dict]) -> str:
  names = [f"{x['model']} of {x['recipe']}" for x in rows]
  return f" ({results.joined(names)})" if names else ""


if __name__ == "__main__":
  results.main(__doc__, "hardware", measure, page)
