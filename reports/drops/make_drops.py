# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of a drop for the next turn, in place and by a new prompt, on a real SGLang on a CPU.

python reports/drops/make_drops.py            # from the repository's root; starts two servers, writes drops.json and README.md
python reports/drops/make_drops.py --check    # starts none: is README.md that of drops.json?

Each case has a conversation of its own: a first prompt, then a turn that fills the context, then a drop of a span and
a turn of new tokens. In place: a session, `sqreal_drop`. By a new prompt (`reprefill`): a plain request holds what is
left, after one that held all of it. Token counts are the server's own (`prompt_tokens`, `cached_tokens`).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path

from sqreal.server.client import Call, Client
from sqreal.server.server import ServerOptions, start
from sqreal.setup.tiny_models import write_tiny_model

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from committed import write_or_check  # noqa: E402 - a script beside the pages it writes

CONTEXTS, DROPPED, PLACES = (400, 800, 1500), (64, 128, 256), ("early", "middle", "late")
FIRST, NEW, OUT = 64, 32, 2  # tokens of the first prompt, of the turn behind the drop, of each answer
PAGES = (1, 16)


@dataclass(frozen=True, slots=True)
class Case:
    """One drop; all in tokens. `start`: where the dropped span begins in the context. `computed_*`: of the next turn."""

    page: int
    context: int
    dropped: int
    start: int
    prompt_in_place: int
    computed_in_place: int
    prompt_reprefill: int
    computed_reprefill: int


def start_of(place: str, context: int, dropped: int) -> int:
    """Return the start: right after the first prompt, in the middle of the rest, or 16 tokens before its end."""
    return {
        "early": FIRST,
        "middle": FIRST + (context - FIRST - dropped) // 2,
        "late": context - OUT - 16 - dropped,
    }[place]


async def measure(client: Client, page: int, context: int, dropped: int, start: int) -> Case:
    name = f"{page}-{context}-{dropped}-{start}"
    draw = random.Random(name)
    first, rest, new = (
        [draw.randint(3, 511) for _ in range(tokens)] for tokens in (FIRST, context - FIRST - 2 * OUT, NEW)
    )

    def turn(step: str, ids: list[int], session: str | None = None, **asks: object) -> Call:
        return Call(f"{name}-{step}/", ids, None, OUT, session=session, asks=asks, ignore_eos=True)

    await client.open_session(name)
    whole: list[int] = []
    for step, ids in (("first", first), ("fill", rest)):
        answer = await client.generate(turn(step, ids, name))
        whole += [*ids, *answer.output_ids]
    assert len(whole) == context
    stop = start + dropped
    cut = (await client.generate(turn("drop", new, name, sqreal_drop=[[start, stop]]))).meta
    await client.close_session(name)
    await client.flush_cache()
    await client.generate(turn("whole", whole))
    left = (await client.generate(turn("left", [*whole[:start], *whole[stop:], *new]))).meta
    await client.flush_cache()
    return Case(
        page,
        context,
        dropped,
        start,
        cut["prompt_tokens"],
        cut["prompt_tokens"] - cut["cached_tokens"],
        left["prompt_tokens"],
        left["prompt_tokens"] - left["cached_tokens"],
    )


async def measured(url: str, page: int) -> list[Case]:
    async with Client(url) as client:
        return [
            await measure(client, page, context, dropped, start_of(place, context, dropped))
            for context, dropped, place in product(CONTEXTS, DROPPED, PLACES)
        ]


def on_a_server(page: int) -> list[Case]:
    with tempfile.TemporaryDirectory() as work:
        options = ServerOptions(
            model=write_tiny_model("tiny-llama", Path(work) / "tiny-llama"),
            load_format="dummy",
            dtype="float32",
            kv_capacity=8192,
            max_running=4,
            context_length=4096,
            page_size=page,
            in_place=True,
        )
        with start(options, log_path=Path(work) / "server.log", deadline_s=600) as server:
            return asyncio.run(measured(server.url, page))


PAGE = """# What a drop costs the next turn

Made by `python reports/drops/make_drops.py`; do not edit. Real SGLang {sglang} on a CPU, tiny llama with random weights; exact counts of the
server, in tokens. No times: those of a tiny model on a CPU say nothing of a GPU.

A context is filled (a first prompt of {first} tokens, then one turn), a span of it is dropped, and a turn of {new} new tokens follows.
*In place* the session is cut (`sqreal_drop`); *reprefill* sends what is left as a new prompt, after a plain request that held the
whole context, so that the radix tree knows all before the span. "early" is right behind the first prompt, "late" ends 16 tokens before the context's
last answer.

- **In place** the next turn computes what is new and the last answer's last token, which has no KV yet: {new} + 1, wherever the span lay.
- **Reprefill** computes all behind the span again, and what is new; with pages of 16 also what the cached prefix lacks to a whole page.
- In place with pages of 16, what of a span is no whole page stays in the context: its prompt is longer by that.

{tables}
"""


def page_of(cases: list[Case], sglang: str) -> str:
    tables = "\n\n".join(
        f"## Pages of {page}\n\n" + _table([case for case in cases if case.page == page]) for page in PAGES
    )
    return PAGE.format(sglang=sglang, first=FIRST, new=NEW, tables=tables)


def _table(cases: list[Case]) -> str:
    lines = [
        "| context | dropped | from token | prompt, in place | computed, in place | prompt, reprefill | computed, reprefill |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case in cases:
        cells = list(asdict(case).values())[1:]
        lines.append("| " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    return "\n".join(lines)


def read_cases() -> tuple[list[Case], str]:
    """Read the committed measurements, and the version of SGLang that made them."""
    found = json.loads((HERE / "drops.json").read_text(encoding="utf-8"))
    return [Case(**case) for case in found["cases"]], found["sglang"]


def main() -> int:
    if "--check" not in sys.argv:
        cases = [case for page in PAGES for case in on_a_server(page)]
        found = {"sglang": version("sglang"), "cases": [asdict(case) for case in cases]}
        (HERE / "drops.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return write_or_check(HERE / "README.md", page_of(*read_cases()))


if __name__ == "__main__":
    sys.exit(main())
