# SPDX-License-Identifier: Apache-2.0
"""The answer of a plan in words and numbers: the fewest GPUs, whether SideQuest is needed, and the bottleneck."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqsim.experiments.plan.bottleneck import bottleneck
from sqsim.experiments.plan.confidence import LEVEL, SOURCE, Confidence
from sqsim.experiments.plan.search import Load, Search
from sqsim.experiments.plan.slo import Slo, broken
from sqsim.record.evidence import each_once
from sqsim.scenario.labels import evicted_then_used_note, evicted_then_used_share

SCHEMA = "sqsim-plan/1"
MORE_REPLICAS = 2
"""Replicas beyond the fewest, up to which the confidence is computed."""

Assess = Callable[[Sequence[tuple[Search, int]]], list[Confidence | None]]


def answer(
    slos: Sequence[Slo],
    load: Load,
    searches: Sequence[Search],
    assess: Assess,
    prices: dict[str, float] | None,
    tensor_parallel: int,
) -> dict[str, Any]:
    """Build the content of plan.json, without the scenario."""

    def gpus(replicas: int | None) -> int | None:
        return None if replicas is None else replicas * tensor_parallel

    def cost(search: Search) -> float | None:
        if search.fewest is None or prices is None or search.gpu not in prices:
            return None
        return search.fewest * tensor_parallel * prices[search.gpu]

    def rank(search: Search) -> tuple[float, float, int]:
        """Rank by cost where prices are known, then by GPUs, then by the order of the searches."""
        assert search.fewest is not None, "only settings that serve are ranked"
        money = cost(search)
        return (money if money is not None else float("inf"), search.fewest, searches.index(search))

    serving = sorted(
        (each for each in searches if each.setting.deployable and each.fewest is not None), key=rank
    )
    free = next((each for each in serving if each.setting.free), None)
    sidequest = next((each for each in serving if each.setting.is_sidequest), None)
    best = serving[0] if serving else None
    # At equal cost and GPUs, a free setting is better.
    if free is not None and best is not None and rank(free)[:2] <= rank(best)[:2]:
        best = free
    shown = list(dict.fromkeys(each for each in (best, free, sidequest) if each is not None))
    confidences = _confidences(shown, assess, load)

    def entry(search: Search) -> dict[str, Any]:
        fewest, worst = search.fewest, search.bad[-1] if search.bad else None
        return {
            "setting": search.setting.name,
            "changes": search.setting.changes,
            "free": search.setting.free,
            "deployable": search.setting.deployable,
            "note": search.setting.note,
            "gpu": search.gpu,
            "error": search.error,
            "replicas": fewest,
            "gpus": gpus(fewest),
            "cost_per_h": cost(search),
            "share": None if fewest is None else load.on(fewest),
            "breaks_at": None if worst is None else load.on(worst),
            "bottleneck": _bottleneck(search),
            "sure": confidences.get(name(search)),
            "runs": [
                {
                    "replicas": replicas,
                    "share": load.on(replicas),
                    "key": found["key"],
                    "broken": broken(tuple(slos), found["metrics"]),
                    "metrics": found["metrics"],
                    "time_spent": found["time_spent"],
                }
                for replicas, found in sorted(search.runs.items())
            ],
        }

    return {
        "slo": [str(slo) for slo in slos],
        "asked": {"agents": load.agents, "tasks_per_h": load.tasks_per_h},
        "prices": prices,
        "tensor_parallel": tensor_parallel,
        "level": LEVEL,
        "uncertainty": SOURCE,
        "answer": None if best is None else name(best),
        "best_free": None if free is None else name(free),
        "best_sidequest": None if sidequest is None else name(sidequest),
        "sentences": _sentences(
            load, best, free, sidequest, confidences, searches, serving, tensor_parallel, cost
        ),
        "settings": [entry(search) for search in searches],
        "evidence": each_once(found["evidence"] for search in searches for found in search.runs.values()),
    }


def name(search: Search) -> str:
    """Name a search by its setting and GPU."""
    return f"{search.setting.name} on {search.gpu}"


def _kept(tried: Sequence[dict[str, Any]], fewest: int) -> str:
    """State how many draws kept the SLO at the fewest replicas, and at one less."""
    here = next((each for each in tried if each["replicas"] == fewest), None)
    less = next((each for each in tried if each["replicas"] == fewest - 1), None)
    if here is None:
        return "no draw could be run"
    beside = f" ({less['kept']} of {less['draws']} with one replica less)" if less else ""
    return f"{here['kept']} of {here['draws']} draws kept the SLO{beside}"


def _evicted_then_used(search: Search) -> str:
    """State the share of evicted cursors that is needed later, in brackets; empty where there is none."""
    assert search.fewest is not None
    return evicted_then_used_note(evicted_then_used_share(search.runs[search.fewest]["metrics"]))


def _bottleneck(search: Search) -> dict[str, str] | None:
    """Find the bottleneck at the highest share that broke the SLO, compared with the lightest share that was run."""
    if not search.bad:
        return None
    light, heavy = max(search.runs), search.bad[-1]
    lost = broken(search.slos, search.runs[heavy]["metrics"])
    outside = not all(name.startswith(_OF_REQUESTS) for name in lost)
    return bottleneck(search.runs[light], search.runs[heavy], outside=outside)._asdict()


_OF_REQUESTS = ("ttft_", "tpot_", "aux_ttft_")
"""Prefixes of metrics of single requests, which include no time of tools and users."""


def _confidences(shown: Sequence[Search], assess: Assess, load: Load) -> dict[str, Any]:
    """Compute, for each setting shown, draws around its fewest replicas, and the fewest of these with 95 % confidence."""
    found: dict[str, Any] = {}
    for search in shown:
        assert search.fewest is not None
        tried = range(max(1, search.fewest - 1), min(search.fewest + MORE_REPLICAS, load.most) + 1)
        results = dict(zip(tried, assess([(search, replicas) for replicas in tried]), strict=True))
        sure_with = [replicas for replicas, each in results.items() if each is not None and each.sure]
        kept = [each.kept for each in results.values() if each is not None]
        found[name(search)] = {
            "replicas": next((replicas for replicas in sure_with if replicas >= search.fewest), None),
            "steady": kept == sorted(kept),
            "tried": [
                {"replicas": replicas, "share": load.on(replicas), **each.to_json()}
                for replicas, each in results.items()
                if each is not None
            ],
        }
    return found


def _alone(lightest: Search | None, load: Load) -> str:
    """State the SLO's metrics at the lightest load that was run."""
    if lightest is None:
        return ""
    replicas = max(lightest.runs)
    metrics = lightest.runs[replicas]["metrics"]
    values = [(slo.metric, metrics.get(slo.metric)) for slo in lightest.slos]
    said = ", ".join(f"{name} is {'undefined' if value is None else f'{value:.4g}'}" for name, value in values)
    share = load.on(replicas)
    each = f"{share:g} agent{'' if share == 1 else 's'}" if load.agents else f"{share:.4g} tasks an hour"
    return f" With {each} on a replica, under {name(lightest)}, {said}."


