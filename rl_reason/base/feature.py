"""The protocol of features: what a folder of `rl_reason/features/` may bring.

The core is what GRPO, DAPO, Dr.GRPO, RLOO, PPO and VAPO need. Everything else
is a feature: a folder with a `Declaration` named FEATURE in its `__init__.py`,
which is imported without JAX, and a `Part` of RL, which a run has if its config
asks for it. Each method does nothing by default, and holds for all features of
the table, `rl_reason/features/__init__.py`, in its order.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rl_reason import features
from rl_reason.base.function_kinds import Kind

Rule = tuple[str, str]  # a field, and the remedy
# (step, weights, on_dispatch) -> rows, metrics, counts; see `rl.train`.
Collect = Callable[..., tuple[Any, dict[str, Any], dict[str, Any]]]


class Loop(NamedTuple):
  """What `rl.train` has before its loop.

  Attributes:
    signal: step -> which groups of rows have signal; see `fill_batch`.
    logps: (params, rollouts) -> log-probs of the trainer, [B, T].
    collector: of the batches; a `collect.RolloutCollector`.
    session: what the run has opened; a `stages.Session`.
    frozen: parameters that the policy reads beside learned ones; None without.
  """

  signal: Any
  logps: Any
  collector: Any
  session: Any
  frozen: Any = None


class Part:
  """The part of a feature in the loop of `rl.train`; it holds its own state."""

  def collecting(self, collect: Collect, samples: Any) -> Collect:
    """Wraps the function that collects batches; `samples` is their log."""
    return collect

  def begin(self, state: Any) -> None:
    """May change the state of step 0, which a saved one replaces."""

  def older(self) -> Any:
    """Groups of earlier steps that the next batch begins with, or None."""
    return None

  def exchange(self, rows: Any, step: int) -> dict[str, float]:
    """Sees a batch with its old log-probs; returns metrics."""
    return {}

  def inputs(self, params: Any) -> dict[str, Any]:
    """Arrays for functions that name them; `params` are of the policy."""
    return {}

  def beside(self) -> Any:
    """Rows of this step for `Declaration.gradient`, or None."""
    return None

  def after(self, state: Any, rows: Any, credit: dict, entropy_BT: Any) -> None:
    """Sees a step whose update is dispatched; may move `state.coefs`."""

  def evaluated(self, values: Any, step: int) -> dict[str, float]:
    """Sees the metrics of an evaluation; returns further ones."""
    return {}

  def arrays(self) -> dict[str, Any]:
    """Its arrays in a checkpoint, by name, on the host."""
    return {}

  def host(self) -> dict[str, Any]:
    """All else of it in a checkpoint, by name, as JSON."""
    return {}

  def restore(self, arrays: dict[str, Any], host: dict[str, Any]) -> None:
    """Goes on from what was saved."""

  def wait(self) -> None:
    """Waits for its threads: the sampler is then free for an evaluation."""

  def close(self) -> None:
    """Ends its threads."""


class Stage(NamedTuple):
  """A stage of --stage that trains after SFT, from the policy of SFT.

  It has the name of the section of its fields, and of its checkpoints.

  Attributes:
    run: 'module:function' of the config, a `session.Session` and the parameters
      of SFT; returns parameters.
    about: what it does, for --help.
    rate: the field of its learning rate.
    policy: whether it returns a policy, which --step names as the stage, and no
      other network.
    rows: the config -> numbers of rows that the devices that learn share
      evenly, by field.
    other_names: what users call it.
  """

  run: str
  about: str
  rate: str
  policy: bool = False
  rows: Callable[[Any], dict[str, int]] = lambda c: {}
  other_names: tuple[str, ...] = ()


class Evaluating(NamedTuple):
  """What --stage=evaluate has before its first checkpoint.

  Attributes:
    row_source: the rows of the task by purpose.
    tok: the tokenizer.
    display: the screen.
  """

  row_source: Any
  tok: Any
  display: Any


class Evaluator:
  """The part of a feature in --stage=evaluate; see `stages.evaluate`."""

  def sets(self) -> dict[str, list[tuple[Any, Any]]]:
    """Further sets: their rows, each with the row whose problem it has."""
    return {}

  def sampling(self, row: Any) -> dict[str, Any]:
    """Fields with which the set of a row is sampled, in place of its own."""
    return {}

  def metrics(
      self, found: Any, sets: Any, earlier: Sequence[Any]
  ) -> dict[str, float]:
    """Further metrics of a checkpoint, which it may show.

    `found` is its `evaluate.Evaluation`, `sets` are the responses, and
    `earlier` the evaluations of the same command before it.
    """
    return {}

  def end(self, found: Sequence[Any]) -> None:
    """Sees all evaluations of a command, in their order."""


class _Evaluators(Evaluator):
  """The parts of all features, as one."""

  def __init__(self, parts: Iterable[Evaluator]):
    self._parts = [*parts]

  def sets(self) -> dict[str, list[tuple[Any, Any]]]:
    return _joined(part.sets() for part in self._parts)

  def sampling(self, row: Any) -> dict[str, Any]:
    return _joined(part.sampling(row) for part in self._parts)

  def metrics(self, *args: Any) -> dict[str, float]:
    return _joined(part.metrics(*args) for part in self._parts)

  def end(self, found: Sequence[Any]) -> None:
    for part in self._parts:
      part.end(found)


class _Parts(Part):
  """The parts of all features of a run, as one.

  Args:
    parts: in the order of the table.
  """

  def __init__(self, parts: Iterable[Part] = ()):
    self._parts = [*parts]

  def collecting(self, collect: Collect, samples: Any) -> Collect:
    for part in self._parts:
      collect = part.collecting(collect, samples)
    return collect

  def begin(self, state: Any) -> None:
    for part in self._parts:
      part.begin(state)

  def older(self) -> Any:
    return _first(part.older() for part in self._parts)

  def beside(self) -> Any:
    return _first(part.beside() for part in self._parts)

  def exchange(self, rows: Any, step: int) -> dict[str, float]:
    return _joined(part.exchange(rows, step) for part in self._parts)

  def inputs(self, params: Any) -> dict[str, Any]:
    return _joined(part.inputs(params) for part in self._parts)

  def after(self, *args: Any) -> None:
    for part in self._parts:
      part.after(*args)

  def evaluated(self, values: Any, step: int) -> dict[str, float]:
    return _joined(part.evaluated(values, step) for part in self._parts)

  def arrays(self) -> dict[str, Any]:
    return _joined(part.arrays() for part in self._parts)

  def host(self) -> dict[str, Any]:
    return _joined(part.host() for part in self._parts)

  def restore(self, arrays: dict[str, Any], host: dict[str, Any]) -> None:
    for part in self._parts:
      part.restore(arrays, host)

  def wait(self) -> None:
    for part in self._parts:
      part.wait()

  def close(self) -> None:
    for part in self._parts:
      part.close()


def _first(found: Iterable[Any]) -> Any:
  return next((x for x in found if x is not None), None)


def _joined(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
  return {name: x for one in found for name, x in one.items()}


class Declaration:
  """What a config, its checks and its reports know of a feature.

  Attributes:
    kinds: further kinds of functions that a config names.
    functions: kind of functions -> further modules of them.
    inputs: kind of functions -> what its part supplies to them, by name.
    tasks: further built-in tasks, by name -> 'module:name'.
    needs: what its fields may need, by name -> a function of the config that
      says why it is missing, or something false; see `relations.FACTS`.
    code: fields that name code, as task.name does -> names that are none.
    machine: its fields of the machine, which change no number of a run.
    sampled: its fields, by prefix, that decide which responses are sampled, and
      how they are rewarded.
    elsewhere: its fields that an evaluation may have other values of.
    movable: its paths, which may change where their content is equal.
    progress: fields -> whether steps with a value of them depend on the number
      of all steps, which a resumed run can then not change.
    one_process: fields that are off in a run of several processes -> the
      reason.
    not_replayed: fields that --stage=replay cannot change -> the reason.
    sources: fields with sources of rows, as data.train; files are movable.
    measures: metrics `val-aux/SET/NAME` in the units of the set's score, by
      NAME -> their name in the report, and what they mean.
    shown: fields -> what the report says of their value, if it is set.
    other_names: names of other libraries -> its fields.
    remedies: names of alerts -> what its fields may do about them.
    stages: further stages that train, by name.
    smoke: fields -> their largest values in FILE:smoke.
    free: its fields, which a run may resume with other values of.
    readers: fields with a text of a form of its own -> what reads the text of a
      config, and a field without a fault that this needs, or ''; see
      `text_rules.READERS`.
    less_memory: fields by which a run needs less memory.
    policy_fields: beginnings of fields that a run must share with the run whose
      policy it continues.
    published: fields whose text a model card may have.
    evaluated: fields -> their value where a model is only evaluated.
  """

  kinds: Mapping[str, Kind] = {}
  functions: Mapping[str, tuple[str, ...]] = {}
  inputs: Mapping[str, tuple[str, ...]] = {}
  tasks: Mapping[str, str] = {}
  needs: Mapping[str, Any] = {}
  code: Mapping[str, tuple[str, ...]] = {}
  machine: tuple[str, ...] = ()
  sampled: tuple[str, ...] = ()
  elsewhere: tuple[str, ...] = ()
  movable: tuple[str, ...] = ()
  progress: Mapping[str, Callable[[Any], bool]] = {}
  one_process: Mapping[str, str] = {}
  not_replayed: Mapping[str, str] = {}
  sources: tuple[str, ...] = ()
  measures: Mapping[str, tuple[str, str]] = {}
  shown: Mapping[str, str] = {}
  other_names: Mapping[str, str] = {}
  remedies: Mapping[str, str] = {}
  stages: Mapping[str, Stage] = {}
  smoke: Mapping[str, float] = {}
  free: tuple[str, ...] = ()
  readers: Mapping[str, tuple[Callable[[Any], Any], str]] = {}
  less_memory: tuple[str, ...] = ()
  policy_fields: tuple[str, ...] = ()
  published: tuple[str, ...] = ()
  evaluated: Mapping[str, Any] = {}

  def used(self, c: Any) -> bool:
    """Whether a config asks for it."""
    return False

  def fields(self, c: Any) -> None:
    """Adds its fields to a config."""

  def rules(self, c: Any) -> Iterable[Rule]:
    """What cannot work."""
    return ()

  def rules_of_model(self, c: Any) -> Iterable[Rule]:
    """What cannot work with the model, whose shape `c.model` has by now."""
    return ()

  def without(self, c: Any) -> Iterable[Rule]:
    """What cannot work in a config that does not ask for it."""
    return ()

  def cautions(self, c: Any) -> Iterable[Rule]:
    """What works, but probably not as intended."""
    return ()

  def files(self, c: Any) -> Iterable[Rule]:
    """Local files that are missing."""
    return ()

  def devices(
      self, c: Any, count: int, sizes: Mapping[str, int]
  ) -> Iterable[Rule]:
    """What the devices of a run cannot do; `sizes` are of the mesh's axes."""
    return ()

  def samplers(self, c: Any) -> int:
    """Devices that only sample, the last ones."""
    return 0

  def lag(self, c: Any) -> int:
    """RL steps, at most, from the policy that samples a batch to its update."""
    return 0

  def content(self, name: str, value: str) -> str | None:
    """What stands for the content of a movable path; None: all its files."""
    return None

  def evaluates_all(self, c: Any) -> bool:
    """Whether each evaluation has the held-out sets, and not the last alone."""
    return False

  def older_policies(self, c: Any) -> list[str]:
    """Fields above 0 by which updates see rows of an older policy."""
    return []

  def judge(self, c: Any) -> str:
    """Who plays and rewards responses in place of a verifier; '' for nobody.

    Prompts may then be messages of a chat, `outcome` gives the rewards, `play`
    the verdicts of an evaluation, and all its responses decode together.
    """
    return ""

  def outcome(self, c: Any) -> Any:
    """The function of kind `outcome` in place of reward.outcome, or None."""
    return None

  def terms(self, c: Any) -> tuple[Any, ...]:
    """Its terms of the loss; see `objective.Term`."""
    return ()

  def stop_strings(self, c: Any) -> tuple[str, ...]:
    """Texts that end what the policy writes, in place of rollout.stop_strings.

    Asked of all features: code that a config names may be gone.
    """
    return ()

  def early_logps(self, c: Any) -> bool:
    """Whether it reads log-probs or their entropy before the update."""
    return False

  def passes(self, c: Any) -> float:
    """Further forward passes over as many rows as a batch has, for FLOPs."""
    return 0

  def of_model(self, fields: Mapping[str, Any], *, short: bool) -> str:
    """What it makes of the model by a flat config; `short` for a model card."""
    return ""

  def axes(self, c: Any) -> dict[str, int]:
    """Sizes of the axes of its inputs, by the letters of their names."""
    return {}

  def coefs(self, c: Any) -> set[str]:
    """Coefficients of the loss that its part moves."""
    return set()

  def older_rows(self, c: Any) -> int:
    """Rows of a batch that are of earlier steps: a round samples fewer."""
    return 0

  def imitates(self, c: Any) -> bool:
    """Whether it learns from responses of rows, as SFT does."""
    return False

  def not_generated(self, c: Any) -> dict[str, str]:
    """Fields with which --stage=generate cannot sample -> the reason."""
    return {}

  def unreplayed(self, c: Any) -> dict[str, str]:
    """Fields with which no step can be replayed -> the reason."""
    return {}

  def reduction(self, c: Any, reduction: Any) -> Any:
    """The loss aggregation, in place of that of the core."""
    return reduction

  def adjustment(self, c: Any) -> Any:
    """A function that changes advantages, after they are whitened, or None.

    It is called with the arrays of credit that its parameters name and with
    advantages_BT, and returns [B, T].
    """
    return None

  def learns(self, c: Any) -> Any:
    """A `learned_parameters.Learned` in place of all parameters, or None."""
    return None

  def gradient(self, c: Any, cfg: Any) -> Any:
    """A gradient of `Part.beside`, which `rl_update` adds to that of RL.

    `cfg` is the shape of the policy; None: there is no such gradient.
    """
    return None

  def abstract_rows(self, c: Any, packed: Any, by_row: Any) -> Any:
    """The shapes of `Part.beside`, by functions of `compile_ahead`."""
    return None

  def scale(self, c: Any, term: Any) -> Any:
    """What scales the scores of a reward model in training, or None.

    `term` is of the reward; `reward_runner.Rewards` says what this is.
    """
    return None

  def sizes(self, c: Any) -> Callable[..., Any] | None:
    """How many responses each prompt gets, or None: equally many.

    A function of `expected_accuracy_N`, `expected_length_N` and
    `num_responses`, by name, which returns integers [N].
    """
    return None

  def reads_types(self, c: Any) -> str:
    """The field by which it reads the types of problems, or ''."""
    return ""

  def drawn(self, c: Any) -> Any:
    """What decides which prompts are drawn again; see `PromptStream`."""
    return None

  def open(self, c: Any, session: Any) -> Any:
    """What a run needs of it, in `Session.opened`, with `close`; or None."""
    return None

  def collector(
      self, c: Any, session: Any, engine: Any, purpose: str
  ) -> tuple[type, dict[str, Any]] | None:
    """A class in place of `RolloutCollector`, and its further options.

    `purpose` names the randomness of the stage, whose `engine` samples.
    """
    return None

  def play(
      self, c: Any, session: Any, rows: Any, ids: Any, sizes_N: Any
  ) -> Any:
    """Plays a round of an evaluation, in place of the verifier; or None.

    Its `prompts` are the texts that the policy reads, `stream` gets a function
    that samples (see `sampler.stream`), and then `texts` and `correct_B` are
    the responses and their verdicts. `numbers` are further numbers of each
    response, by name, [B], and `by_level` names those whose means are of
    interest by difficulty.
    """
    return None

  def padding(self, c: Any, rows: int) -> Any:
    """`Experience.turns` of rows of padding, or None."""
    return None

  def demonstration(
      self, task: Any, row: Any, response: Any, rng: Any
  ) -> tuple[str, list[str]] | None:
    """A demonstration that is no text: its prompt, and the texts of a response.

    The texts are the policy's and others in turn. Asked of all features.
    """
    return None

  def encoder(self, session: Any) -> Callable[[str], list[int]] | None:
    """Encodes the other texts of `demonstration`; None: as the policy's."""
    return None

  def shared(self, c: Any) -> dict[str, int]:
    """Numbers of groups that the devices share evenly, by field."""
    return {}

  def learned(self, c: Any) -> dict[str, int]:
    """Numbers of rows that the devices that learn share evenly, by field."""
    return {}

  def notes(self, lines: list[dict[str, Any]], f: dict[str, Any]) -> list[str]:
    """What the report says above all else.

    `lines` are those of metrics.jsonl, `f` is the flat config of the run, in
    which an earlier version may lack its fields.
    """
    return []

  def arrays(self, c: Any) -> dict[str, Any]:
    """The arrays of its part at step 0."""
    return {}

  def start(self, c: Any, loop: Loop) -> Part:
    """Its part of a run."""
    return Part()

  def evaluator(self, c: Any, stage: Evaluating) -> Evaluator:
    """Its part of --stage=evaluate, also where no field asks for it."""
    return Evaluator()

  def policies(
      self,
      first: tuple[Any, Any, str],
      workdirs: Sequence[Any],
      given: Mapping[str, Any],
      say: Callable[[str], None],
  ) -> list[tuple[Any, Any, str]]:
    """What --stage=evaluate evaluates after the first policy.

    A policy is a config, a work directory and the names of checkpoints.

    Args:
      first: the first policy.
      workdirs: further work directories of the command.
      given: full names of overridden fields -> their values.
      say: shows a line.

    Raises:
      ConfigError: one of the policies cannot be evaluated.
    """
    return []


