"""`python -m bench [NAMES…] [--quick] [--json]`: measure, write `results/latest.json`, print a table."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import orjson
import uvloop

from bench import report
from bench.figures import BY_NAME, GROUPS, groups_of
from shared import telemetry
from shared.config import TelemetrySettings
from shared.process import rarely_collect


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the engine beside its floors.")
    parser.add_argument("names", nargs="*", help=f"figures or groups ({', '.join(GROUPS)}); none = all")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs: to see that it works, not to quote")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    asked = parser.parse_args(argv)
    try:
        groups = groups_of(asked.names)
    except KeyError as unknown:
        parser.error(f"nothing is called {unknown.args[0]!r}; figures: {', '.join(BY_NAME)}; groups: {', '.join(GROUPS)}")
    telemetry.set_up(TelemetrySettings(log_level="error"), "bench")
    measured: dict[str, report.Row] = {}
    for group in groups:
        print(f"measuring {group}…", file=sys.stderr, flush=True)
        module = importlib.import_module(f"bench.groups.{group}")
        rarely_collect()  # as every service does once it has started
        runs, more = uvloop.run(module.measure(asked.quick))
        measured |= report.rows(runs, report.conditions(more.pop("nats"), quick=asked.quick, **more))
    report.write(measured)
    if asked.json:
        print(orjson.dumps(measured, option=orjson.OPT_INDENT_2).decode())
    else:
        print(report.table(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
