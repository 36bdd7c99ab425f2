"""Memory of a large model on TPUs, compiled ahead of time without a TPU.

  pip install 'jax[tpu]'
  python -m bench.memory.aot --topology v5p:2x2x1
  python -m bench.memory.aot --table                             # from JSON

Compiles an RL update and one chunk of decoding for Qwen2.5-1.5B at several
depths, and analyzes the compiled programs: memory, kernels, copies of the
cache. Needs libtpu, but no TPU. Writes results/aot.{json,md}. Nothing runs, so
the result says nothing about speed.
"""

import dataclasses
import functools
import math
import os
import re
import time
from importlib import metadata

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from bench import results
from rl_reason.algorithms import objective, reductions, surrogates
from rl_reason.base.structs import Packed, Prompts
from rl_reason.devices import device_mesh, sharding
from rl_reason.models import decoder, parameters
from rl_reason.rollout import decode_loop, sampler
from rl_reason.stages.compile_ahead import abstract_batch
from rl_reason.training import optimizer, step

CFG = decoder.ModelConfig(
    vocab=151_936,
    layers=28,
    width=1536,
    heads=12,
    kv_heads=2,
    head_dim=128,
    mlp=8960,
    rope_theta=1e6,
    qkv_bias=True,
    dtype="bfloat16",
    remat="full",
    attention="tpu",
)
DEPTHS = (4, 14, 28)
SPLIT = 2, 2  # minibatches, micro-batches of each
ROWS, LENGTH = 16, 4096  # packed rows of a micro-batch, tokens of each
PROMPTS, GROUP, PROMPT, RESPONSE, SLOTS = 64, 16, 1024, 7168, 256
LIBTPU = dict(  # libtpu then does not query the metadata of a cloud VM
    TPU_SKIP_MDS_QUERY="1",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_ACCELERATOR_TYPE="",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
)


def struct(mesh, shape, dtype, *axes) -> jax.ShapeDtypeStruct:
  """Returns an abstract array on a mesh."""
  where = sharding.sharding(mesh, *axes)
  return jax.ShapeDtypeStruct(shape, dtype, sharding=where)


def train(
    cfg: decoder.ModelConfig, devices, *, offload: bool
) -> jax.stages.Lowered:
  """Lowers an RL update with sharded rows and parameters."""
  mesh = device_mesh.make_mesh(1, -1, cfg.kv_heads, devices)
  tx = optimizer.make_optimizer(
      lr=1e-6,
      schedule="constant",
      warmup=0,
      total=1,
      b1=0.9,
      b2=0.999,
      eps=1e-8,
      weight_decay=0.1,
      clip_norm=1.0,
      offload=offload,
  )
  table = decoder.table(cfg)
  where = optimizer.state_shardings(table, tx, mesh)

  def rows(dtype, *length):
    more = (None,) * len(length)
    shape = SPLIT[0], SPLIT[1] * ROWS, *length
    return struct(mesh, shape, dtype, None, "batch", *more)

  shape = *SPLIT, ROWS, LENGTH
  tokens = struct(mesh, shape, jnp.int32, None, None, "batch", None)
  source = rows(jnp.int32, LENGTH - 512)
  batch = abstract_batch(rows, LENGTH - 512)
  coef = struct(mesh, (), jnp.float32)
  update = functools.partial(
      step.rl_update,
      cfg=cfg,
      tx=tx,
      temperature=1.0,
      objective=objective.Objective(surrogates.ppo, reductions.token_mean),
  )
  state = optimizer.abstract_state(table, tx, where)
  with jax.set_mesh(mesh):
    fn = jax.jit(update, donate_argnums=0, out_shardings=(where, None))
    packed = Packed(tokens, tokens, tokens, source)
    return fn.lower(state, batch, packed, dict(kl=coef, entropy=coef))


def decode(
    cfg: decoder.ModelConfig, devices
) -> tuple[jax.stages.Lowered, tuple]:
  """Lowers a chunk of decoding; returns the cache's shape on a device, too."""
  mesh = device_mesh.make_mesh(-1, 1, cfg.kv_heads, devices)
  engine = sampler.Sampler(cfg, GROUP, RESPONSE, eos=1, pad=0, slots=SLOTS)
  table = decoder.table(cfg)
  params = parameters.abstract(table, parameters.shardings(table, mesh))
  prompts = Prompts(
      tokens_NP=struct(mesh, (PROMPTS, PROMPT), jnp.int32, "batch", None),
      start_N=struct(mesh, (PROMPTS,), jnp.int32, "batch"),
      ids_N=struct(mesh, (PROMPTS,), jnp.int32, "batch"),
  )
  key = jax.eval_shape(lambda: jax.random.key(0))
  with jax.set_mesh(mesh):
    start = sampler.program(engine, "start", None).lower(
        params, prompts, key, 1.0, None, RESPONSE, 0.0
    )
    compiled = start.compile()
    queue, slots = jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        start.out_info,
        compiled.output_shardings,
    )
    lowered = sampler.program(engine, "decode", None).lower(
        params, queue, slots
    )
  v = slots.cache.v
  return lowered, v.sharding.shard_shape(v.shape)


