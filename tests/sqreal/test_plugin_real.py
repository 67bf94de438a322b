# SPDX-License-Identifier: Apache-2.0
"""The plugin in a real SGLang: its internals are as tested, outputs are the forced ones, the step log is exact."""

import asyncio
import gzip
import json
import subprocess

import httpx
import pytest
from forced_runs import Ask, conversations, crowd, generate, ids, output, run

from sqreal.errors import ServerDiedError
from sqreal.server.options import ServerOptions
from sqreal.server.server import start
from sqreal.setup.install import require_sglang, server_python
from sqreal.setup.tiny_models import write_tiny_model
from sqsim.fidelity.lockstep import replay

pytestmark = pytest.mark.real

WINDOW = 127  # of tiny gpt-oss, as in gpt-oss: 128 with the token itself


def options(tmp_path, model, **changes):
    directory = write_tiny_model(model, tmp_path / model)
    common = {
        "load_format": "dummy",
        "dtype": "float32",
        "max_running": 16,
        "context_length": 2048,
        "chunked_prefill": 32,
        "schedule_conservativeness": 0.05,  # admits more than fits, so that requests are retracted
    }
    return ServerOptions(model=directory, **{**common, **changes})


def events(schedule):
    with gzip.open(schedule / "steps.jsonl.gz", "rt") as log:
        return [json.loads(line) for line in log]


def check(outcome, asks, aborted=()):
    """Every output token is the forced one, and the schedule is what the model of the scheduler does with it."""
    said = outcome.said()
    for ask in asks:
        cut = ask.rid in aborted
        assert outcome.ended(ask.rid) == ("abort" if cut else "stop")
        assert said[ask.rid] == (ask.forced[: len(said[ask.rid])] if cut else ask.forced)
    report = replay(outcome.schedule)
    assert [str(difference) for difference in report.differences] == []
    logged = [event for event in events(outcome.schedule) if event["ev"] == "step"]
    assert report.batches == len(logged)
    if aborted:  # one that is aborted while it waits again does not say that it was retracted
        assert outcome.total("num_retractions") <= report.retractions
    else:
        assert outcome.total("num_retractions") == report.retractions
    return report, logged


def chunks(steps):
    return sum(test.get("chunk", False) for step in steps for test in step.get("adm", ()))


# Overlap and gpt-oss are also what test_laws_real.py runs on, with every output held against its recording.
@pytest.mark.parametrize("overlap", [pytest.param(True, marks=pytest.mark.long), False])
def test_forced_under_contention(tmp_path, overlap):
    """A pool too small: chunked prefills, evicted prefixes and retractions."""
    extra = () if overlap else ("--disable-overlap-schedule",)
    log, asks = tmp_path / "steps.jsonl", crowd(16, cap=160)
    with start(
        options(tmp_path, "tiny-llama", kv_capacity=1000, extra=extra), force_tokens=True, step_log=log
    ) as server:
        report, steps = check(run(server.url, log, asks, tmp_path / "crowd"), asks)
        assert report.retractions > 0
        assert report.evicted_leaves > 0
        assert chunks(steps) > 0
        talks = conversations(6, 4, cap=60, session=False)
        report, _ = check(run(server.url, log, talks, tmp_path / "talks"), talks)
        assert report.evicted_leaves > 0
        asks = crowd(10, cap=300, seed=5)
        longest = sorted(asks, key=lambda ask: len(ask.forced))[-3:]
        aborts = {ask.rid: at for ask, at in zip(longest, (0.1, 0.2, 0.5), strict=True)}
        outcome = run(server.url, log, asks, tmp_path / "aborts", aborts=aborts)
        cut = {rid for rid in aborts if outcome.ended(rid) == "abort"}
        assert cut, "each of them was over before it was aborted"
        check(outcome, asks, cut)
        assert cut <= {event["rid"] for event in events(outcome.schedule) if event["ev"] == "abort"}
        asyncio.run(_refusals_and_streams(server.url))
        server.check()


async def _refusals_and_streams(url):
    """A request that cannot be forced is refused by name, the server serves on; what is not forced is free."""
    ask = Ask("x", ids("x", 20), output("x", 5), 8)
    wrong = {"sqreal_n_in": 19}, {"sqreal_force": "abc"}, {"sqreal_force": [5, 2, 7]}, {"sqreal_force": [5, 6]}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        for force in wrong:
            with pytest.raises(RuntimeError, match=r"x: 400 .*sqreal_force: "):
                await generate(http, ask, **force)
        assert (await generate(http, ask))["output_ids"] == list(ask.forced)
        sampling = {"max_new_tokens": 8, "temperature": 0, "stop_token_ids": [2]}
        forced = {**sampling, "custom_params": {"sqreal_force": ask.forced, "sqreal_n_in": 20}}
        body = {"input_ids": ask.context, "sampling_params": forced, "stream": True}
        async with http.stream("POST", "/generate", json=body) as stream:
            lines = [line async for line in stream.aiter_lines() if line.startswith("data: {")]
        assert json.loads(lines[-1].removeprefix("data: "))["output_ids"] == list(ask.forced)
        free = (
            await http.post("/generate", json={"input_ids": ask.context, "sampling_params": sampling})
        ).json()
        assert free["output_ids"] != list(ask.forced)


