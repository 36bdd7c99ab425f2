"""Pipeline parallelism, compared with fsdp x tensor: bubbles and memory.

  python -m studies.pipeline.run

Formulas only, from the shapes of the models: writes pipeline.{json,md}.
A minibatch of TOKENS tokens is split into micro-batches of MICRO tokens for
each shard. A pipeline of S stages with M micro-batches waits
(S - 1) / (M + S - 1) of the time (1F1B and GPipe alike), and its last stage has
the output matrix besides its layers. Fully sharded parameters are gathered
instead: twice in bfloat16, for forward and backward pass, and gradients are
scattered in fp32.
"""

from bench import results
from bench.memory import slices
from rl_reason.devices import sharding
from rl_reason.lab import memory_formula
from rl_reason.models import decoder
from rl_reason.stages.model import critic_config

TOKENS = 512 * 4096  # of a minibatch: DAPO's 512 responses
MICRO = 8192  # of a micro-batch and a shard
TENSOR = 4
USED = 0.5  # of the peak of a device's products
# Peak of bfloat16 products, and bytes a second that a device sends, and as many
# that it receives: data sheets. An H100 has NVLink in its host, and 400 Gbit/s
# beyond.
NETWORKS = {
    "v5p, within a slice": (459e12, 600e9),
    "v5p, between slices": (459e12, 6.25e9),
    "v6e, within a slice": (918e12, 400e9),
    "H100, within a host": (989e12, 450e9),
    "H100, between hosts": (989e12, 50e9),
}


def gathering(flops: float, bandwidth: float, tokens: int = MICRO) -> float:
  """Time of fsdp's traffic over time of products, if nothing overlaps.

  Of P parameters a device gathers 2 x 2 bytes and scatters 4 for each
  micro-batch, and computes 8 operations (forward, backward, recomputation) for
  each of its tokens: P cancels, and so does tensor parallelism.
  """
  return 8 / bandwidth / (8 * tokens / (USED * flops))


def pipeline(params: int, head: int, layers: int, devices: int, stages: int):
  """Micro-batches, and the shares of time lost to bubble and last stage.

  Args:
    params: of the model.
    head: of the output matrix.
    layers: of the model.
    devices: stages x fsdp x TENSOR.
    stages: of the pipeline.
  """
  micro = TOKENS * stages * TENSOR // (MICRO * devices)
  bubble = (stages - 1) / (micro + stages - 1)
  extra = head / ((params - 2 * head) / layers)  # in layers
  uneven = extra / (layers / stages + extra)
  return dict(
      micro=micro,
      bubble=bubble,
      uneven=uneven,
      idle=1 - (1 - bubble) * (1 - uneven),
  )


def memory(c, cfg, devices: int, stages: int) -> float:
  """GiB per device of an update; stages hold their layers only.

  The first stage of a pipeline keeps the activations of as many micro-batches
  as there are stages, each of layers / stages: the same as without.
  """
  shards = devices // TENSOR
  mesh = sharding.abstract_mesh(fsdp=shards, tensor=TENSOR)
  size = memory_formula.estimate(
      c, cfg, critic_config(c, cfg), mesh, token_budget=MICRO
  )
  gathered = memory_formula.bytes_of(
      decoder.table(cfg), mesh, memory_formula.itemsize(cfg), gathered=True
  )
  return (size.update_peak - gathered * (1 - 1 / stages)) / 2**30


def rows() -> list[dict]:
  """One row for each model, number of devices and number of stages."""
  out = []
  for model in ("32B", "70B"):
    c, cfg = slices.config_of(model, "v5p", model__remat="full")
    one = sharding.abstract_mesh()
    params = memory_formula.bytes_of(decoder.table(cfg), one, 1)
    for devices in (64, 128, 256):
      for stages in (1, 4, 8):
        found = pipeline(
            params, cfg.vocab * cfg.width, cfg.layers, devices, stages
        )
        if stages == 1:
          found |= dict(uneven=0.0, idle=0.0)
        gib = memory(c, cfg, devices, stages)
        out.append(
            dict(model=model, devices=devices, stages=stages, gib=gib, **found)
        )
  return out


def page(result: dict) -> list[str]:
  """Returns the tables in Markdown."""
  about = (
      "What would pipeline stages gain and cost? Nothing was run. A minibatch"
      f" of {TOKENS:,} tokens, micro-batches of {MICRO:,} for each shard,"
      f" tensor {TENSOR}, fsdp the remaining devices of a stage. Bubble:"
      " (S - 1) / (M + S - 1). Last stage: what the others wait for its output"
      " matrix. GiB per device of an update, with full rematerialization; one"
      " stage is today's program."
  )
  out = [
      "| model | devices | stages | micro-batches | bubble | last stage | idle"
      " | GiB |",
      "|---|---|---|---|---|---|---|---|",
  ]
  for x in result["rows"]:
    shares = (f"{x[name]:.1%}" for name in ("bubble", "uneven", "idle"))
    cells = [x["model"], x["devices"], x["stages"], x["micro"], *shares]
    out.append(results.row(*cells, f"{x['gib']:.1f}"))
  out += [
      "",
      "Traffic of fsdp, as a share of the time of products at"
      f" {USED:.0%} of their peak, if none of it overlaps with them; any model,"
      " any number of devices:",
      "",
      f"| network | {MICRO:,} tokens | {4 * MICRO:,} tokens |",
      "|---|---|---|",
  ]
  for name, of in NETWORKS.items():
    few, many = gathering(*of), gathering(*of, 4 * MICRO)
    out.append(f"| {name} | {few:.1%} | {many:.1%} |")
  words = []
  for model in dict.fromkeys(x["model"] for x in result["rows"]):
    of_model = [x for x in result["rows"] if x["model"] == model]
    whole = {x["devices"]: x["gib"] for x in of_model if x["stages"] == 1}
    idle = [x["idle"] for x in of_model if x["stages"] > 1]
    saved = [
        1 - x["gib"] / whole[x["devices"]] for x in of_model if x["stages"] > 1
    ]
    words.append(
        f"{min(idle):.0%} to {max(idle):.0%} of the time for"
        f" {min(saved):.0%} to {max(saved):.0%} less memory ({model})"
    )
  return results.document(
      "Pipeline parallelism compared with fsdp x tensor, by formula",
      f"With pipeline stages devices are idle {results.joined(words)}.",
      about,
      out,
      made="Made by `python -m studies.pipeline.run`.",
      versions=[f"Commit {result['commit']}."],
  )


def measure(_) -> dict:
  """Computes the rows."""
  return dict(commit=results.commit(), rows=rows())


if __name__ == "__main__":
  results.main(__doc__, "pipeline", measure, page)
