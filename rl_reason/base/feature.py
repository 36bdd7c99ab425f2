"""The protocol of features: what a folder of `rl_reason/features/` may bring.

The core is what GRPO, DAPO, Dr.GRPO, RLOO, PPO and VAPO need. Everything else
is a feature: a folder with a `Declaration` named FEATURE in its `__init__.py`,
which is imported without JAX, and a `Part` of RL, which a run has if its config
asks for it. Each method does nothing by default, and holds for all features of
the table, `rl_reason/features/__init__.py`, in its order.
"""

import functools
import operator
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
    values: plan -> values of the critic that RL starts from, [B, T].
    first: the parameters of step 0, as the model reads them.
  """

  signal: Any
  logps: Any
  collector: Any
  session: Any
  frozen: Any = None
  values: Any = None
  first: Any = None


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

  def inputs(self, params: Any, plan: Any) -> dict[str, Any]:
    """Arrays for functions that name them.

    `params` are of the policy, and `plan` packs the rows of the step.
    """
    return {}

  def planning(self, plan_rows: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps (rollouts, step) -> how the rows of a step are packed."""
    return plan_rows

  def reference(self, logps: Callable[..., Any]) -> Callable[..., Any] | None:
    """(plan, parameters of the step, its number) -> log-probs, [B, T].

    They are those of the reference of a KL; None: it is the policy of step 0.
    `logps` is `build_step.logps` of the policy.
    """
    return None

  def beside(self) -> dict[str, Any]:
    """Entries of `beside` of `step.rl_update`; see `Declaration.update`."""
    return {}

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


class Recorder(NamedTuple):
  """What the sampler records of each token, as `structs.Rollouts.record`.

  Attributes:
    record: (what `decoder.forward` says of tokens, shape of the model, shape of
      the tokens) -> arrays with these axes first.
    no_record: (shape of the model, shape of the tokens) -> an empty record, on
      the host.
  """

  record: Callable[..., Any]
  no_record: Callable[..., Any]


class Stage(NamedTuple):
  """A stage of --stage that trains after SFT, from the policy of SFT.

  It has the name of the section of its fields, and of its checkpoints.

  Attributes:
    run: 'module:function' of the config, a `session.Session` and the parameters
      of SFT; returns parameters.
    about: what it does, for --help.
    rate: the field of its learning rate.
    policy: whether it returns a policy, which --step names as the stage, and no
      other network. It may then delete the parameters of SFT.
    steps: the field of its number of steps, if the stage is off where that is
      0. Elsewhere, if its result is a policy, --stage=all and --stage=value
      train it after SFT, and begin with its policy.
    rows: the config -> numbers of rows that the devices that learn share
      evenly, by field.
    other_names: what users call it.
  """

  run: str
  about: str
  rate: str
  policy: bool = False
  steps: str = ""
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


class Player:
  """Plays and rewards responses, in place of a verifier.

  Prompts may then be messages of a chat, and all responses of an evaluation
  decode together.

  Attributes:
    name: who does it, for messages.
  """

  name: str

  @property
  def outcome(self) -> Callable[..., Any]:
    """The function of kind `outcome` in place of reward.outcome."""
    raise NotImplementedError

  def play(self, session: Any, rows: Any, ids: Any, sizes_N: Any) -> Any:
    """Plays a round of an evaluation.

    Its `prompts` are the texts that the policy reads, `stream` gets a function
    that samples (see `sampler.stream`), and then `texts` and `correct_B` are
    the responses and their verdicts. `numbers` are further numbers of each
    response, by name, [B], and `by_level` names those whose means are of
    interest by difficulty.
    """

  def padding(self, rows: int) -> Any:
    """`Experience.turns` of rows of padding."""

  def encoder(self, session: Any) -> Callable[[str], list[int]] | None:
    """Encodes the texts of a demonstration that are not the policy's.

    None: as those of the policy.
    """