def test_forced_with_pages_sessions_and_mixed_batches(tmp_path):
    """Page size 16, prefill chunks in one batch with decoding rows, sessions beside plain requests."""
    log = tmp_path / "steps.jsonl"
    how = options(
        tmp_path,
        "tiny-llama",
        kv_capacity=2080,
        page_size=16,
        streaming_sessions=True,
        extra=("--enable-mixed-chunk",),
    )
    with start(how, force_tokens=True, step_log=log) as server:
        asks = crowd(32, cap=160)
        report, steps = check(run(server.url, log, asks, tmp_path / "crowd"), asks)
        assert report.retractions > 0
        assert any(step["mode"] == "mixed" for step in steps)
        asks = conversations(3, 4, cap=60, session=True) + crowd(8, cap=60, seed=3)
        _, steps = check(run(server.url, log, asks, tmp_path / "sessions"), asks)
        assert any(len(step["post"].get("sess", ())) == 3 for step in steps)


@pytest.mark.long
def test_forced_gpt_oss(tmp_path):
    """Sinks, sliding windows, two pools: on a CPU with the plugin's attention."""
    log = tmp_path / "steps.jsonl"
    how = options(tmp_path, "tiny-gpt-oss", dtype="bfloat16", kv_capacity=1400, streaming_sessions=True)
    with start(how, force_tokens=True, step_log=log) as server:
        assert "CPU attention on" in server.log_path.read_text()
        assert server.info.swa_capacity == 1120
        asks = crowd(16, cap=160)
        report, steps = check(run(server.url, log, asks, tmp_path / "crowd", window=WINDOW), asks)
        assert report.retractions > 0
        assert chunks(steps) > 0
        asks = conversations(2, 4, cap=40, session=True) + conversations(3, 3, cap=40, session=False, seed=1)
        check(run(server.url, log, asks, tmp_path / "talks", window=WINDOW), asks)


def test_what_cannot_be_done_ends_the_server(tmp_path):
    """SGLang goes on when a plugin fails; here it must not."""
    log = tmp_path / "steps.jsonl"
    log.write_text("an older run\n")
    with (
        pytest.raises(ServerDiedError, match="exists already"),
        start(options(tmp_path, "tiny-llama", kv_capacity=1000), force_tokens=True, step_log=log),
    ):
        pass
    assert log.read_text() == "an older run\n"


CONTRACT = """
import json, pkgutil
from pathlib import Path
from sqreal.plugin import admission, chat_request, cpu_attention, forced_tokens, generate_request, in_place, no_sessions
from sqreal.plugin import recorder, server_check, session_cache, spread_router, step_log
from sqreal.plugin import start_hook
from sqreal.plugin.versions import adapter
from sqreal.plugin.hooks import Need, faults

hooks = [start_hook(None), *adapter().info_hooks(), *admission.Admission().hooks(), *in_place.HOOKS, *chat_request.HOOKS, *generate_request.HOOKS, *no_sessions.HOOKS, *forced_tokens.HOOKS, *spread_router.HOOKS, *step_log.StepLog(Path("unused")).hooks(), *recorder.Recorder(Path("unused"), 1).hooks()]
needs = [*session_cache.NEEDS, *admission.NEEDS, *in_place.NEEDS, *chat_request.NEEDS, *generate_request.NEEDS, *no_sessions.NEEDS, *server_check.NEEDS, *forced_tokens.NEEDS, *step_log.NEEDS, *recorder.NEEDS, *cpu_attention.NEEDS]
clean = faults(hooks, needs)
unseen = []
for hook in hooks:  # another parameter, then another name
    owner, _, name = hook.method.rpartition(".")
    owner = pkgutil.resolve_name(owner)
    original = vars(owner)[name]
    setattr(owner, name, lambda self, other: None)
    unseen += [] if faults([hook], []) else [f"{hook.method} changed"]
    delattr(owner, name)
    unseen += [] if faults([hook], []) else [f"{hook.method} removed"]
    setattr(owner, name, original)
for need in needs:
    odd = [f"{name}_renamed" for name in need.names.split()]
    unseen += [need.owner] if len(faults([], [Need(need.owner, " ".join(odd))])) != len(odd) else []
print(json.dumps({"clean": clean, "unseen": unseen, "left": faults(hooks, needs), "hooks": len(hooks)}))
"""