def _sentences(
    load: Load,
    best: Search | None,
    free: Search | None,
    sidequest: Search | None,
    confidences: dict[str, Any],
    searches: Sequence[Search],
    serving: Sequence[Search],
    tensor_parallel: int,
    cost: Callable[[Search], float | None],
) -> list[str]:
    """Write the answer in sentences: whether SideQuest is needed, the GPUs, the bottleneck, the confidence."""
    carried = f"{load.agents} agents" if load.agents is not None else f"{load.tasks_per_h:g} tasks an hour"
    if best is None or best.fewest is None:
        lightest = max((each for each in searches if each.runs), key=lambda each: max(each.runs), default=None)
        reason = _bottleneck(lightest) if lightest is not None else None
        why = f" What binds is {reason['name']}: {reason['evidence']}." if reason else ""
        return [
            f"No number of GPUs keeps this SLO for {carried}, under any setting tried.{_alone(lightest, load)}{why}"
        ]

    def count(replicas: int) -> str:
        number = replicas * tensor_parallel
        return f"{number} GPU{'' if number == 1 else 's'}"

    def share(replicas: int) -> str:
        each = load.on(replicas)
        return f"{each:g} agents" if load.agents is not None else f"{each:.4g} tasks an hour"

    def said(search: Search) -> str:
        assert search.fewest is not None
        return f"{search.setting.name} on {search.gpu} needs {count(search.fewest)}{_evicted_then_used(search)}"

    if best is not free and best is not sidequest:
        first = f"Is SideQuest needed at all? No: {said(best)}."
    elif free is None:
        first = "Is SideQuest needed at all? Yes: no free setting keeps the SLO."
    elif sidequest is None:
        first = f"Is SideQuest needed at all? No: it does not keep the SLO, and {said(free)}."
    elif best is free:
        first = f"Is SideQuest needed at all? No: {said(free)}, and {said(sidequest)}."
    else:
        first = f"Is SideQuest needed at all? It saves GPUs: {said(sidequest)}, the best free setting, {said(free)}."
    lines = [first]
    harmless = next((each for each in serving if each.setting.free and not _evicted_then_used(each)), None)
    if free is not None and _evicted_then_used(free):
        lines.append(
            f"Of what evicts nothing that is needed, the best, {said(harmless)}."
            if harmless is not None
            else "No free setting that evicts nothing needed keeps the SLO."
        )
    money = cost(best)
    lines.append(
        f"{carried}: {count(best.fewest)} ({best.gpu}) with {best.setting.name}, {share(best.fewest)} on each"
        + (f", {money:,.2f} an hour" if money is not None else "")
        + "."
    )
    if best.bad:
        reason = _bottleneck(best)
        assert reason is not None
        lines.append(
            f"At {share(best.bad[-1])} on each the SLO breaks; {reason['name']} runs out first: {reason['evidence']}."
        )
    known = confidences.get(name(best))
    if known:
        kept = _kept(known["tried"], best.fewest)
        if known["replicas"] is None:
            lines.append(
                f"How sure: {kept}; up to {count(best.fewest + MORE_REPLICAS)} were tried and none is 95 % sure."
            )
        elif known["replicas"] == best.fewest:
            lines.append(f"How sure: {kept}, and 95 % of further draws would.")
        else:
            lines.append(f"How sure: {kept}; {count(known['replicas'])} to be 95 % sure.")
        if not known["steady"]:
            lines.append("The edge is not sharp: fewer GPUs kept the SLO in more draws than more GPUs did.")
    return lines
