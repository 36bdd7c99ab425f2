"""The program of a response, in the forms in which models write it."""

import textwrap
import time

import pytest

from rl_reason.verifiers import code, code_blocks

HELPER = "def helper(x):\n    return x * x\n"
F = f"def f(x):\n    return helper(x)\n\n{HELPER}"
ANOTHER = "def f(x):\n    return x\n"
CALL = "print(f(3))\n"


def block(source, info="python", mark="```"):
  return f"{mark}{info}\n{source}{mark}\n"


LISTED = textwrap.indent(block(F), "   ")
B = block(F)


@pytest.mark.parametrize(
    "text",
    [
        # Calls, tests and output after the solution.
        *[f"{B}Use it:\n{block(CALL)}", f"{B}Use it:\n{block(CALL, '')}"],
        f"{B}{block('def test():' + chr(10) + '  assert f(1) == 2')}",
        f"{B}{block('>>> f(3)' + chr(10) + '9' + chr(10))}",
        f"{block(F, '')}Output:\n{block('9' + chr(10), '')}",
        f"{B}Output:\n{block('The result is 9' + chr(10))}",
        f"{B}{block(CALL)}Output:\n{block('9' + chr(10), 'text')}",
        # One fence.
        *[f"Here:\n```python\n{F}", f"Here:\n```\n{F}"],
        *[f"{F}```\nThis works.", f"```python\n{F}This works, as asked.\n"],
        *[f"```python\n{F.rstrip()}```\nOk.", f"So: ```python\n{F}```"],
        # Other fences and their info strings.
        *[block(F, info) for info in ("python3", "py", "Python", " python")],
        *[block(F, info) for info in ("{.python}", "{python}", "python:a.py")],
        *[block(F, x, "~~~") for x in ("python", "")],
        *[block(F, mark="````"), B.replace("\n", "\r\n")],
        # Infos that name no language, and a document with blocks of its own.
        *[
            block(F, x)
            for x in ("text", "code", "src/solution.py", "tool_code")
        ],
        f"{block(F, 'text')}Output:\n{block('9' + chr(10), 'text')}",
        *[block(B, x, "````") for x in ("markdown", "md")],
        *[f"```markdown\n# F\n{B}```\n", f"~~~md\n{B}~~~"],
        # Tests that import the solution, and what is still to be written.
        f"{B}{block('from solution import f' + chr(10) + CALL)}",
        f"{B}{block('>>> from a import f' + chr(10) + '>>> f(3)')}",
        f"{block(F, '')}{block('import pytest, b' + chr(10) + CALL)}",
        f"{B}{block('def f(x):' + chr(10) + '  raise NotImplementedError')}",
        # Lists, quotations, indented blocks, no block.
        *[f"1. So:\n\n{LISTED}\n2. Done.", f"1. {LISTED.lstrip()}"],
        "> " + B.replace("\n", "\n> "),
        f"Here:\n\n{textwrap.indent(F, '    ')}\nThis works.",
        *[textwrap.indent(F, "    "), f"Here:\n{F}\nThis works, as asked."],
        f"Here:\n\n{F}\nFor example:\n\n{CALL}",
        # Several blocks that belong together, and several that do not.
        f"{block('import math')}{block(F.replace('x * x', 'math.pow(x, 2)'))}",
        f"{block(F.partition(HELPER)[0])}And:\n{block(HELPER)}",
        *[f"{block(ANOTHER)}Better:\n{B}", f"{block('import os')}{B}"],
        f"{B}The signature:\n{block('def f(x):')}And:\n{block('return 5')}",
        f"{B}The signature:\n{block('def f(x):' + chr(10) + '  ...')}",
        f"{block('pip install x', 'bash')}{B}{block('python a.py', 'sh')}",
        # Thoughts and answers.
        f"<think>Perhaps {block(ANOTHER)}</think>\n{B}",
        f"No.\n{block(ANOTHER)}</think>{B}{block(CALL)}",
        f"<think>x</think><answer>\n{B.rstrip()}</answer>",
        f"<think>x</think><answer>\n{F}</answer>",
    ],
)
def test_the_definition_of_what_tests_call(text):
  """The last one, with what it uses; an example after it does not count."""
  found = code.program(text, {"f"})
  space = {}
  exec(compile(textwrap.dedent(found), "program", "exec"), space)
  assert space["f"](3) == 9 and "print" not in found.partition("def f")[0]


