# SPDX-License-Identifier: Apache-2.0
"""Real servers with sessions in place, under SGLang's strict checks of its memory, each beside its reference model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sqreal.server.server import ServerOptions, start
from tests.sqreal.reference_model import ReferenceModel
from tests.sqreal.served import POOL, Served

STRICT = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
}

RETRACTS = {
    "SGLANG_TEST_RETRACT": "1",  # one of those that run is retracted in every 29th step, whether or not memory is short;
    "SGLANG_TEST_RETRACT_INTERVAL": "29",
    "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": "10",  # what others reserve then is forgotten soon, so that memory is, too
}

CORES = {"rust": "RustUnifiedTreeCore", "python": "UnifiedTreeCore"}
"""SGLang's two radix trees, by SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND, and what its log calls them; 0.5.16 has one, unnamed."""


@contextmanager
def serving(
    model: Path,
    reference: ReferenceModel,
    *,
    directory: Path,
    page: int,
    dtype: str = "float32",
    pool: int = POOL,
    scored: bool = False,
    core: str = "rust",
    max_running: int = 8,
    chats: bool = False,
    retracts: bool = False,
) -> Iterator[Served]:
    """A server of the model with `pool` tokens of KV and context; its own checks end it where its books are wrong.

    `retracts`: requests reserve next to nothing of what they are going to say, and are retracted with cause and without.
    `scored`: outputs are forced. `chats`: it reads and writes text, with the model's tokenizer. `core`: of the radix tree, rust or python; that it is the one is read from its log.
    """
    options = ServerOptions(
        model=model,
        dtype=dtype,
        kv_capacity=pool,
        max_running=max_running,
        context_length=pool,
        page_size=page,
        chunked_prefill=64,
        schedule_conservativeness=0.2 if retracts else 1.0,
        in_place=True,
        skip_tokenizer=not chats,
    )
    log, said = directory / "steps.jsonl", directory / "server.log"
    with pytest.MonkeyPatch.context() as patch:
        told = {**STRICT, **(RETRACTS if retracts else {}), "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": core}
        for name, value in told.items():
            patch.setenv(name, value)
        with start(options, force_tokens=scored, step_log=log, log_path=said) as server:
            tree = re.search(r"Tree Core: (\w+)|Init Unified RadixTree with", said.read_text())
            assert tree is not None
            assert tree[1] == (None if server.info.version == "0.5.16" else CORES[core])
            served = Served(server.url, reference, page, log, server, pool=pool, scored=scored)
            yield served
            server.check()
            print(f"\n{model.parent.name}, pages of {page}, {dtype}, {core} core: {served}")  # noqa: T201
