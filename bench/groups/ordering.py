"""What the dispatch order makes of arrivals beside plain policies and an oracle, and how fast it decides. Pure: no servers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from aetherium.launcher import nats
from bench import traces
from bench.clairvoyant import least_makespan_s
from bench.traces import Trace
from services.scheduler.ordering.fair import fair
from services.scheduler.ordering.references import Policy, fifo, grouped, oldest_first
from services.scheduler.ordering.simulate import simulate

Runs = dict[str, list[float]]
Case = tuple[Trace, int]  # arrivals, and how many calls the card answers at once
Ratios = dict[str, dict[Case, float]]  # of each figure
SLOTS = (1, 4)
SEEDS = (1, 2, 3)  # of made arrivals, where there are no recorded ones


async def measure(quick: bool) -> tuple[Runs, dict[str, Any]]:
    folder = traces.folder()
    known = list(traces.recorded(folder)) if folder is not None else [traces.made(kind, seed) for kind in traces.KINDS for seed in SEEDS]
    if quick:
        known = [next(each for each in known if each.kind == kind) for kind in dict.fromkeys(each.kind for each in known)]
    cases = [(trace, slots) for trace in known for slots in SLOTS]
    ratios, plain = compared(cases)
    runs = {figure: [max(each.values())] for figure, each in ratios.items()}
    runs |= {f"floor_{figure}": [max(each.values())] for figure, each in plain.items()}
    for _ in range(1 if quick else 3):
        runs.setdefault("ordering_decisions_per_s", []).append(_decisions_per_s(cases, fair))
        runs.setdefault("floor_ordering_decisions_per_s", []).append(_decisions_per_s(cases, grouped))
    ours = [simulate(trace.arrivals, concurrency=slots) for trace, slots in cases]
    return runs, {
        "decisions_that_act": round(sum(len(each.decisions) for each in ours) / sum(each.asked for each in ours), 3),
        "nats": ".".join(map(str, nats.version(nats.binary()))),
        "arrivals": "made from seeds" if folder is None else "recorded",
        "traces": [trace.name for trace in known],
        "worst_at": {figure: _named(max(each, key=each.__getitem__)) for figure, each in ratios.items()},
        "worst_median_of_a_kind": {figure: round(max(_medians(each)), 3) for figure, each in ratios.items()},
    }


def compared(cases: Sequence[Case]) -> tuple[Ratios, Ratios]:
    """The figures of the engine's policy by case, and those of the plainest fair one: the oldest call's model until nothing waits for it.

    A wait can't be made shorter where all came at once, and order of arrival falls behind only where calls come whatever the
    card does: other traces have no part in those figures.
    """
    ours, plain = Ratios(), Ratios()
    for case in cases:
        trace, slots = case
        references = {policy: simulate(trace.arrivals, policy, concurrency=slots) for policy in (grouped, fifo)}
        least_s = least_makespan_s(trace.arrivals) if trace.is_open and slots == 1 else None
        for into, policy in ((ours, fair), (plain, oldest_first)):
            one = simulate(trace.arrivals, policy, concurrency=slots)
            into.setdefault("swaps_vs_grouped", {})[case] = one.swaps / references[grouped].swaps
            if trace.kind != "burst":
                into.setdefault("max_wait_vs_grouped", {})[case] = one.max_wait_s / references[grouped].max_wait_s
            if trace.kind in traces.RATES:
                into.setdefault("p95_wait_ratio_vs_fifo", {})[case] = one.p95_wait_s / references[fifo].p95_wait_s
            if least_s is not None:
                into.setdefault("makespan_vs_clairvoyant", {})[case] = one.makespan_s / least_s
    return ours, plain


def _named(case: Case) -> str:
    trace, slots = case
    return f"{trace.name}, {slots} at once"


def _medians(ratios: Mapping[Case, float]) -> list[float]:
    """Of each kind and number of slots, the median over its seeds."""
    kinds: dict[tuple[str, int], list[float]] = {}
    for (trace, slots), ratio in ratios.items():
        kinds.setdefault((trace.kind, slots), []).append(ratio)
    return [float(median(each)) for each in kinds.values()]


def _decisions_per_s(cases: Sequence[Case], policy: Policy) -> float:
    """Per second of CPU (it waits for nothing, and a neighbour on the machine is not its cost), with all that is between two decisions:
    facts folded into the desk and the simulation. "Nothing now" is an answer too, and as dear as another."""
    began = time.process_time()
    count = sum(simulate(trace.arrivals, policy, concurrency=slots).asked for trace, slots in cases)
    return count / (time.process_time() - began)