CLASS = "class Solution:\n  def f(self, x):\n"


@pytest.mark.parametrize(
    "empty",
    [
        *("", "    pass\n", "    'The square.'\n"),
        "    raise NotImplementedError('to do')\n",
    ],
)
def test_a_class_that_is_still_to_be_written_is_no_definition(empty):
  solution = f"{CLASS}    return x * x\n"
  text = block(solution) + "It begins with:\n" + block(CLASS + empty)
  assert code.program(text, {"Solution", "f"}) == solution


READ, WRITE = "n = int(input())\n", "print(n * 2)\n"
MAIN = f"def main():\n  {READ}  {WRITE}"
RUN = "if __name__ == '__main__':\n  main()\n"


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        (f"{block(READ + WRITE)}Output:\n{block('6')}", [READ + WRITE]),
        (f"{block(READ + WRITE, '')}{block('6', '')}", [READ + WRITE]),
        (f"{block(READ)}Then:\n{block(WRITE)}", [READ, WRITE]),
        (f"{block(MAIN)}Then:\n{block(RUN)}", [MAIN, RUN]),
        (f"{block(MAIN + RUN)}Try:\n{block('print(main())')}", [MAIN + RUN]),
        (f"{block(MAIN + RUN)}It reads:\n{block(READ)}", [MAIN + RUN]),
        (f"{block(MAIN + RUN)}Its end:\n{block(WRITE)}", [MAIN + RUN]),
        (f"{block(READ + WRITE)}{block('print(3 + 3)')}", [READ + WRITE]),
        (f"{block(READ + WRITE, 'text')}{block('6', 'text')}", [READ + WRITE]),
        (f"{block(MAIN + RUN)}{block('assert 1; print(1)')}", [MAIN + RUN]),
        (f"{block('print(1)')}Better:\n{block(MAIN + RUN)}", [MAIN + RUN]),
        (f"Here:\n\n    {READ}    {WRITE}\nDone.", [READ + WRITE]),
        (f"The program:\n{READ}{WRITE}\nIt works.", [READ + WRITE]),
    ],
)
def test_programs_that_read_standard_input(text, blocks):
  """The last that is more than an example, with the blocks that it needs."""
  assert code.program(text).split() == " ".join(blocks).split()


@pytest.mark.parametrize("names", [(), ("f",)])
def test_a_broken_last_definition_counts(names):
  """A draft before it is not the answer."""
  broken = "def f(x):\n  return (x\n"
  assert code.program(block(F) + block(broken), names) == broken
  assert code.program(f"{block(F)}```python\n{broken}", names) == broken


def test_hostile_texts_take_no_time_and_raise_nothing():
  for text in (
      *("`" * 10**6, " " * 10**6, "> " * 10**5, "```\n" * 10**5, "(" * 99_000),
      *(
          "-" * 99_000 + "1",
          "a" + ".b" * 49_000,
          "x\0",
          "\ud800",
          "lambda:" * 9**4,
      ),
      *("def f(x):\n  return (\n" * 4000, "x = (\n\n" * 10**4),
  ):
    for whole in (text, f"```python\n{text}", f"Here:\n{text}\n```"):
      start = time.process_time()
      code.program(whole, {"f"})
      assert time.process_time() - start < 5


def test_the_body_of_a_function_keeps_its_margin():
  body = "    y = x\n\n    return y * y\n"
  for text in (body, block(body), f"{body}```\nThis works.\n"):
    assert code.program(text, {"f"}) == body
  assert code_blocks.Block(body, False).body
