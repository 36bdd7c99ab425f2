"""Thoughts of reasoning models: in rows, in prompts, and around tool calls."""

# ruff: noqa: F811  (pytest finds fixtures by their names)

import json

import numpy as np
import pytest
from tiny_data import (  # noqa: F401  (fixtures)
    byte_tokenizer,
    make,
    report,
    rows,
    run,
    tok_dir,
    verifier,
)

from rl_reason import tasks
from rl_reason.data import preparation_report, screening
from rl_reason.features.environments import tools
from rl_reason.verifiers import code_blocks, final_answer, thoughts

# --- texts -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("no thought", "no thought"),
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),  # the prompt opens it
        ("a<think>b", "a"),  # cut short
        ("<think>a</think>b<think>c</think>d", "bd"),
        ("a</think>b<think>c</think>d", "bd"),
        ("a</think>b<think>c", "b"),
        ("<think>\na\n</think>\n\nb\nc", "\n\nb\nc"),
        ("", ""),
        # Tags within a thought, and more that close than that open.
        ("<think>a<think>b</think>c</think>d", "d"),
        ("<think>a</think>b</think>c", "c"),
        ("a<think>b</think>c</think>d", "ad"),
        ("a</think>b</think>c<think>d", "c"),
        # Other tags.
        ("[THINK]a[/THINK]b", "b"),
        ("a[/THINK]b[THINK]c", "b"),
        ("[think]a[/think]b", "[think]a[/think]b"),
        ("<seed:think>a</seed:think>b", "b"),
        ("<thinking>a</thinking >b", "b"),
        ("<Thought>a</Thought>b", "b"),
        ("<reasoning>a</reasoning><answer>b</answer>", "<answer>b</answer>"),
        ("\u25c1think\u25b7a\u25c1/think\u25b7b", "b"),
        ("<|START_THINKING|>a<|END_THINKING|>b", "b"),
        ("<|begin_of_thought|>a<|end_of_thought|>b", "b"),
        ("<|channel>thought\na<channel|>b", "b"),
        ("<unused94>thought\na<unused95>b", "b"),
        # Harmony, with and without the header of the first message.
        *[
            (f"{start}a<|end|><|start|>assistant{final}b", "b")
            for final in ["<|channel|>final<|message|>"]
            for start in ("<|channel|>analysis<|message|>", "")
        ],
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant"
            "<|channel|>commentary to=functions.f<|message|>{}",
            "",
        ),
    ],
)
def test_the_text_outside_of_thoughts(text, rest):
  assert thoughts.outside(text) == rest


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>\\boxed{3}</think>\\boxed{4}", "4"),
        ("<think>\\boxed{3}</think>I cannot tell; " + "so " * 99, None),
        ("\\boxed{3}</think>I cannot tell; " + "so " * 99, None),
        ("<think>a</think>\\boxed{4}<think>or \\boxed{3}", "4"),
        ("<think>\\boxed{3}[/THINK]</think>4", "4"),
        ("[THINK]\\boxed{3}[/THINK]4", "4"),
        ("<thinking>\\boxed{3}</thinking>4", "4"),
        (
            "<|channel|>analysis<|message|>\\boxed{3}<|end|><|start|>assistant"
            "<|channel|>final<|message|>4",
            "4",
        ),
        ("<answer>4</answer><reasoning>2+2, not 3</reasoning>", "4"),
        ("<think>it is \\boxed{3}", "3"),  # cut short
    ],
)
def test_an_answer_within_a_thought_does_not_count(text, answer):
  assert final_answer.final(text) == answer


BLOCK = "\n```python\nx = %d\n```\n"


@pytest.mark.parametrize(
    "text",
    [
        f"<think>{BLOCK % 3}</think>{BLOCK % 4}",
        f"{BLOCK % 3}[/THINK]{BLOCK % 4}",
        f"{BLOCK % 4}<thinking>or{BLOCK % 3}</thinking>",
        f"<think>a</think>{BLOCK % 4}<think>or{BLOCK % 3}",
    ],
)
def test_a_program_within_a_thought_does_not_count(text):
  assert code_blocks.program(text) == "x = 4\n"


@pytest.mark.parametrize(
    ("prompt", "response", "wanted"),
    [
        ("Q[THINK]", "[THINK]a[/THINK]b", "a[/THINK]b"),
        ("Q<seed:think>\n", "<seed:think>a", "a"),
        ("Q<think>\n", "<thinking>a</thinking>b", "a</thinking>b"),
        ("Q", "<think>a</think>b", "<think>a</think>b"),
        ("Q<think>", "<think>\na</think>b", "\na</think>b"),
        ("Q<think>\n", "<think>\na</think>b", "a</think>b"),
        ("Q<think>\n", " \n<think>a</think>b", "a</think>b"),
        ("Q<think>\n", "a</think>b", "a</think>b"),
        ("Q<think>\n\n</think>\n\n", "b", "b"),
    ],
)
def test_a_thought_is_opened_once(prompt, response, wanted):
  assert thoughts.continued(prompt, response) == wanted


