"""Results as JSON and as a Markdown table, with what they were had under, and what each mechanism is worth. Pure but for `write`."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, computed_field

from evals.conditions import Conditions
from evals.outcome import Failure, Result

MEDIANS: Mapping[str, Callable[[Result], float]] = {
    "turns": lambda each: each.turns,
    "model_calls": lambda each: each.model_calls,
    "tool_calls": lambda each: each.tool_calls,
    "tokens_in": lambda each: each.prompt_tokens,
    "tokens_cached": lambda each: each.cached_tokens,
    "tokens_out": lambda each: each.completion_tokens,
    "seconds": lambda each: each.seconds,
}


class Series(BaseModel):
    """Attempts with the same mechanisms switched off."""

    model_config = ConfigDict(frozen=True)

    without: tuple[str, ...] = ()
    results: tuple[Result, ...] = ()

    @property
    def passes(self) -> int:
        return sum(each.passed for each in self.results)

    @computed_field
    @property
    def summary(self) -> dict[str, Any]:
        passed = [each for each in self.results if each.passed]
        return {
            "passed": self.passes,
            "attempts": len(self.results),
            "pass_rate": round(self.passes / len(self.results), 3) if self.results else 0.0,
            "failures": dict(Counter(str(each.failure) for each in self.results if each.failure).most_common()),
            "by_kind": _shares(self.results, lambda each: each.kind),
            "by_level": _shares(self.results, lambda each: str(each.level)),
            "medians": medians(self.results),
            "medians_of_passed": medians(passed),
            "seconds": round(sum(each.seconds for each in self.results), 1),
        }


class Report(BaseModel):
    """One evaluation: its main series, and one more for each mechanism that was measured by leaving it out."""

    model_config = ConfigDict(frozen=True)

    conditions: Conditions
    complete: bool  # False: it was stopped before its last task
    main: Series
    ablation: tuple[Series, ...] = ()

    def meets(self, target: float) -> bool:
        """Whether as many tasks were passed; with several attempts at each, on average over the rounds."""
        return self.complete and self.main.passes / self.conditions.repeat >= target


def medians(results: Sequence[Result]) -> dict[str, float]:
    return {name: round(statistics.median(map(of, results)), 2) for name, of in MEDIANS.items()} if results else {}


def _shares(results: Iterable[Result], key: Callable[[Result], str]) -> dict[str, str]:
    total, passed = Counter[str](), Counter[str]()
    for each in results:
        total[key(each)] += 1
        passed[key(each)] += each.passed
    return {name: f"{passed[name]} of {total[name]}" for name in sorted(total)}


# ---- Markdown


def markdown(report: Report) -> str:
    """The whole report for a reader."""
    main, conditions = report.main, report.conditions
    remarks = ["With the engine up on the same data folder, `aetherium show RUN` and `aetherium replay RUN` explain a run."]
    if conditions.model_source == "scripted":
        remarks.append("The model is scripted: it played the answers of a file.")
    if not report.complete:
        remarks.append("The evaluation was stopped before its last task.")
    parts = [
        f"# {main.passes} of {len(main.results)} passed: {conditions.model or 'unknown model'}, {conditions.measured_at:%Y-%m-%d}",
        _conditions(conditions),
        " ".join(remarks),
        _table(_HEAD, [_row(each, conditions.repeat) for each in main.results]),
        _sums(main),
    ]
    if report.ablation:
        parts.append(_worth(report))
    return "\n\n".join(part for part in parts if part) + "\n"


_HEAD = ("task", "kind", "level", "result", "status", "turns", "model calls", "tool calls", "tokens in/cached/out", "seconds", "run")


def _row(each: Result, repeat: int) -> tuple[str, ...]:
    result = "passed" if each.passed else f"**{each.failure}** {each.why}"
    return (
        each.task if repeat == 1 else f"{each.task} #{each.attempt}",
        each.kind,
        str(each.level),
        result,
        each.status,
        str(each.turns),
        str(each.model_calls),
        str(each.tool_calls),
        f"{each.prompt_tokens}/{each.cached_tokens}/{each.completion_tokens}",
        f"{each.seconds:.1f}",
        f"`{each.show}`" if each.run_guid else "",
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _conditions(given: Conditions) -> str:
    turns = "" if given.guided is None else f", asked {'action by action under a schema' if given.guided else 'in its own way'}"
    rows = [
        ("model", f"{given.model or 'unknown'} ({given.model_source or 'source unknown'}){turns}"),
        ("model file SHA-256", given.model_sha256),
        ("model server", given.model_server),
        ("engine", given.engine),
        ("template", f"{given.template}, {given.max_turns} turns" + (f", {given.max_tokens} tokens a turn" if given.max_tokens else "")),
        ("slot", given.slot),
        ("settings", f"temperature {given.temperature:g}, {given.budget_s:g} s a task, {given.repeat} attempt(s) a task"),
        ("switched off", ", ".join(given.without)),
        ("machine", f"{given.cpus} CPUs, {given.cpu}, load {', '.join(f'{load:g}' for load in given.load_average)}"),
        ("measured at", given.measured_at.isoformat()),
    ]
    return "\n".join(f"- {name}: {value}" for name, value in rows if value)


def _sums(series: Series) -> str:
    summary = series.summary
    rows = [("all", summary["medians"]), ("passed", summary["medians_of_passed"])]
    table = _table(("median of", *MEDIANS), [(name, *(f"{row[each]:g}" for each in MEDIANS)) for name, row in rows if row])
    failures = ", ".join(f"{count} {Failure(name)}" for name, count in summary["failures"].items())
    kinds = ", ".join(f"{name} {share}" for name, share in summary["by_kind"].items())
    levels = ", ".join(f"level {name}: {share}" for name, share in summary["by_level"].items())
    return f"{table}\n\nPassed by kind: {kinds}. By {levels}.\nFailures: {failures or 'none'}. All attempts took {summary['seconds']:g} s."


def _worth(report: Report) -> str:
    """What each mechanism adds: the passes with it and without it, and the tasks that make the difference."""
    head = (
        "mechanism",
        "passed with it",
        "passed without it",
        "worth",
        "only with it",
        "only without it",
        "changed the run of",
        "median s with/without",
    )
    table = _table(head, [_worth_row(report.main, each) for each in report.ablation])
    remarks = "Small numbers: a difference of one or two attempts means little."
    if any(each.carried for series in report.ablation for each in series.results):
        remarks += (
            " A run in which a mechanism changes nothing was not made again: its code was executed against its log without the"
            " mechanism and asked for the same all the way."
        )
    return f"## What each mechanism is worth\n\n{table}\n\n{remarks}"


def _worth_row(main: Series, series: Series) -> tuple[str, ...]:
    left_out = ", ".join(name for name in series.without if name not in main.without)
    seen = {(each.task, each.attempt) for each in series.results}  # a series that was stopped is compared as far as it got
    same = Series(without=main.without, results=tuple(each for each in main.results if (each.task, each.attempt) in seen))
    gained, lost = _passed(same) - _passed(series), _passed(series) - _passed(same)
    seconds = (f"{medians(each.results).get('seconds', 0):g}" for each in (same, series))
    return (
        left_out,
        f"{same.passes} of {len(same.results)}",
        f"{series.passes} of {len(series.results)}",
        f"{same.passes - series.passes:+d}",
        ", ".join(sorted({task for task, _ in gained})),
        ", ".join(sorted({task for task, _ in lost})),
        f"{sum(not each.carried for each in series.results)} of {len(series.results)}",
        "/".join(seconds),
    )


def _passed(series: Series) -> set[tuple[str, int]]:
    return {(each.task, each.attempt) for each in series.results if each.passed}


# ---- files


def write(report: Report, folder: Path, *, latest: bool) -> Path:
    """Write `<date>-<model>.json` and `.md`; gives the path of the table. `latest`: also as `latest.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", report.conditions.model).strip("-.") or "unknown-model"
    stem = f"{report.conditions.measured_at:%Y-%m-%d-%H%M%S}-{model[:80]}"
    content = report.model_dump_json(indent=2) + "\n"
    table = folder / f"{stem}.md"
    table.write_text(markdown(report), encoding="utf-8")
    for name in (f"{stem}.json", *(["latest.json"] if latest else [])):
        (folder / name).write_text(content, encoding="utf-8")
    return table
