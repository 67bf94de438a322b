# SPDX-License-Identifier: Apache-2.0
"""A client process that is there to be killed: `python -m tests.sqreal.chaos_victim URL NAME`, sessions NAME0/ to NAME3/."""

from __future__ import annotations

import asyncio
import random
import sys

from sqreal.server.client import Call, Client

SESSIONS = 4


async def _session(client: Client, name: str) -> None:
    draw, number = random.Random(name), 0
    await client.open_session(name)
    while True:
        new = [draw.randint(3, 511) for _ in range(draw.randint(1, 40))]
        call = Call(f"{name}{number}/", new, None, draw.randint(4, 60), session=name)
        answer = await client.generate(call)
        if number == 0:
            print("at work", flush=True)  # noqa: T201 - its parent waits for it
        if answer.meta["prompt_tokens"] > 400:
            return
        number += 1


async def _main(url: str, name: str) -> None:
    async with Client(url) as client:
        await asyncio.gather(*(_session(client, f"{name}{index}/") for index in range(SESSIONS)))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