# --- rows --------------------------------------------------------------------

OPENS = "<assistant>\n<think>\n"
CLOSED = "<assistant>\n<think>\n\n</think>\n\n"
# As Qwen3 and R1: a thought of an earlier turn is not repeated.
TEMPLATE = (
    "{% for m in messages %}{% if m.role in ['user', 'assistant', 'system'] %}"
    "<{{ m.role }}>{{ m.content.split('</think>')[-1] }}"
    "{{ '<|im_end|>' if m.role == 'assistant' and loop.last }}"
    "{% endif %}{% endfor %}"
)


@pytest.fixture
def thinker(make, tmp_path):
  """thinker(end of the prompt, rows, **fields) -> rows of RL and the report."""

  def prepare(end, given, **fields):
    tok = byte_tokenizer()
    tok.add_tokens(["<think>", "</think>"])
    tok.add_special_tokens(dict(additional_special_tokens=["<|im_end|>"]))
    # Jinja drops the last line end of a template.
    tok.chat_template = TEMPLATE + "{{ " + repr(end) + " }}"
    tok.save_pretrained(tmp_path / "thinker")
    c = make(given, chat=True, kind="none", **fields)
    c.reward.functions = "tags*1"
    c.tokenizer, c.rollout.max_tokens = str(tmp_path / "thinker"), 80
    place = run(c, tmp_path)
    return rows(place), report(place)

  return prepare


def asked(**turn):
  """A chat of a question and an answer; `content` may be replaced."""
  answer = dict(role="assistant", content="2") | turn
  return [dict(role="user", content="1+1?"), answer]


THOUGHT = "<think>\none and one\n</think>\n\n2"


@pytest.mark.parametrize(
    "row",
    [
        dict(messages=asked(reasoning_content="one and one")),
        dict(messages=asked(thinking="one and one ")),
        dict(messages=asked(reasoning="one and one")),
        dict(messages=asked(content=THOUGHT)),
        dict(messages=asked(content=THOUGHT, reasoning_content="one and one")),
        dict(prompt="1+1?", response="2", reasoning_content="one and one"),
        dict(prompt="1+1?", completion="2", thinking="one and one"),
        dict(prompt="1+1?", completion=asked(thinking="one and one")[1:]),
    ],
)
def test_a_thought_is_part_of_the_response_wherever_a_row_has_it(row, thinker):
  [found], _ = thinker("<assistant>\n", [row])
  assert found.response == THOUGHT
  # A prompt that opens the thought: SFT reads one <think>.
  [found], tally = thinker(OPENS, [row])
  assert found.prompt.endswith(OPENS)
  assert found.response == THOUGHT.removeprefix("<think>\n")
  assert not tally["notes"]


def test_both_responses_of_a_pair_continue_the_prompt(thinker):
  row = dict(prompt="1+1?", chosen=THOUGHT, rejected="<think>\nno</think>3")
  [found], _ = thinker(OPENS, [row])
  assert (found.response, found.rejected) == (
      "one and one\n</think>\n\n2",
      "no</think>3",
  )


def test_a_closed_thought_is_not_opened_again(thinker):
  given = [
      dict(prompt="1+1?", response=THOUGHT),
      dict(prompt="1+2?", response="3"),
  ]
  [found], tally = thinker(CLOSED, given)
  assert found.response == "3"
  [reason] = tally["dropped"]
  assert "closes the thought that the response begins" in reason
  assert "enable_thinking=True" in reason


@pytest.mark.parametrize("end", ["<|e|>", " <|e|>\n", "<|im_end|>\n<|e|>", ""])
def test_what_ended_a_response_is_no_part_of_a_row(thinker, end):
  """EOS, or the token that ends a turn of the chat template."""
  given = [
      dict(prompt="1+1?", response=f"2{end}"),
      dict(prompt="1+2?", chosen=f"3{end}", rejected=f"4{end}"),
      dict(prompt="1+3?", response=f"4<|e|>5{end}"),
  ]
  found, tally = thinker("<assistant>\n", given)
  said = [x.strip() for row in found for x in (row.response, row.rejected)]
  assert said == ["2", "", "3", "4"]
  assert tally["dropped"] == {"a response contains a special token": 1}


