# SPDX-License-Identifier: Apache-2.0
"""Measure a real SGLang: decode steps by batch and context, prefill cold and after a prefix, at gpt-oss-20b's shapes.

    python benchmarks/gpu/serve.py -o serve.jsonl              # on a GPU; under 7 minutes, a line as soon as it is measured
    python benchmarks/gpu/serve.py --rehearse -o serve.jsonl   # the same in small on a CPU, with tiny gpt-oss

Weights are random (only a config.json is needed), routers spread over all experts. The first line holds the conditions: GPU,
versions, backends as the server resolved them, KV capacity. Each other line is one measurement, in seconds; `sqsim calibrate` reads
the file. Runs without a network. What does not fit into the budget is named in the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import httpx

from sqreal.plugin.versions import TESTED_VERSIONS
from sqreal.server.server import Server, ServerOptions, start
from sqreal.setup.install import cuda_devices
from sqreal.setup.tiny_models import TINY_MODELS, write_tiny_model
from sqsim.models.cost.known_models import KNOWN_MODELS

SCHEMA = "sqreal-serve/1"
LAUNCHER = (sys.executable, "-m", "sglang.launch_server")
ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
UNPACKED = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
"""What openai/gpt-oss-20b's config.json says of positions, and of what is not in MXFP4."""
STOPPING_S = 15.0  # kept of the budget for stopping the server


@dataclass(frozen=True, slots=True)
class Grid:
    """Sizes to measure, in tokens, the most informative first."""

    model: str
    batches: tuple[int, ...]
    contexts: tuple[int, ...]  # rising: each is the beginning of the next, so that its KV is there already
    prefills: tuple[int, ...]
    decoded: int  # tokens a request in a decode measurement
    interval: int  # tokens between two events of a stream
    repeats: int


FULL = Grid(
    "gpt-oss-20b", (64, 36, 24, 16, 8, 1), (4096, 16384, 25600), (512, 1024, 2048, 4096, 8192), 160, 16, 3
)
SMALL = Grid("tiny-gpt-oss", (4, 1), (64, 256), (32, 128), 96, 16, 2)
GPUS = {"H100": "h100-sxm", "H200": "h200-sxm", "A100": "a100-sxm-80gb", "B200": "b200-sxm"}


class Bench:
    """Client of one server; a prompt is new, or a beginning of one of its random sequences."""

    def __init__(self, server: Server, grid: Grid, http: httpx.AsyncClient) -> None:
        self._server, self._grid, self._http = server, grid, http
        self._vocabulary = int(KNOWN_MODELS[grid.model]["vocab_size"])  # type: ignore[call-overload]
        self._fresh = 0

    def tokens(self, name: object, count: int) -> list[int]:
        draw = random.Random(f"{name}")
        return [draw.randrange(3, self._vocabulary) for _ in range(count)]

    async def request(self, ids: list[int], count: int) -> list[tuple[float, int]]:
        """Return the time of each event of a stream since its submission, and the tokens received by then."""
        sampling = {
            "temperature": 0.0,
            "max_new_tokens": count,
            "ignore_eos": True,
            "stream_interval": self._grid.interval,
        }
        body = {"input_ids": ids, "sampling_params": sampling, "stream": True}
        began, seen = time.perf_counter(), []
        async with self._http.stream("POST", "/generate", json=body) as stream:
            stream.raise_for_status()
            async for line in stream.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RuntimeError(f"the server refused a request: {event['error']}")
                    seen.append((time.perf_counter() - began, int(event["meta_info"]["completion_tokens"])))
        return seen

    async def decode(self, batch: int, context: int) -> dict[str, Any]:
        """Return seconds per step while all requests of a batch decode, after prefill of their prompts."""
        prompts = [self.tokens(("context", index), self._grid.contexts[-1])[:context] for index in range(batch)]
        filling = time.perf_counter()
        await asyncio.gather(*(self.request(ids, 1) for ids in prompts))
        filled_s = time.perf_counter() - filling
        origin = time.perf_counter()
        offsets: list[float] = []

        async def timed(ids: list[int]) -> list[tuple[float, int]]:
            offsets.append(time.perf_counter() - origin)
            offset = offsets[-1]
            return [(offset + at, count) for at, count in await self.request(ids, self._grid.decoded)]

        streams = await asyncio.gather(*(timed(ids) for ids in prompts))
        begin = max(stream[0][0] for stream in streams)  # the last one's first token
        end = min(stream[-1][0] for stream in streams)  # the first one's last token
        rates = []
        for stream in streams:
            inside = [event for event in stream if begin <= event[0] <= end]
            if len(inside) > 1:
                (t0, n0), (t1, n1) = inside[0], inside[-1]
                rates.append((t1 - t0) / (n1 - n0))
        if not rates:
            return {
                "kind": "skipped",
                "what": f"decode {batch} x {context}",
                "why": "the requests did not overlap",
            }
        mean_context = context + self._grid.decoded // 2
        return {
            "kind": "decode",
            "requests": batch,
            "context_tokens": mean_context,
            "step_s": median(rates),
            "filled_s": filled_s,
        }

    async def prefill(self, new: int, prefix: int) -> dict[str, Any]:
        """Return seconds to the first token of a prompt of `new` tokens after a cached prefix; HTTP included."""
        took = []
        for _ in range(self._grid.repeats):
            self._fresh += 1
            ids = self.tokens(("context", 0), self._grid.contexts[-1])[:prefix] + self.tokens(
                ("new", self._fresh), new
            )
            took.append((await self.request(ids, 1))[0][0])
        return {
            "kind": "prefill",
            "new_tokens": new,
            "prefix_tokens": prefix,
            "seconds": median(took),
            "all": took,
        }

    def plan(self) -> Iterator[tuple[str, Any]]:
        """Yield the measurements in order; leave out batches that the pool cannot hold."""
        grid = self._grid
        for new in grid.prefills:
            yield f"prefill {new} cold", lambda new=new: self.prefill(new, 0)
        for context in grid.contexts:
            room = int(0.95 * self._server.info.kv_capacity) // (context + grid.decoded)
            for batch in grid.batches:
                if batch <= min(room, self._server.info.max_running):
                    yield f"decode {batch} x {context}", lambda b=batch, c=context: self.decode(b, c)
            for new in grid.prefills[::2]:
                yield f"prefill {new} behind {context}", lambda n=new, c=context: self.prefill(n, c)