class _Together:
  """The parts of features as one, in the order of the table.

  Each method calls that of all parts, and returns what they return: dicts as
  one dict, and of other values the first that is not None.

  Args:
    none: what a run without features has.
    parts: of the features.
  """

  def __init__(self, none: Any, parts: Iterable[Any]):
    self._parts = [none, *parts]

  def __getattr__(self, method: str) -> Callable[..., Any]:
    return lambda *args: _joined(
        [getattr(part, method)(*args) for part in self._parts]
    )

  def collecting(self, collect: Collect, samples: Any) -> Collect:
    """Wraps what the parts before have wrapped."""
    for part in self._parts:
      collect = part.collecting(collect, samples)
    return collect

  def planning(self, plan_rows: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps what the parts before have wrapped."""
    for part in self._parts:
      plan_rows = part.planning(plan_rows)
    return plan_rows


def _joined(found: Iterable[Any]) -> Any:
  known = [x for x in found if x is not None]
  if known and all(isinstance(x, dict) for x in known):
    return {name: x for one in known for name, x in one.items()}
  return known[0] if known else None


class Declaration:
  """What a config, its checks and its reports know of a feature.

  Attributes:
    kinds: further kinds of functions that a config names.
    functions: kind of functions -> further modules of them.
    inputs: kind of functions -> what it supplies to them, by name; 'loss.terms'
      are functions of the user.
    tasks: further built-in tasks, by name -> 'module:name'.
    needs: what its fields may need, by name -> a function of the config that
      says why it is missing, or something false; see `relations.FACTS`.
    measures: metrics `val-aux/SET/NAME` in the units of the set's score, by
      NAME -> their name in the report, and what they mean.
    remedies: names of alerts -> what its fields may do about them.
    stages: further stages that train, by name.
    marks: what is known of its fields, by the marks of `field_marks`.
  """

  kinds: Mapping[str, Kind] = {}
  functions: Mapping[str, tuple[str, ...]] = {}
  inputs: Mapping[str, tuple[str, ...]] = {}
  tasks: Mapping[str, str] = {}
  needs: Mapping[str, Any] = {}
  measures: Mapping[str, tuple[str, str]] = {}
  remedies: Mapping[str, str] = {}
  stages: Mapping[str, Stage] = {}
  marks: Mapping[str, Mapping[str, Any] | tuple[str, ...]] = {}

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

  def files(self, c: Any, tok: Any, trains: bool) -> Iterable[Rule]:
    """Local files that are missing.

    `tok` is the tokenizer, or None if it is on the hub or of the task. It has
    no fault, nor has the model, in a stage that `trains`.
    """
    return ()

  def prompts(self, c: Any) -> dict[str, int]:
    """Tokens of the longest prompts of other models in training, by field."""
    return {}

  def devices(
      self, c: Any, count: int, sizes: Mapping[str, int]
  ) -> Iterable[Rule]:
    """What the devices of a run cannot do; `sizes` are of the mesh's axes."""
    return ()

  def player(self, c: Any) -> Player | None:
    """Who plays and rewards responses in place of a verifier, or None."""
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

  def models(self, c: Any, cfg: Any) -> dict[str, tuple[Any, float]]:
    """Further models of a run, by what they are; `cfg` is of the policy.

    Each is its shape, and its forward passes over a batch.
    """
    return {}

  def of_model(self, fields: Mapping[str, Any], *, short: bool) -> str:
    """What it makes of the model by a flat config; `short` for a model card."""
    return ""

  def axes(self, c: Any) -> dict[str, int]:
    """Sizes of the axes of its inputs, by the letters of their names."""
    return {}

  def coefs(self, c: Any) -> set[str]:
    """Coefficients of the loss that its part moves."""
    return set()

  def advantage(self, c: Any, advantage: Any) -> Any:
    """The advantage function, in place of that of the core.

    It is called with the arrays of credit that its parameters name, and with
    all of them, `rows`.
    """
    return advantage

  def reduction(self, c: Any, reduction: Any) -> Any:
    """The loss aggregation, in place of that of the core."""
    return reduction

  def adjustment(self, c: Any) -> Any:
    """A function that changes advantages, after they are whitened, or None.

    It is called with the arrays of credit that its parameters name and with
    advantages_BT, and returns [B, T].
    """
    return None

  def recorder(self, c: Any) -> Recorder | None:
    """What the sampler records of tokens, or None: nothing."""
    return None

  def learns(self, c: Any) -> Any:
    """A `learned_parameters.Learned` in place of all parameters, or None."""
    return None

  def update(self, c: Any, cfg: Any) -> dict[str, Any]:
    """Static arguments of `step.rl_update`; `cfg` is of the policy."""
    return {}

  def abstract(self, c: Any, shapes: Any) -> dict[str, Any]:
    """The shapes of `Part.beside`, and `packed_M` if rows are packed otherwise.

    `shapes` are `compile_ahead.Shapes`.
    """
    return {}

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

  def demonstration(
      self, task: Any, row: Any, response: Any, rng: Any
  ) -> tuple[str, list[str]] | None:
    """A demonstration that is no text: its prompt, and the texts of a response.

    The texts are the policy's and others in turn. Asked of all features.
    """
    return None

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
  return _joined([{}, *({**one.stages} for one in features.declared())])


def marked(mark: str, c: Any = None) -> dict[str, Any]:
  """The fields of a mark with their values, or True, of all features.

  Args:
    mark: of `field_marks.MARKS`.
    c: only of the features that this config asks for.
  """
  found: dict[str, Any] = {}
  for one in features.declared() if c is None else used(c):
    fields = one.marks.get(mark, ())
    if isinstance(fields, Mapping):
      found |= fields
    else:
      found |= dict.fromkeys(fields, True)
  return found


def _at(c: Any, name: str) -> Any:
  return functools.reduce(operator.getitem, name.split("."), c)


def set_fields(c: Any, mark: str) -> dict[str, Any]:
  """The fields of a mark that a config sets, with what it sets them to."""
  found = {name: _at(c, name) for name in marked(mark)}
  return {name: value for name, value in found.items() if value}


def said(c: Any, mark: str) -> dict[str, Any]:
  """What a mark says of the fields that a config sets, unless it is nothing.

  A function is called with the value of its field.
  """
  says = marked(mark)
  found = {
      name: says[name](value) if callable(says[name]) else says[name]
      for name, value in set_fields(c, mark).items()
  }
  return {name: x for name, x in found.items() if x}


def before_rl(c: Any) -> list[str]:
  """Stages of features by which a config changes the policy before RL."""
  known = {k: x.steps for k, x in stages().items() if x.policy and x.steps}
  return [name for name, field in known.items() if _at(c, field)]


def used(c: Any) -> list[Declaration]:
  """The features that a config asks for."""
  return [one for one in features.declared() if one.used(c)]


def first(c: Any, hook: str, *args: Any) -> Any:
  """What the first feature of a config has for a hook, or None."""
  found = (getattr(one, hook)(c, *args) for one in used(c))
  return next((x for x in found if x is not None), None)


def opened(c: Any, session: Any) -> dict[Declaration, Any]:
  """What the features of a run have opened, by their declarations."""
  found = {one: one.open(c, session) for one in used(c)}
  return {one: x for one, x in found.items() if x is not None}


def judge(c: Any) -> str:
  """Who judges and rewards responses in place of a verifier; '' for nobody."""
  player = first(c, "player")
  return player.name if player else ""


def start(c: Any, loop: Loop) -> Any:
  """The parts of the features that a config asks for, as one `Part`."""
  return _Together(Part(), (one.start(c, loop) for one in used(c)))


def evaluator(c: Any, stage: Evaluating) -> Any:
  """The parts of all features in --stage=evaluate, as one `Evaluator`."""
  parts = (one.evaluator(c, stage) for one in features.declared())
  return _Together(Evaluator(), parts)
