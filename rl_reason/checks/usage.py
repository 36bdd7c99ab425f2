"""What `--help` shows: flags, stages, presets."""

import difflib
import pathlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from absl import flags

import rl_reason
from rl_reason.base import feature
from rl_reason.checks import presets

# Stage of `main.STAGES` -> what it does.
STAGES: Mapping[str, str] = {
    "all": "the default: SFT, if the config has steps of it, RL, evaluations"
    " before and after, and a report",
    "sft": "SFT alone",
    "value": "SFT, and the pretraining of a critic",
    **{name: x.about for name, x in feature.stages().items()},
    "prepare": "reads and checks the rows of data files; trains nothing",
    "evaluate": "evaluates checkpoints of a run, or other models",
    "export": "writes a checkpoint for transformers and vLLM",
    "generate": "samples responses to training prompts, and writes them",
    "replay": "repeats one step of RL, and compares it with the run",
    "serve": "serves a checkpoint over HTTP, with the API of OpenAI",
    "size": "the memory that a run needs",
    "report": "writes the report of a run again, or compares several runs",
}
# What users call a stage.
_OTHER_NAMES = {
    "train": "all",
    "rl": "all",
    "run": "all",
    "eval": "evaluate",
    "test": "evaluate",
    "validate": "evaluate",
    "data": "prepare",
    "sample": "generate",
    "infer": "generate",
    "inference": "generate",
    "predict": "generate",
    "save": "export",
    "convert": "export",
    "push": "export",
    "memory": "size",
    "plot": "report",
    "compare": "report",
    "finetune": "sft",
    **{
        other: name
        for name, x in feature.stages().items()
        for other in x.other_names
    },
}
_HELP = ("-h", "--h", "-help", "--help", "--helpfull", "--helpshort", "help")
_VERSION = ("-v", "-V", "-version", "--version", "version")
_PAGE = """\
RL of reasoning language models: SFT, RL, evaluation before and after, a report.

  rl_reason --config=dapo:smoke                 every stage within seconds
  rl_reason --config=dapo --config.seed=1       a preset, with another field
  rl_reason --config=my_run.py --workdir=DIR    a config of your own
  rl_reason --stage=evaluate --workdir=DIR      a stage of a run that is there
  rl_reason --config=dapo --stage=size          the memory that a run needs

Flags:
{flags}

--config.FIELD=VALUE sets a field of the config. base.py and variants.py have
all fields, with their defaults and bounds, in {folder}.
docs/start.md explains how to begin. Several seeds or values of a field:
python -m rl_reason.lab.sweep --help.

{stages}

{presets}

Exit status: 0 done; 1 an error, or nothing was learned; 2 a mistake in the
config or the command line; 130 ended by a second Ctrl-C; 143 stopped by a
signal, and 175 another process was lost: the same command resumes the run."""


def asked(argv: Sequence[str], known: flags.FlagValues) -> str:
  """The text that a command line asks for instead of a run; '' if it does not.

  Args:
    argv: the name of the program, then the arguments.
    known: the flags of the command line.
  """
  words = argv[1:]
  text = " ".join(words)
  if set(_VERSION) & {*words[:1], *(x for x in words if x[0:1] == "-")}:
    return f"rl_reason {rl_reason.__version__}"
  for name, shown in (("stage", _stages), ("config", _presets)):
    for mark in ("=", " "):
      if f"--{name}{mark}help" in text:
        return shown()
  if set(_HELP) & {*words[:1], *(x for x in words if x[0:1] == "-")}:
    return _page(known)
  return ""


def _page(known: flags.FlagValues) -> str:
  own = [x for x in known if known[x].name == x and not _of_absl(known, x)]
  # absl puts the values of a choice before its text.
  values = {f"--{x}": known[x].help.rpartition(">: ")[2] for x in own}
  shown = _table(values)
  return _PAGE.format(
      flags="\n".join(shown),
      folder=presets.FOLDER,
      stages=_stages(),
      presets=_presets(),
  )


def _of_absl(known: flags.FlagValues, name: str) -> bool:
  return str(known.find_module_defining_flag(name)).startswith("absl")


def _stages() -> str:
  lines = _table(STAGES)
  return "\n".join(["Stages (--stage=NAME):", *lines])


def _presets() -> str:
  return "\n".join(["Presets (--config=NAME):", *_table(presets.described())])


def _table(rows: Mapping[str, str]) -> Iterator[str]:
  """Names and texts in two columns."""
  width = max(map(len, rows)) + 4
  for name, text in rows.items():
    yield textwrap.fill(
        text,
        86,
        initial_indent=f"  {name}".ljust(width),
        subsequent_indent=" " * width,
    )


def no_such_stage(name: str) -> str:
  """The error of a stage that does not exist: what each stage does."""
  known = {x: x for x in STAGES} | _OTHER_NAMES
  near = difflib.get_close_matches(name.lower(), known, 1)
  hint = f"did you mean {known[near[0]]}? There are" if near else "there are"
  each = "; ".join(f"{x} ({text})" for x, text in STAGES.items())
  return f"--stage = {name!r}: there is no such stage; {hint} {each}"


def meant_by(word: str) -> str:
  """The flag that a word without a flag stands for; '' if none is known."""
  name = word.lower()
  if name in STAGES or name in _OTHER_NAMES:
    return f"--stage={_OTHER_NAMES.get(name, name)}"
  file, _, _ = word.partition(":")
  if pathlib.Path(file).suffix in (".py", ".yaml", ".yml", ".json", ".toml"):
    return f"--config={word}"
  return f"--config={word}" if file in presets.described() else ""