def in_sglang(code, tmp_path):
    """Run code as a server would be run; its last line is JSON. In a process of its own: SGLang changes much."""
    environment = options(tmp_path, "tiny-llama").environment(force_tokens=False, step_log=None)
    done = subprocess.run(
        [server_python(), "-c", code],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_internals_are_as_tested(tmp_path):
    """Each method that is touched has its signature, each attribute that is read its name; a change of any is seen."""
    found = in_sglang(CONTRACT, tmp_path)
    assert found == {
        "clean": [],
        "unseen": [],
        "left": [],
        "hooks": {"0.5.16": 52, "0.5.23": 51}[require_sglang()],
    }


SECOND_IN_CHUNKS = {
    "0.5.16": """
from sqreal.plugin.versions.sglang_0_5_16.scheduling import one_in_chunks

def asked(chunked, before, now):
    tokens = SimpleNamespace(full_untruncated_fill_ids=range(100 if chunked else 10), prefix_indices=(), last_node=None)
    adder = SimpleNamespace(
        new_chunked_req=now, rem_chunk_tokens=64, is_hybrid_swa=False,
        ceil_paged_tokens=lambda n: n, _lock_node=lambda node: nullcontext(),
    )
    return one_in_chunks(lambda *_: "let in", adder, tokens, before, None)
""",
    "0.5.23": """
from sglang.srt.managers.schedule_policy import _PrefillAdmission
from sqreal.plugin.versions.sglang_0_5_23.scheduling import one_in_chunks

def asked(chunked, before, now):
    def original(*_, **__):
        return _PrefillAdmission(0, 40, 0, chunked, 0)
    return one_in_chunks(original, SimpleNamespace(new_chunked_req=now), "a request", has_chunked_req=before)
""",
}
"""Asked to let in a prompt that would, or would not, be `chunked`; another was begun in a pass `before`, or `now`, in this one."""

ASK = """
import json
from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace
from sglang.srt.managers.schedule_policy import AddReqResult
{asked}
print(json.dumps([
    [chunked, before, now, asked(chunked, before, "another" if now else None) is AddReqResult.OTHER]
    for chunked, before, now in product((False, True), repeat=3)
]))
"""


def test_a_second_prompt_in_chunks_waits(tmp_path):
    """With SGLang's own types. The law on gpt-oss in chunks ran into it (`test_laws_real.py`)."""
    for chunked, before, now, waits in in_sglang(
        ASK.format(asked=SECOND_IN_CHUNKS[require_sglang()]), tmp_path
    ):
        assert waits == (chunked and (before or now))


ATTENTION = """
import json, torch
from sqreal.plugin.cpu_attention import attend

torch.manual_seed(0)
worst = 0.0
for heads, kv_heads, queries, context, window, with_sinks in [
    (4, 4, 7, 7, None, False), (4, 2, 5, 19, None, True), (8, 2, 1, 40, 8, True), (4, 1, 9, 30, 4, False), (2, 2, 6, 6, 0, True)
]:
    q = torch.randn(queries, heads, 16)
    k, v = torch.randn(context, kv_heads, 16), torch.randn(context, kv_heads, 12)
    sinks = torch.randn(heads) if with_sinks else None
    expected = torch.empty(queries, heads, 12)
    for i in range(queries):  # by the definition, one query and head at a time
        for h in range(heads):
            at = context - queries + i
            seen = range(0 if window is None else max(0, at - window), at + 1)
            scores = torch.stack([(q[i, h] @ k[j, h * kv_heads // heads]) * 0.25 for j in seen]).exp()
            total = scores.sum() + (sinks[h].exp() if with_sinks else 0)
            expected[i, h] = sum(s / total * v[j, h * kv_heads // heads] for s, j in zip(scores, seen))
    found = attend(q, k, v, scaling=0.25, window=window, sinks=sinks)
    worst = max(worst, (found - expected.reshape(queries, -1)).abs().max().item())
print(json.dumps(worst))
"""


def test_attention_is_what_its_definition_says(tmp_path):
    assert in_sglang(ATTENTION, tmp_path) < 1e-5


SPREAD = """
import json, torch
from sqreal.plugin.spread_router import spread

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.other = torch.nn.Linear(32, 8), torch.nn.Linear(32, 8)

model = torch.nn.Sequential(Layer(), Layer())
other = model[0].other.weight.clone()
changed = spread(model)
tokens = torch.nn.functional.normalize(torch.randn(4096, 32, generator=torch.Generator().manual_seed(1)))
chosen = model[1].router(tokens).topk(2).indices.flatten().bincount(minlength=8)
print(json.dumps([changed, bool((model[0].other.weight == other).all()), chosen.min().item() / chosen.max().item()]))
"""


def test_spread_routers_use_all_experts_and_change_nothing_else(tmp_path):
    changed, kept, evenness = in_sglang(SPREAD, tmp_path)
    assert (changed, kept) == (4, True)
    assert evenness > 0.3
