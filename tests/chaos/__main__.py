"""`python -m tests.chaos --kills N [--seed S] [--runs-at-a-time 4]`: kill processes at random moments, and judge what is left.

The last line is `kills=… runs_completed=… resumed=… duplicated_effects=… lost_facts=… p95_resume_s=…`. The exit
code is 1 when an effect was repeated, a fact was lost, a run did not end, or resuming took too long.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import structlog

from tests.chaos.storm import VICTIMS, rage


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Kill the engine's processes at random moments.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="default: the time; printed, to do it again")
    parser.add_argument("--runs-at-a-time", type=int, default=4)
    parser.add_argument("--victims", default=",".join(VICTIMS), help="processes to choose from (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the data although all is well")
    asked = parser.parse_args()
    victims = tuple(asked.victims.split(","))
    seed = asked.seed if asked.seed is not None else int(time.time())
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # its own client's lost connections are meant
    folder = Path(tempfile.mkdtemp(prefix="aetherium-chaos-"))
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    try:
        report = asyncio.run(rage(folder, kills=asked.kills, seed=seed, at_a_time=asked.runs_at_a_time, victims=victims, say=say))
    except KeyboardInterrupt:
        return 130
    except Exception:
        traceback.print_exc()
        print(f"the storm broke off; seed {seed}, its data is kept in {folder}", file=sys.stderr)
        return 1
    found = report.findings
    say(
        f"{found.completed} runs completed, {found.interrupted} of them told of a call that was interrupted; {found.failed} ended otherwise"
    )
    for problem in report.problems:
        say(f"WRONG: {problem}")
    if report.is_good and not asked.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        say(f"seed {seed}; data is kept in {folder}")
    print(report.line, flush=True)
    return 0 if report.is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