async def measure(server: Server, grid: Grid, out: TextIO, until: float) -> None:
    """Write a line per measurement until the time is up; the last line lists the measurements left out."""
    async with httpx.AsyncClient(base_url=server.url, timeout=300, trust_env=False) as http:
        bench = Bench(server, grid, http)
        for count in (1, 2, min(8, grid.batches[0])):  # compile and warm up, unmeasured
            await asyncio.gather(
                *(bench.request(bench.tokens(("warm", count, n), 48), 8) for n in range(count))
            )
        left = []
        slowest = 0.0
        for what, run in bench.plan():
            if time.perf_counter() + slowest > until:
                left.append(what)
                continue
            began = time.perf_counter()
            row = await run()
            slowest = max(slowest, time.perf_counter() - began)
            write(out, row)
        write(out, {"kind": "end", "left_out_for_time": left})


def write(out: TextIO, row: dict[str, Any]) -> None:
    """Write one line to disk at once."""
    out.write(json.dumps(row) + "\n")
    out.flush()
    print(json.dumps(row), flush=True)


def conditions(server: Server, grid: Grid, gpu: str, device: str) -> dict[str, Any]:
    info = server.info
    resolved = {
        key: info.raw.get(key)
        for key in (
            "attention_backend",
            "moe_runner_backend",
            "quantization",
            "cuda_graph_max_bs",
            "mem_fraction_static",
        )
    }
    return {
        "schema": SCHEMA,
        "model": grid.model,
        "gpu": gpu,
        "device": device,
        "weights": "random, routers spread" if server.options and server.options.spread_router else "random",
        "server": {
            "device": info.device,
            "dtype": info.dtype,
            "attention_backend": info.raw.get("attention_backend"),
        },
        "resolved": resolved,
        "kv_dtype": info.kv_dtype,
        "kv_capacity_tokens": info.kv_capacity,
        "swa_capacity_tokens": info.swa_capacity,
        "versions": {
            "sglang": info.version,
            **{name: installed(name) for name in ("torch", "triton", "transformers")},
        },
        "load_average": os.getloadavg()[0],
    }


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def options(
    grid: Grid, work: Path, *, rehearse: bool, attention: str | None, bf16: bool, spread: bool
) -> ServerOptions:
    if rehearse:
        model = write_tiny_model(grid.model, work / grid.model)
        return ServerOptions(
            model,
            load_format="dummy",
            kv_capacity=4096,
            max_running=8,
            context_length=2048,
            spread_router=spread,
        )
    model = work / grid.model
    model.mkdir()
    config = {**TINY_MODELS["tiny-gpt-oss"], **KNOWN_MODELS[grid.model], "rope_scaling": ROPE}
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": UNPACKED}
    if bf16:
        del config["quantization_config"]
    (model / "config.json").write_text(json.dumps(config))
    return ServerOptions(
        model,
        device="cuda",
        load_format="dummy",
        dtype="bfloat16",
        attention_backend=attention,
        max_running=64,
        context_length=40_960,
        spread_router=spread,
        extra=("--cuda-graph-max-bs", "64"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--budget", type=float, default=400.0, help="seconds in all")
    parser.add_argument("--attention", default=None, help="an attention backend of SGLang's, e.g. triton")
    parser.add_argument(
        "--bf16", action="store_true", help="experts in bfloat16; else in MXFP4, as the checkpoint"
    )
    given = parser.parse_args()
    until = time.perf_counter() + given.budget - STOPPING_S
    grid = SMALL if given.rehearse else FULL
    devices = cuda_devices()
    if not given.rehearse and not devices:
        sys.exit("no CUDA device is found on this machine; try --rehearse")
    device = "cpu" if given.rehearse else devices[0]
    gpu = "cpu" if given.rehearse else next((name for key, name in GPUS.items() if key in device), device)
    spread = installed("sglang") in TESTED_VERSIONS  # the plugin loads on tested versions only
    with tempfile.TemporaryDirectory() as work, given.output.open("x", encoding="utf-8") as out:
        how = options(
            grid,
            Path(work),
            rehearse=given.rehearse,
            attention=given.attention,
            bf16=given.bf16,
            spread=spread,
        )
        with start(how, launcher=LAUNCHER, deadline_s=given.budget / 2) as server:
            write(out, conditions(server, grid, gpu, device))
            asyncio.run(measure(server, grid, out, until))


if __name__ == "__main__":
    main()
