# SPDX-License-Identifier: Apache-2.0
"""Laws 10 and 11 on a real SGLang: one server a configuration, the same tasks on it and in the simulation.

Law 10: one task at a time, every turn, aux thread and eviction accounts for the tokens that the simulation accounts for.
Law 11: twelve tasks at once in a pool that is too small; fed with the arrivals, the simulated scheduler forms every batch.

`python -m tests.sqreal.conformance` runs the full matrix and writes the table in reports/conformance; with words after it
those servers (`session`, `gpt-oss-page16`) and policies (`compaction`, `pause`) only.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from itertools import product
from pathlib import Path

from sqreal.replay.replay import Replay
from sqreal.server.server import Server, ServerOptions, start
from sqreal.setup.tiny_models import write_tiny_model
from sqsim.comparison.accounting import accounting
from sqsim.comparison.experiment import Run
from sqsim.fidelity import lockstep
from sqsim.record.schema import RunRecord
from sqsim.scenario.scenario import Scenario
from sqsim.simulation.simulate import simulate
from sqsim.trace.schema import Question, Reset, Task
from tests.sqreal.replays import ACCOUNTED, EVICTED, NAMED, POLICIES, rows, scenario
from tests.sqsim.tasks import call, task, turn

TURNS = (*ACCOUNTED, "resident_tokens_after", "prefill_chunks", "retractions")
AUX = (*NAMED, "cached_tokens")
TASKS = ("task", "outcome", "turns", "peak_tokens", "kv_read_tokens_main", "kv_read_tokens_aux")
LAST_TOKEN = {"cached_tokens", "computed_tokens", "resident_tokens_after", "peak_tokens"}
"""The columns in which it shows whether an answer's last token has KV."""

MODELS = ("tiny-llama", "tiny-gpt-oss")  # one pool; full-attention and sliding-window layers, two pools


@dataclass(frozen=True, slots=True)
class Configuration:
    """How a server runs. `chunk`: tokens of a prefill chunk; 8192 is never reached."""

    model: str
    page_size: int
    chunk: int
    cache: str = "radix"

    def __str__(self) -> str:
        sessions = "-session" if self.cache == "session" else ""
        return f"{self.model}-page{self.page_size}-{'chunked' if self.chunk < 8192 else 'whole'}{sessions}"

    def policy(self, name: str) -> dict[str, object]:
        """A policy with what this cache does after an eviction."""
        keys = POLICIES[name]
        return (
            {**keys, "after_eviction": "in_place"}
            if self.cache == "session" and "after_eviction" in keys
            else keys
        )

    @property
    def policies(self) -> list[str]:
        """The policies that go with its cache."""
        return [name for name in POLICIES if self.cache == "session" or name != "pin_ttl"]

    @property
    def engine(self) -> dict[str, object]:
        """The scenario's engine: small enough for twelve tasks to fight over, with next to nothing reserved for outputs."""
        return {
            "kv_capacity": 2048,
            "max_running": 16,
            "context_length": 2048,
            "page_size": self.page_size,
            "chunked_prefill": self.chunk,
            "schedule_conservativeness": 0.05,
            "max_new_tokens": 160,
            "cache": self.cache,
        }

    @contextmanager
    def server(self, directory: Path) -> Iterator[Server]:
        """A server of this configuration that forces tokens and writes a step log."""
        engine = {
            key: value
            for key, value in self.engine.items()
            if key not in {"chunked_prefill", "max_new_tokens", "cache"}
        }
        options = ServerOptions(
            model=write_tiny_model(self.model, directory / self.model),
            load_format="dummy",
            chunked_prefill=self.chunk,
            in_place=self.cache == "session",
            **engine,
        )
        with start(
            options,
            force_tokens=True,
            step_log=directory / "steps.jsonl",
            log_path=directory / "server.log",
        ) as server:
            yield server


