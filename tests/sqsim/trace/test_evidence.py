# SPDX-License-Identifier: Apache-2.0
"""Kinds of evidence, each by what a person would say of small contexts (METHOD.md, "last use")."""

from __future__ import annotations

from typing import Any

import pytest

from sqsim.trace.evidence.outputs import pieces
from sqsim.trace.evidence.paths import names
from sqsim.trace.evidence.symbols import defined
from sqsim.trace.mentions import Mentions

LISTING = "total 3\nsrc/app/main.py\nsrc/app/util.py\nnotes.txt"
MAIN = (
    "1\tdef load_settings(path):\n2\t    return read(path)\n3\tclass RateLimiter:\n4\t    maxBurst = 7\n"
    + "#" * 80
)


class Context:
    """A context that is fed step by step; responses take cursors 0, 1, ..."""

    def __init__(self, question: str = "Fix the bug.") -> None:
        self.mentions = Mentions()
        self.mentions.heard(question)
        self._next = 0

    def call(self, tool: str, response: str, **arguments: Any) -> dict[str, set[int]]:
        """One call and its response; returns what the call refers to, by kind."""
        text = str(arguments)
        self.mentions.used([(tool, text, arguments)], "")
        self.mentions.opened(self._next, tool, response, arguments, text)
        self._next += 1
        return self.found()

    def says(self, text: str) -> dict[str, set[int]]:
        """An answer to the user; returns what it refers to, by kind."""
        self.mentions.used([], text)
        return self.found()

    def found(self) -> dict[str, set[int]]:
        return {kind: cursors for kind, cursors in self.mentions.found[-1].items() if cursors}


def test_a_call_works_on_a_file_that_a_listing_named():
    context = Context()
    context.call("Glob", LISTING, pattern="**/*")
    assert context.call("Read", MAIN, file_path="/repo/src/app/main.py")["path"] == {0}
    assert context.call("Read", MAIN, file_path="/repo/src/app/other.py") == {}


def test_an_edit_and_a_part_refer_to_the_text_that_was_shown_and_a_whole_reading_does_not():
    context = Context()
    context.call("Read", MAIN, file_path="/repo/src/app/main.py")
    assert context.call("Edit", "done", file_path="/repo/src/app/main.py", old_string="x = 1")["path"] == {0}
    assert context.call("Read", MAIN, file_path="/repo/src/app/main.py", offset=40)["path"] == {0}
    assert "path" not in context.call("Read", MAIN, file_path="/repo/src/app/main.py")
    assert context.call("Bash", "ok", command="python src/app/main.py --fast")["path"] == {3}, "the newest"


def test_a_file_that_the_user_named_first_is_no_responses():
    context = Context("Look at src/app/main.py and notes.txt.")
    context.call("Glob", LISTING, pattern="**/*")
    assert "path" not in context.call("Read", MAIN, file_path="src/app/main.py")


def test_a_symbol_belongs_to_the_newest_response_that_defines_it():
    context = Context()
    context.call("Read", MAIN, file_path="a.py")
    assert context.call("Grep", "b.py:4: RateLimiter()", pattern="RateLimiter")["symbol"] == {0}
    context.call("Read", MAIN, file_path="a.py")
    assert context.call("Bash", "", command="pytest -k load_settings")["symbol"] == {2}
    assert "symbol" not in context.call("Bash", "", command="echo Unheard_of")


def test_what_the_model_defines_itself_is_nobodys():
    context = Context()
    context.call("Write", "written", file_path="new.py", content="def own_helper():\n    pass\n")
    context.call("Bash", "def own_helper(): pass", command="cat new.py")
    assert "symbol" not in context.call("Grep", "", pattern="own_helper")


def test_an_answer_quotes_an_output():
    context = Context("Run the tests; I want `exit code 0`.")
    context.call("Bash", "===== 14 passed, 2 skipped in 3.21s =====", command="pytest")
    context.call("Bash", "warning: unused variable `retries`", command="cargo build")
    assert context.says("All 14 passed.")["output"] == {0}
    assert context.says("The build says `unused variable`, so I removed it.")["output"] == {1}
    assert context.says("It ended with `exit code 0`.") == {}, "the user's own words"


def test_a_compaction_closes_every_kind():
    context = Context()
    context.call("Read", LISTING + MAIN, file_path="a/b.py")
    context.mentions.closed()
    assert context.call("Edit", "", file_path="a/b.py", old_string="def load_settings(path):") == {}
    assert context.says("`def load_settings(path):`") == {}


def test_kinds_are_counted():
    context = Context()
    context.call("Read", MAIN, file_path="/repo/src/app/main.py")
    context.call("Edit", "done", file_path="/repo/src/app/main.py", old_string="    return read(path)")
    assert context.mentions.by_kind == {"edit": 1, "path": 1}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see ./src/main.py:12 and ../lib/a-b.ts.", {"src/main.py", "lib/a-b.ts"}),
        ("Makefile, e.g. 3.14 or v1.2 and i.e. foo.bar()", {"foo.bar"}),
        ("https://host/x.html", {"host/x.html"}),
        ("no files", set()),
    ],
)
def test_names_of_files(text, found):
    assert names(text) == found


def test_definitions_and_pieces():
    code = "def run_all(self):\nclass HttpServer(Base):\nMAX_SIZE: int = 3\nlet total = 4\nif value == 2:\n"
    assert defined(code) == {"run_all", "HttpServer", "MAX_SIZE"}
    assert pieces('He said "too short" but `exact span` and 12 errors.') == ["exact span", "12 errors"]
