"""What is measured: each figure with its unit, its floor, its target and what peers reach (ARCHITECTURE §12). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Figure:
    """One number about the engine. `better` says which way is good."""

    name: str
    group: str  # what measures it: a module of `bench.groups`
    unit: str
    what: str
    target: float | None = None
    floor: str | None = None  # the figure that bounds it from the good side
    peer: str = ""
    better: str = "lower"

    @property
    def is_floor(self) -> bool:
        return self.name.startswith("floor_")

    def meets(self, value: float) -> bool | None:
        if self.target is None:
            return None
        return value <= self.target if self.better == "lower" else value >= self.target


FIGURES: tuple[Figure, ...] = (
    Figure("floor_append_p50_ms", "effects", "ms", "one fsynced append, plain nats-py"),
    Figure("floor_request_p50_ms", "effects", "ms", "one request to another process and its reply, plain nats-py"),
    Figure("floor_effect_p50_ms", "effects", "ms", "two fsynced appends across two processes, plain nats-py"),
    Figure("floor_cpu_ms_per_effect", "effects", "ms", "CPU of the same, both processes and nats-server"),
    Figure("floor_appends_per_s_50", "effects", "1/s", "fsynced appends by 50 writers of one process, plain nats-py", better="higher"),
    Figure(
        "effect_p50_ms",
        "effects",
        "ms",
        "a durable effect of one run: request and answer are facts, the answer comes from another process",
        2.0,
        "floor_effect_p50_ms",
        "2.0 LangGraph + PostgreSQL in one process (one fact), 3.4 DBOS, 51 Temporal",
    ),
    Figure("effect_p99_ms", "effects", "ms", "the same, 99th percentile", None, "floor_effect_p50_ms"),
    Figure(
        "effects_per_s_50_runs",
        "effects",
        "1/s",
        "durable effects of 50 runs at the same time",
        1300.0,
        "floor_appends_per_s_50",
        "673 LangGraph, 263 DBOS (one fact each)",
        "higher",
    ),
    Figure(
        "cpu_ms_per_effect",
        "effects",
        "ms",
        "CPU of an effect with 50 runs: orchestrator, answering process and nats-server",
        1.5,
        "floor_cpu_ms_per_effect",
        "1.7 LangGraph",
    ),
    Figure("floor_fold_10k_ms", "history", "ms", "a bare read of 10,000 messages, plain nats-py"),
    Figure(
        "fold_10k_ms",
        "history",
        "ms",
        "read and fold a run of 10,000 facts",
        400.0,
        "floor_fold_10k_ms",
        "163 LangGraph DeltaChannel, 110 DBOS (its replay 13 s)",
    ),
    Figure("floor_index_2000_ms", "history", "ms", "index the facts of the run below, without its code"),
    Figure(
        "replay_2000_steps_ms",
        "history",
        "ms",
        "re-execute the code of a 2,000-step run against its facts",
        1500.0,
        "floor_index_2000_ms",
        "13,000 DBOS (10,000 steps)",
    ),
    Figure("floor_log_bytes_per_step", "history", "bytes", "the bodies alone of a step's facts, as JSON"),
    Figure(
        "log_bytes_per_step",
        "history",
        "bytes",
        "bytes of the log on disk for each step of a 2,000-step run",
        3072.0,
        "floor_log_bytes_per_step",
        "56,000 LangGraph (square)",
    ),
    Figure("floor_http_p50_ms", "scheduling", "ms", "a streamed model call made directly with httpx"),
    Figure("scheduler_call_p50_ms", "scheduling", "ms", "the same call through the scheduler, from fact stored to fact stored"),
    Figure(
        "scheduler_overhead_p50_ms",
        "scheduling",
        "ms",
        "what the scheduler adds to the call",
        3.0,
        "floor_http_p50_ms",
        "7 LiteLLM (published)",
    ),
    Figure("floor_leased_http_p50_ms", "scheduling", "ms", "a streamed model call made directly with httpx, beside the following"),
    Figure("dispatch_call_p50_ms", "scheduling", "ms", "the same call on a leased slot that has the model loaded"),
    Figure(
        "dispatch_overhead_p50_ms",
        "scheduling",
        "ms",
        "what lease, dispatch order and scheduler add to the call",
        3.0,
        "floor_leased_http_p50_ms",
    ),
    Figure("floor_arbiter_folds_per_s", "arbiter", "1/s", "the same day's facts only folded, for each of its decisions", better="higher"),
    Figure(
        "arbiter_decisions_per_s",
        "arbiter",
        "1/s",
        "decisions of the pure lease arbiter over a day of runs, chats and batch jobs, by CPU time",
        20_000.0,
        "floor_arbiter_folds_per_s",
        better="higher",
    ),
    Figure(
        "floor_makespan_vs_clairvoyant", "ordering", "x", "the same of the plainest fair policy: the oldest call's model, until none waits"
    ),
    Figure(
        "makespan_vs_clairvoyant",
        "ordering",
        "x",
        "open arrivals, one at a time, beside the least possible",
        1.02,
        "floor_makespan_vs_clairvoyant",
    ),
    Figure("floor_swaps_vs_grouped", "ordering", "x", "the same of the plainest fair policy"),
    Figure("swaps_vs_grouped", "ordering", "x", "swaps beside plain grouping by model, worst trace", 1.05, "floor_swaps_vs_grouped"),
    Figure("floor_max_wait_vs_grouped", "ordering", "x", "the same of the plainest fair policy"),
    Figure("max_wait_vs_grouped", "ordering", "x", "longest wait beside plain grouping, worst trace", 0.9, "floor_max_wait_vs_grouped"),
    Figure("floor_p95_wait_ratio_vs_fifo", "ordering", "x", "the same of the plainest fair policy"),
    Figure(
        "p95_wait_ratio_vs_fifo",
        "ordering",
        "x",
        "wait, 95th percentile, beside order of arrival under load, worst trace",
        0.1,
        "floor_p95_wait_ratio_vs_fifo",
    ),
    Figure("floor_ordering_decisions_per_s", "ordering", "1/s", "the same with plain grouping", better="higher"),
    Figure(
        "ordering_decisions_per_s",
        "ordering",
        "1/s",
        "decisions of the dispatch order per second of CPU, with folding and simulation around them",
        20000.0,
        "floor_ordering_decisions_per_s",
        "",
        "higher",
    ),
    Figure("floor_servers_start_s", "stack", "s", "nats-server, PostgreSQL and Chroma alone, on the same data"),
    Figure("first_start_s", "stack", "s", "`aetherium up` on an empty folder, until all is ready"),
    Figure("cold_start_s", "stack", "s", "`aetherium up` on an existing folder, until all is ready", 10.0, "floor_servers_start_s"),
    Figure("floor_idle_rss_mb", "stack", "MB", "nats-server, PostgreSQL and Chroma of that stack (PSS)"),
    Figure("idle_rss_mb", "stack", "MB", "resident memory (PSS) of all processes, 10 s after ready", 1200.0, "floor_idle_rss_mb"),
)
BY_NAME = {figure.name: figure for figure in FIGURES}
GROUPS = tuple(dict.fromkeys(figure.group for figure in FIGURES))


def groups_of(names: Iterable[str]) -> tuple[str, ...]:
    """The groups that measure what `names` (figures or groups; none = all) ask for, in their order.

    Raises:
        KeyError: nothing has that name.
    """
    wanted = {name if name in GROUPS else BY_NAME[name].group for name in names}
    return tuple(group for group in GROUPS if group in wanted or not wanted)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed, by nearest rank.

    >>> percentile([5, 1, 4, 2, 3], 0.5), percentile(range(1, 101), 0.99)
    (3, 99)
    """
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)  # the ceiling
    return ordered[max(0, min(len(ordered) - 1, int(rank) - 1))]


def middle(runs: Sequence[float]) -> float:
    """The median of repeated runs: one that a neighbour on the machine disturbed does not move it."""
    return float(median(runs))