MATRIX = [Configuration(*each) for each in product(MODELS, (1, 16), (8192, 64))]
SESSIONS = [Configuration(*each, "session") for each in product(MODELS, (1, 16), (8192, 64))]
EVERY = [*MATRIX, *SESSIONS]
PAIRWISE = [MATRIX[0], MATRIX[3], MATRIX[5], MATRIX[6]]
"""Any two values of model, page size and chunking meet in one of these."""


def quiet_tasks(count: int = 20, seed: int = 0, template_tokens: int = 0) -> list[Task]:
    """Random tasks: failed, serial and parallel calls, compaction, stripped reasoning, users, references.

    Outputs are long enough for an aux thread to be prefilled beside them, and short enough for a CPU; responses reach
    over several pages, chunks and windows. `template_tokens`: at least so many each turn; a session's turn needs one.
    """
    draw = random.Random(f"law 10, {seed}")
    return [_quiet(draw, f"t{number:02}", template_tokens) for number in range(count)]


def _quiet(draw: random.Random, name: str, template_tokens: int) -> Task:
    turns, opened, cursor = [], [], 0
    for index in range(draw.randint(1, 5)):
        reset = Reset(keep_tokens=draw.randint(1, 80)) if index and draw.random() < 0.1 else None
        if reset is not None:
            opened = []
        uses = tuple(each for each in opened if draw.random() < 0.4)
        calls, fresh = [], []
        for _ in range(draw.randint(1, 2)):
            failed = draw.random() < 0.2
            calls.append(
                call(
                    None if failed else cursor,
                    draw.choice((0, 1, 15, 16, 17, draw.randint(20, 130))),
                    tokens=draw.randint(1, 12),
                    latency_s=1.0,
                    parallel=draw.random() < 0.5,
                )
            )
            if not failed:
                fresh.append(cursor)
                cursor += 1
        opened += fresh
        turns.append(
            turn(
                *calls,
                uses=uses,
                reasoning=draw.randint(16, 40),
                text=draw.randint(0, 12),
                template_tokens=max(template_tokens, draw.randint(0, 4)),
                reset=reset,
            )
        )
    return task(
        *turns,
        name=name,
        answer=draw.randint(50, 60),  # longer than any aux thread, so that none is cut short by the task's end
        answer_uses=tuple(each for each in opened if draw.random() < 0.4),
        reasoning_kept=draw.random() < 0.75,
        question=Question(tokens=draw.randint(1, 60)),
    )