def stages() -> dict[str, Stage]:
  """The stages that features bring, by name."""
  return _joined({**one.stages} for one in features.declared())


def of_all(attribute: str) -> tuple[str, ...]:
  """The names that all features have in an attribute, such as 'machine'."""
  return tuple(x for y in features.declared() for x in getattr(y, attribute))


def used(c: Any) -> list[Declaration]:
  """The features that a config asks for."""
  return [one for one in features.declared() if one.used(c)]


def sizes(c: Any) -> Callable[..., Any] | None:
  """`Declaration.sizes` of the first feature that has one, or None."""
  return _first(one.sizes(c) for one in used(c))


def drawn(c: Any) -> Any:
  """`Declaration.drawn` of the first feature that has one, or None."""
  return _first(one.drawn(c) for one in used(c))


def scale(c: Any, term: Any) -> Any:
  """`Declaration.scale` of the first feature that has one, or None."""
  return _first(one.scale(c, term) for one in used(c))


def opened(c: Any, session: Any) -> dict[Declaration, Any]:
  """What the features of a run have opened, by their declarations."""
  found = {one: one.open(c, session) for one in used(c)}
  return {one: x for one, x in found.items() if x is not None}


def code() -> dict[str, tuple[str, ...]]:
  """Fields of features that name code -> names that are none."""
  return _joined(dict(one.code) for one in features.declared())


def play(c: Any, *args: Any) -> Any:
  """Plays a round of an evaluation; None: the verifier judges responses."""
  return _first(one.play(c, *args) for one in used(c))


def encoder(c: Any, session: Any) -> Callable[[str], list[int]] | None:
  """Encodes texts of demonstrations that are not the policy's, or None."""
  return _first(one.encoder(session) for one in used(c))


def padding(c: Any, rows: int) -> Any:
  """`Experience.turns` of rows of padding, or None."""
  return _first(one.padding(c, rows) for one in used(c))


def judge(c: Any) -> str:
  """Who judges and rewards responses in place of a verifier; '' for nobody."""
  return _first(one.judge(c) or None for one in used(c)) or ""


def start(c: Any, loop: Loop) -> Part:
  """The parts of the features that a config asks for, as one."""
  return _Parts(one.start(c, loop) for one in used(c))


def evaluator(c: Any, stage: Evaluating) -> Evaluator:
  """The parts of all features in --stage=evaluate, as one."""
  return _Evaluators(one.evaluator(c, stage) for one in features.declared())