def copies(text: str, shape: tuple[int, ...]) -> list[str]:
  """Returns the instructions that copy an entire array of this shape."""
  kind = re.escape("bf16[" + ",".join(map(str, shape)) + "]")
  found = re.findall(rf"^.*= \(?{kind}\S* .*copy\S*\(.*$", text, re.MULTILINE)
  return [line.strip()[:200] for line in found]


def compiled(
    name: str, lowered: jax.stages.Lowered, layers: int, cache: tuple[int, ...]
) -> dict:
  """Compiles a program and returns its properties."""
  start, cpu = time.monotonic(), time.process_time()
  program = lowered.compile()
  seconds, cpu = time.monotonic() - start, time.process_time() - cpu
  memory = program.memory_analysis()
  text = program.as_text()
  return dict(
      program=name,
      layers=layers,
      seconds=round(seconds, 1),
      cpu_seconds=round(cpu, 1),
      lines=text.count("\n"),
      kernels=len(re.findall(r'custom_call_target="tpu_custom_call"', text)),
      arguments=memory.argument_size_in_bytes,
      temporary=memory.temp_size_in_bytes,
      outputs=memory.output_size_in_bytes,
      aliased=memory.alias_size_in_bytes,
      host=memory.host_argument_size_in_bytes,
      cache=4 * math.prod(cache) if cache else 0,  # keys and values in bfloat16
      cache_in_program=",".join(map(str, cache)) in text if cache else None,
      cache_copies=copies(text, cache) if cache else [],
  )


def page(result: dict) -> list[str]:
  """Returns the table in Markdown."""
  about = [
      "Do the programs of a larger model fit, and does decoding update its"
      " cache"
      f" in place? Qwen2.5-1.5B for {result['devices']} chips of kind"
      f" {result['kind']}, jax {result['jax']}, libtpu {result['libtpu']}."
      " Without a TPU: nothing ran, so there are no speeds.",
      "",
      f"train: an RL update of {SPLIT[0]} minibatches of {SPLIT[1]}"
      f" micro-batches of {ROWS} packed rows of {LENGTH} tokens, AdamW, fp32"
      " parameters and moments, full rematerialization, sharded over fsdp and"
      " tensor. offload: with `optimizer.offload`."
      f" decode: a chunk of {decode_loop.CHUNK * decode_loop.BURST} steps of"
      f" {SLOTS} slots of {PROMPT + RESPONSE} tokens, sharded over data and"
      " tensor. Sizes are GiB per device; peak: arguments, temporary buffers,"
      " and outputs that alias no argument; host: arguments in host memory, per"
      " device. `copies`: instructions that copy an entire cache.",
  ]
  out = [
      "| program | layers | compile, CPU s | lines | kernels | arguments"
      " | cache | temporary | peak | host | copies |",
      "|---|---|---|---|---|---|---|---|---|---|---|",
  ]
  deepest, words = max(x["layers"] for x in result["programs"]), []
  for x in result["programs"]:
    peak = x["arguments"] + x["temporary"] + x["outputs"] - x["aliased"]
    if x["layers"] == deepest:
      words.append(f"{peak / 2**30:.2f} GiB ({x['program']})")
    sizes = x["arguments"], x["cache"], x["temporary"], peak, x["host"]
    gib = [f"{size / 2**30:.2f}" for size in sizes]
    count = len(x["cache_copies"]) if x["cache_in_program"] else "-"
    cells = [x["program"], x["layers"], x["cpu_seconds"], x["lines"]]
    cells += [x["kernels"], *gib, count]
    out.append(results.row(*cells))
  copied = sum(len(x["cache_copies"]) for x in result["programs"])
  return results.document(
      "Compiled ahead of time for TPU",
      f"With {deepest} layers the peak of a device is"
      f" {results.joined(words)}; the programs copy an entire cache {copied}"
      " times.",
      about,
      out,
      made="Made by `python -m bench.memory.aot --topology"
      f" {result['topology']}`.",
      versions=[f"Commit {result['commit']}."],
  )


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--topology", default="v5p:2x2x1")


def without_tpu() -> None:
  """Lets this machine compile for TPUs, while programs run on its CPU."""
  jax.config.update("jax_platforms", "cpu")
  os.environ.update(LIBTPU)


def measure(given) -> dict:
  """Compiles all programs."""
  without_tpu()
  devices = topologies.get_topology_desc(
      platform="tpu", topology_name=given.topology
  ).devices
  programs = []
  for layers in DEPTHS:
    cfg = dataclasses.replace(CFG, layers=layers)
    for name, offload in (("train", False), ("train, offload", True)):
      lowered = train(cfg, devices, offload=offload)
      programs.append(compiled(name, lowered, layers, ()))
      print(programs[-1], flush=True)
    lowered, cache = decode(cfg, devices)
    programs.append(compiled("decode", lowered, layers, cache))
    print(programs[-1], flush=True)
  return dict(
      topology=given.topology,
      devices=len(devices),
      kind=devices[0].device_kind,
      jax=jax.__version__,
      libtpu=metadata.version("libtpu"),
      commit=results.commit(),
      programs=programs,
  )


if __name__ == "__main__":
  results.main(__doc__, "aot", measure, page, flags=flags)