def crowded_tasks(count: int = 12, seed: int = 0) -> list[Task]:
    """Agents that want more than fits: a shared prompt, long outputs, tools of milliseconds.

    They come one by one, so that each is admitted beside others of whose outputs next to nothing is reserved; the first
    outputs are the longest, so that all twelve outgrow the pool.
    """
    draw = random.Random(f"law 11, {seed}")
    return [
        task(
            *(
                turn(
                    call(index, draw.randint(10, 60), latency_s=draw.uniform(0.0, 0.1)),
                    uses=(index - 1,) if index and draw.random() < 0.3 else (),
                    reasoning=draw.randint(40, 90) if index else draw.randint(140, 150),
                )
                for index in range(3)
            ),
            name=f"c{number:02}",
            arrival_s=0.005 * number,
            answer=draw.randint(60, 120),
            question=Question(tokens=draw.randint(20, 60)),
        )
        for number in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Quiet:
    """Law 10 for one configuration and policy; `differences` are rows that one side has and the other has not."""

    configuration: str
    policy: str
    tasks: int
    turns: int
    aux: int
    evictions: int
    prefill_chunks: int
    cached_tokens: int
    differences: list[str]


@dataclass(frozen=True, slots=True)
class Crowded:
    """Law 11 for one configuration and policy."""

    configuration: str
    policy: str
    batches: int
    queued_steps: int
    reclaimed_tokens: int
    released_sessions: int
    evicted_leaves: int
    retractions: int
    prefill_chunks: int
    pauses: int
    held_sessions: int
    differences: list[str]


def quiet(configuration: Configuration, server: Server, policy: str, directory: Path, count: int = 20) -> Quiet:
    """Replay random tasks one after the other, on the server and on paper."""
    run = scenario(
        directory,
        quiet_tasks(count, template_tokens=int(configuration.cache == "session")),
        model=configuration.model,
        engine=configuration.engine,
        policy=configuration.policy(policy),
    )
    record, differences = accounts(run, server, directory, beside=policy == "sidequest")
    return Quiet(
        str(configuration),
        policy,
        record.tasks.num_rows,
        record.turns.num_rows,
        record.aux.num_rows,
        record.evictions.num_rows,
        sum(record.turns["prefill_chunks"].to_pylist()),
        sum(record.turns["cached_tokens"].to_pylist()),
        differences,
    )


def accounts(
    run: Scenario, server: Server, directory: Path, *, time_scale: float = 0.0, beside: bool = False
) -> tuple[RunRecord, list[str]]:
    """The real record, and where its accounts or its schedule differ from the simulation's.

    `beside`: a task's requests run beside each other. Where another's prefill falls into the step behind an answer's
    last token, that token has no KV (RULES.md, rule 27); whether it does is a matter of milliseconds, so no difference.
    """
    replay, record = _replay(run, server, time_scale, await_aux=True)
    paper = simulate(run)
    account = accounting(Run("paper", paper), Run("server", record))
    chance = beside and 0 < account.by_last_token == account.turns.rows_differing
    columns = {
        table: tuple(column for column in told if not chance or column not in LAST_TOKEN)
        for table, told in (("turns", TURNS), ("aux", AUX), ("evictions", EVICTED), ("tasks", TASKS))
    }
    return record, [
        *(f"server: {key}: {value['server']}" for key, value in record.run["unlike_the_scenario"].items()),
        *(each for table, told in columns.items() for each in _differences(table, told, record, paper)),
        *map(str, _lockstep(replay, record, directory)[1]),
    ]


def crowded(configuration: Configuration, server: Server, policy: str, directory: Path) -> Crowded:
    """Replay twelve tasks at once and hold every batch of the server against the simulated scheduler's."""
    run = scenario(
        directory,
        crowded_tasks(),
        model=configuration.model,
        engine=configuration.engine,
        policy=configuration.policy(policy),
        load={"as_recorded": True},
    )
    replay, record = _replay(run, server, time_scale=1.0)
    report, differences = _lockstep(replay, record, directory)
    paused = record.run.get("paused", {"times": 0})
    if set(record.tasks["outcome"].to_pylist()) != {"completed"}:
        differences.append("not every task completed")
    return Crowded(
        str(configuration),
        policy,
        report.batches,
        sum(waiting > 0 for waiting in record.engine["waiting"].to_pylist()),
        sum(record.engine["reclaimed_tokens"].to_pylist()),
        sum(record.engine["released_sessions"].to_pylist()),
        report.evicted_leaves,
        report.retractions,
        sum(record.turns["prefill_chunks"].to_pylist()),
        paused["times"],
        report.held_sessions,
        differences,
    )


def _replay(
    run: Scenario, server: Server, time_scale: float, *, await_aux: bool = False
) -> tuple[Replay, RunRecord]:
    assert server.log_path is not None
    log = server.log_path.with_name("steps.jsonl")
    replay = Replay(run, server, time_scale=time_scale, step_log=log, await_aux=await_aux)
    record = replay.run()
    if replay.error is not None:
        raise replay.error
    return replay, record


def _lockstep(replay: Replay, record: RunRecord, directory: Path) -> tuple[lockstep.Report, list[str]]:
    replay.write_schedule(directory / "schedule")
    report = lockstep.replay(directory / "schedule")
    differences = list(map(str, report.differences))
    if report.batches != sum(record.engine["steps"].to_pylist()):
        differences.append("the engine table holds another number of steps than the schedule")
    return report, differences


def _differences(table: str, columns: tuple[str, ...], record: RunRecord, paper: RunRecord) -> Iterator[str]:
    real, simulated = (rows(getattr(each, table), columns) for each in (record, paper))
    yield from (f"{table}: only on the server: {row}" for row in real if row not in simulated)
    yield from (f"{table}: only on paper: {row}" for row in simulated if row not in real)


TABLE = """# Is the simulated server the real one?

Made by `python -m tests.sqreal.conformance`; do not edit. Real SGLang {sglang}, torch {torch}, on a CPU, tiny models with random
weights in {dtypes}; outputs forced to the traces. A difference is a
value that the server and the simulation do not share; there are **{differences}** in all. A run may be of some servers or policies only; the
other rows are then those of an earlier one.

## Law 10: one task at a time

Prompt, cached, computed, output and resident tokens, prefill chunks and retractions of every turn; fork, prompt, cached and
output tokens, names and fate of every aux thread; every eviction; peak tokens and KV reads of every task.

{quiet}

## Law 11: twelve tasks in a pool of 2,048 tokens

The scheduler's decisions, fed with the arrivals: rows of every batch, queue, admission tests, evicted leaves, retractions,
new-token ratio, pools.

{crowded}
"""


def read_table(directory: Path) -> list[Quiet | Crowded]:
    """What conformance.json holds."""
    rows = json.loads((directory / "conformance.json").read_text(encoding="utf-8"))
    return [(Quiet if row.pop("law") == 10 else Crowded)(**row) for row in rows]


def asked(words: Sequence[str]) -> list[tuple[Configuration, list[str]]]:
    """The servers, each with the policies, that the words choose: a policy's name, or a part of a server's."""
    servers = [word for word in words if word not in POLICIES]
    policies = [word for word in words if word in POLICIES] or list(POLICIES)
    return [
        (each, [name for name in each.policies if name in policies])
        for each in EVERY
        if not servers or any(word in str(each) for word in servers)
    ]


def write_table(found: Sequence[Quiet | Crowded], directory: Path) -> None:
    """Write README.md and conformance.json, in the order of the matrix."""
    order = [str(each) for each in EVERY]
    found = sorted(found, key=lambda each: (order.index(each.configuration), list(POLICIES).index(each.policy)))
    text = TABLE.format(
        sglang=version("sglang"),
        torch=version("torch"),
        dtypes="their own dtype (llama float32, gpt-oss bfloat16)",
        differences=sum(len(each.differences) for each in found),
        quiet=_table([each for each in found if isinstance(each, Quiet)]),
        crowded=_table([each for each in found if isinstance(each, Crowded)]),
    )
    (directory / "README.md").write_text(text, encoding="utf-8")
    (directory / "conformance.json").write_text(
        json.dumps([{"law": 10 if isinstance(each, Quiet) else 11, **asdict(each)} for each in found], indent=1)
        + "\n",
        encoding="utf-8",
    )


def _table(found: Sequence[Quiet] | Sequence[Crowded]) -> str:
    names = [each.name for each in fields(found[0])]
    cells = [
        [
            f"{len(v):,}" if isinstance(v, list) else f"{v:,}" if isinstance(v, int) else v
            for v in asdict(each).values()
        ]
        for each in found
    ]
    lines = [names, ["---" if isinstance(v, str) else "---:" for v in asdict(found[0]).values()], *cells]
    return "\n".join("| " + " | ".join(line).replace("_", " ") + " |" for line in lines)


def main(words: Sequence[str]) -> None:
    """Run what the words choose (none: all) and write the table; other rows stay as they were."""
    directory = Path(__file__).parents[2] / "reports" / "conformance"
    found = read_table(directory)
    for configuration, policies in asked(words):
        found = [
            each for each in found if each.configuration != str(configuration) or each.policy not in policies
        ]
        with tempfile.TemporaryDirectory() as work, configuration.server(Path(work)) as server:
            for policy, (what, law) in product(policies, (("quiet", quiet), ("crowded", crowded))):
                directory_of_run = Path(work) / f"{policy}-{what}"
                directory_of_run.mkdir()
                found.append(law(configuration, server, policy, directory_of_run))
                sys.stderr.write(f"{found[-1]}\n")
        write_table(found, directory)


if __name__ == "__main__":
    main(sys.argv[1:])
