# SPDX-License-Identifier: Apache-2.0
"""Anonymise a trace: keep structure, token counts, times and references; remove texts and names.

Each part is built anew from the fields that may stay, so a field that a trace gains later is removed until it is named here.
Ids become running numbers, not digests: a digest of a known text or path can be recognised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqsim.trace.formats import FORMATS
from sqsim.trace.schema import (
    Answer,
    Call,
    Carries,
    Outcome,
    Parent,
    Prefix,
    Question,
    RecordedAux,
    Reset,
    Source,
    Task,
    Turn,
)

WELL_KNOWN_TOOLS = frozenset(
    """
    Agent AskUserQuestion Bash BashOutput Edit EnterPlanMode ExitPlanMode Glob Grep KillShell LS ListMcpResourcesTool
    MultiEdit NotebookEdit NotebookRead Read ReadMcpResourceTool SendMessage Skill SlashCommand Task TaskCreate TaskGet
    TaskList TaskOutput TaskStop TaskUpdate TodoRead TodoWrite ToolSearch WebFetch WebSearch Write
    apply_patch container.exec exec exec_command list_mcp_resources local_shell_call request_user_input shell
    shell_command spawn_agent update_plan view_image wait web_search web_search_call write_stdin
    bash browser.find browser.open browser.search cat edit edit_file execute_bash execute_ipython_cell fetch find
    find_file finish glob goto grep ls open python read read_file scroll_down scroll_up search search_dir search_file
    str_replace_based_edit_tool str_replace_editor submit terminal think tool visit write write_file
    """.split()  # noqa: SIM905 - names are read as words, not as a list with quotes
)
"""Tools of public agents (Claude Code, Codex, gpt-oss, OpenHands, SWE-agent, mini-swe-agent): names that reveal nothing of a user."""

WELL_KNOWN_LICENCES = frozenset(
    "Apache-2.0 BSD-2-Clause BSD-3-Clause CC-BY-4.0 CC-BY-SA-4.0 CC0-1.0 MIT ODC-By-1.0".split()  # noqa: SIM905 - as above
)
"""Licences by their SPDX names; others may be a name of someone."""


def anonymised(tasks: Iterable[Task]) -> Iterator[Task]:
    """Yield the tasks in order, without texts and names; equal ids stay equal."""
    numbers = _Numbers()
    for task in tasks:
        yield _task(task, numbers)


class _Numbers:
    """Counter that numbers names in the order in which they appear."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str | int, int]] = {}

    def of(self, kind: str, name: str | int) -> int:
        """Return the number of a name, from 1; a new name gets a new number."""
        known = self._known.setdefault(kind, {})
        return known.setdefault(name, len(known) + 1)

    def named(self, kind: str, name: str) -> str:
        """Name it by its number: `kind-1` and so on."""
        return f"{kind}-{self.of(kind, name)}"


def _task(task: Task, numbers: _Numbers) -> Task:
    carries, licence = task.carries, task.source.licence
    parent = task.parent and Parent(task_id=numbers.named("task", task.parent.task_id), turn=task.parent.turn)
    return Task(
        task_id=numbers.named("task", task.task_id),
        source=Source(
            format=task.source.format if task.source.format in FORMATS else "anonymised",
            licence=licence if licence in WELL_KNOWN_LICENCES else None,
        ),
        carries=Carries(
            timing=carries.timing, usage=carries.usage, references=carries.references, scale=carries.scale
        ),
        arrival_s=task.arrival_s,
        parent=parent,
        spawn=task.spawn,
        prefix=Prefix(id=numbers.named("prefix", task.prefix.id), tokens=task.prefix.tokens),
        question=_question(task.question, numbers),
        reasoning_kept=task.reasoning_kept,
        turns=tuple(_turn(turn, numbers) for turn in task.turns),
        answer=task.answer
        and Answer(
            reasoning_tokens=task.answer.reasoning_tokens,
            text_tokens=task.answer.text_tokens,
            uses=task.answer.uses,
        ),
        outcome=Outcome(finish=task.outcome.finish, correct=task.outcome.correct),
        aux=task.aux
        and tuple(
            RecordedAux(turn=each.turn, output_tokens=each.output_tokens, named=each.named) for each in task.aux
        ),
    )


def _question(question: Question, numbers: _Numbers) -> Question:
    """Anonymise the question; its blocks are numbered, as ids may be hashes of text."""
    hashes = question.hash_ids
    return Question(
        tokens=question.tokens,
        hash_ids=None if hashes is None else tuple(numbers.of("block", each) for each in hashes),
        block_tokens=question.block_tokens,
    )


def _turn(turn: Turn, numbers: _Numbers) -> Turn:
    return Turn(
        reasoning_tokens=turn.reasoning_tokens,
        text_tokens=turn.text_tokens,
        calls=tuple(_call(call, numbers) for call in turn.calls),
        uses=turn.uses,
        template_tokens=turn.template_tokens,
        user_wait_s=turn.user_wait_s,
        reset=turn.reset and Reset(keep_tokens=turn.reset.keep_tokens),
    )


def _call(call: Call, numbers: _Numbers) -> Call:
    """Anonymise a call; of an error only the fact remains, as its text begins like the response's."""
    return Call(
        tool=call.tool if call.tool in WELL_KNOWN_TOOLS else numbers.named("tool", call.tool),
        call_tokens=call.call_tokens,
        cursor=call.cursor,
        response_tokens=call.response_tokens,
        latency_s=call.latency_s,
        error=None if call.error is None else "error",
        parallel=call.parallel,
    )