def test_a_response_within_the_thought_is_said(thinker):
  given = [dict(prompt="1+1?", response="2"), dict(prompt="?", response="5")]
  found, tally = thinker(OPENS, given)
  assert [x.response for x in found] == ["2", "5"]
  assert tally["notes"] == {screening.UNCLOSED: 2}
  lines = preparation_report.lines([tally], True)
  [line] = [x for x in lines if screening.UNCLOSED in x]
  assert line.startswith("warning: 2 of 2 rows of ")
  assert line not in preparation_report.lines([tally], False), "RL alone"


def test_earlier_turns_may_have_thoughts(thinker):
  """Of the assistant and of the system, and no special token; users may not."""
  end = asked()
  chats = [
      [*asked(content=THOUGHT), *end],
      [dict(role="system", content="Use <think></think>."), *end],
      [*asked(content="<|s|>"), *end],
      [dict(role="user", content="<think>"), *asked()[1:], *end],
  ]
  given = [dict(messages=x) for x in chats]
  found, tally = thinker("", given, deduplicate=False)
  assert [x.prompt for x in found] == [
      "<user>1+1?<assistant>\n\n2<user>1+1?",
      "<system>.<user>1+1?",
  ]
  assert tally["dropped"] == {"the question contains a special token": 2}


def test_a_role_that_the_template_does_not_know_is_mapped_or_refused(thinker):
  roles = "developer", "system", "observer"
  given = [
      dict(messages=[dict(role=x, content=f"As {x}."), *asked()]) for x in roles
  ]
  found, tally = thinker("", given, deduplicate=False)
  assert [x.prompt for x in found] == [
      "<system>As developer.<user>1+1?",
      "<system>As system.<user>1+1?",
  ]
  assert found[0].messages[0]["role"] == "system"
  assert tally["notes"] == {screening.RENAMED: 1}
  [(reason, [sample])] = tally["samples"].items()
  assert tally["dropped"][reason] == 1 and "'observer'" in sample


@pytest.mark.parametrize("content", ["", "Wait.", None])
def test_a_call_of_a_tool_that_the_template_leaves_out(thinker, content):
  calls = [dict(function=dict(name="double", arguments="{}"))]
  turns = asked(), asked(content=content, tool_calls=calls)
  given = [dict(messages=[*x, *asked()]) for x in turns]
  [found], tally = thinker("", given, deduplicate=False)
  assert found.prompt == "<user>1+1?<assistant>2<user>1+1?"
  [[sample]] = tally["samples"].values()
  assert "the first of which calls tools" in sample


SCHEMAS = [dict(type="function", function=dict(name="double"))]


@pytest.mark.parametrize(
    ("column", "cell", "told"),
    [
        ("tools", SCHEMAS, True),
        ("tools", json.dumps(SCHEMAS), True),
        ("functions", [dict(name="double")], True),
        *[("tools", "[]", False), ("tools", [], False), ("tools", None, False)],
        *[("tools", "a hammer", False), ("tools", ["saw"], False)],
    ],
)
def test_schemas_of_tools_that_prompts_leave_out_are_told(
    thinker, column, cell, told
):
  given = [{"messages": asked(), column: cell}]
  [found], tally = thinker("", given)
  assert found.prompt == "<user>1+1?"
  assert tally["notes"] == ({screening.TOOLS: 1} if told else {})


# --- tools -------------------------------------------------------------------

CALL = '<tool_call>{"name": "double", "arguments": {"x": %d}}</tool_call>'


class Doubler(tools.Tools):

  def double(self, x: int) -> int:
    """Twice a number."""
    return 2 * x

  def score(self, response):
    return 0.5


@pytest.mark.parametrize(
    ("prompt", "response", "results"),
    [
        ("Q", CALL % 1, ["2"]),
        ("Q", f"<think>{CALL % 1}</think>{CALL % 2}", ["4"]),
        ("Q", f"<think>{CALL % 1}</think>done", None),
        ("Q", f"<think>{CALL % 1}", None),
        ("Q<think>\n", f"{CALL % 1}</think>{CALL % 2}", ["4"]),
        ("Q<think>\n", CALL % 1, None),
        ("Q", f"<think><think>{CALL % 1}</think>{CALL % 1}</think>a", None),
        ("Q", f"<think>a</think>b{CALL % 1}</think>{CALL % 2}", ["4"]),
        ("Q[THINK]", f"{CALL % 1}[/THINK]{CALL % 2}", ["4"]),
        ("Q", f"<think>a</think>{CALL % 1}<think>{CALL % 2}</think>", ["2"]),
    ],
)
def test_no_tool_is_called_within_a_thought(prompt, response, results):
  made = Doubler()
  made.reset(tasks.Row(prompt, ""), np.random.default_rng(0))
  said, reward, over = made.step(response)
  if results is None:
    assert (said, reward, over) == ("", 0.5, True)
  else:
    assert [x["content"] for x in said] == results and not over
