"""`latest.json` and the table: figures with their conditions, each beside its floor."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from bench.figures import BY_NAME, FIGURES, Figure, middle

LATEST = Path(__file__).parent / "results" / "latest.json"

Row = dict[str, Any]


def conditions(nats_version: str, **more: Any) -> dict[str, Any]:
    """What the machine was like when a figure was taken."""
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "nats_server": nats_version,
        "fsync": "sync_interval: always",
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **more,
    }


def rows(runs: Mapping[str, Sequence[float]], taken: Mapping[str, Any]) -> dict[str, Row]:
    """What is written for each figure that was measured."""
    values = {name: _rounded(middle(each)) for name, each in runs.items() if each}
    return {figure.name: _row(figure, values, runs[figure.name], taken) for figure in FIGURES if figure.name in values}


def _row(figure: Figure, values: Mapping[str, float], runs: Sequence[float], taken: Mapping[str, Any]) -> Row:
    row: Row = {"value": values[figure.name], "unit": figure.unit, "runs": [_rounded(run) for run in runs], "what": figure.what}
    if figure.floor is not None and figure.floor in values:
        floor = values[figure.floor]
        ratio = values[figure.name] / floor if figure.better == "lower" else floor / values[figure.name]
        row["floor"] = {"name": figure.floor, "value": floor, "ratio": round(ratio, 2)}
    if figure.target is not None:
        row |= {"target": figure.target, "met": figure.meets(values[figure.name])}
    if figure.peer:
        row["peer"] = figure.peer
    return {**row, "better": figure.better, "conditions": dict(taken)}


def _rounded(value: float) -> float:
    return round(value, 3 if abs(value) < 100 else 1)


def write(measured: Mapping[str, Row], path: Path = LATEST) -> None:
    """Write the figures that were measured; those of an earlier run stay, with the conditions of their own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Row] = orjson.loads(path.read_bytes()) if path.exists() else {}
    merged = {**kept, **measured}
    ordered = {name: merged[name] for name in BY_NAME if name in merged}
    path.write_bytes(orjson.dumps(ordered, option=orjson.OPT_INDENT_2) + b"\n")


def table(measured: Mapping[str, Row]) -> str:
    """One line a figure: value, floor, ratio to the floor (above 1 = worse than it), target, whether it is met."""
    lines = [("figure", "value", "floor", "ratio", "target", "met?")]
    lines += [_line(name, row) for name, row in measured.items() if not BY_NAME[name].is_floor]
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return "\n".join(
        "  ".join(_aligned(cell, width, place) for place, (cell, width) in enumerate(zip(line, widths, strict=True))) for line in lines
    )


def _aligned(cell: str, width: int, place: int) -> str:
    return cell.ljust(width) if place in (0, 5) else cell.rjust(width)


def _line(name: str, row: Row) -> tuple[str, ...]:
    floor: Row = row.get("floor") or {}
    met = row.get("met")
    sign = "≤" if BY_NAME[name].better == "lower" else "≥"
    return (
        name,
        f"{row['value']:g} {row['unit']}",
        f"{floor['value']:g}" if floor else "",
        f"{floor['ratio']:g}x" if floor else "",
        f"{sign} {row['target']:g}" if "target" in row else "",
        "" if met is None else "yes" if met else "NO",
    )
