# SPDX-License-Identifier: Apache-2.0
"""Warm-up of a server before anything is measured."""

from __future__ import annotations

import asyncio
import secrets

from sqreal.replay.run_context import check
from sqreal.replay.token_ids import RESERVED
from sqreal.server.client import Call, Client
from sqsim.models.serving.limits import Limits

_REQUESTS, _PROMPT, _OUTPUT = 8, 96, 8


async def warm_up(client: Client, limits: Limits, vocabulary: int) -> None:
    """Compile and fill what the first requests would wait for, check that tokens are forced, then flush the cache.

    A FaithError: the server's output is not the forced one, so no recording can be replayed on it.
    """
    prompt = min(_PROMPT, limits.context_length // 4, limits.kv_capacity // 4)
    ids = range(RESERVED, vocabulary)
    mark = secrets.token_hex(4)  # unique, as RunContext.rid

    async def one(number: int, at_once: int) -> None:
        sent = [ids[(number * 31 + index) % len(ids)] for index in range(prompt)]
        forced = [*(ids[(number + index) % (len(ids) - 1)] for index in range(_OUTPUT - 1)), ids[-1]]
        call = Call(f"{mark}/warm{at_once}.{number}/", sent, forced, _OUTPUT + 1)
        check(call, await client.generate(call))

    at_once = min(_REQUESTS, limits.max_running, limits.kv_capacity // (2 * prompt))
    for several in sorted({1, max(1, at_once)}):
        await asyncio.gather(*(one(number, several) for number in range(several)))
    await client.flush_cache()
