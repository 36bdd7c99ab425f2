"""Memory with context parallelism: responses of 20k tokens, a 32B model.

  pip install 'jax[tpu]'       # libtpu; no TPU
  python -m studies.sequence.run     # continues: rows that are missing
  python -m studies.sequence.run --table

Compiles the update of DAPO ahead of time for 64 chips of v5p, without and with
`mesh.sequence`; the parameters are split over all chips in each mesh. Weights
are shapes only, and nothing runs. Writes sequence.{json,md} after each row.
"""

import functools
from importlib import metadata

import jax

from bench import results
from bench.memory import aot, slices

KIND, PLACE = "v5p", "4x4x4"
PROMPT, LENGTH = 1024, 20480
MESHES = [
    dict(fsdp=32, sequence=1, tensor=2),
    dict(fsdp=8, sequence=4, tensor=2),
]


def compiled(mesh: dict[str, int]) -> dict:
  """Compiles the update on a mesh; bytes per device."""
  row = dict(
      place=PLACE,
      mesh=dict(data=1, **mesh),
      remat="full",
      token_budget=LENGTH,
      slots=0,
  )
  c, model, size = slices.opened(
      "32B",
      KIND,
      row,
      compiles=True,
      rollout__max_prompt=PROMPT,
      rollout__max_tokens=LENGTH - PROMPT,
  )
  found = slices.timed(functools.partial(slices.update, c, model, size))
  return dict(
      mesh=mesh,
      attention=model.cfg.attention,
      formula=size.update_peak,
      held=sum(size.resident.values()),
      **found,
  )


def page(result: dict) -> list[str]:
  """Returns the table in Markdown."""
  about = (
      "How much memory does `mesh.sequence` save for long rows? An update of"
      " Qwen2.5-32B in"
      f" packed rows of {PROMPT} + {LENGTH - PROMPT} tokens, one for each data"
      f" x fsdp, compiled ahead of time for {KIND} {PLACE}; nothing was run."
      " AdamW with fp32 parameters and moments, bfloat16 products, full"
      " rematerialization. GiB per device: peak of the update with all that the"
      " run holds beside, by formula / compiled; of it what is not parameters"
      " and moments, compiled. Collectives as in"
      " [slices.md](../../results/slices.md)."
  )
  out = [
      "| fsdp x sequence x tensor | attention | peak | of it activations,"
      " gradients | collectives | compile, CPU s |",
      "|---|---|---|---|---|---|",
  ]
  words = []
  for x in result["rows"]:
    rest = (x["peak"] - x["held"]) / slices.GIB if "peak" in x else None
    sent = ", ".join(
        f"{y['kind']} {y['calls']} x {y['bytes'] / 2**20:.0f} MiB"
        for y in x.get("collectives", ())
    )
    cells = [" x ".join(map(str, x["mesh"].values())), x["attention"]]
    cells += [f"{x['formula'] / slices.GIB:.1f} / {slices.peak_of(x)}"]
    cells += [f"{rest:.1f}" if rest else "-", sent or "-", x["cpu_seconds"]]
    out.append(results.row(*cells))
    words.append(
        f"{slices.peak_of(x)} GiB per device with fsdp x sequence x tensor"
        f" {cells[0]}"
    )
  made = [f"{x} {result[x]}" for x in ("jax", "libtpu", "commit")]
  made += filter(None, [result.get("note")])
  return results.document(
      "Context parallelism: 20k tokens of a 32B model",
      f"Compiled, the update peaks at {results.joined(words)}.",
      about,
      out,
      made="Made by `python -m studies.sequence.run`.",
      versions=[f"Versions: {'; '.join(made)}."],
  )


def measure(_) -> dict:
  """Compiles the rows that are missing, each of which is kept at once."""
  result = results.read("sequence") or dict(rows=[])
  aot.without_tpu()
  done = [x["mesh"] for x in result["rows"]]
  for mesh in MESHES:
    if mesh not in done:
      result["rows"].append(compiled(mesh))
      print(result["rows"][-1], flush=True)
      result |= dict(
          jax=jax.__version__,
          libtpu=metadata.version("libtpu"),
          commit=results.commit(),
      )
      results.write_data("sequence", result)
  return result


if __name__ == "__main__":
  results.main(__doc__, "sequence", measure, page)
