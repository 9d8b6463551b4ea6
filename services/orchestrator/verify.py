"""`python -m services.orchestrator.verify --run RUN | --file FILE`: re-execute a run from its log alone.

Prints `verified N facts` and exits 0, or `diverged at SEQ: …` and exits 1. A file is what `aetherium
events export` writes: one JSON object a line, `{seq, subject, headers, body}`, and one `{blob: …}` for the template.
With `--without NAME` the code runs with a feature of the template switched off: where it agrees all the same, the
feature changed nothing in this run.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from services.orchestrator.durable.history import History
from services.orchestrator.durable.verify import Verdict, verify
from services.orchestrator.topologies import TOPOLOGIES
from shared import subjects
from shared.blobs import NatsBlobs
from shared.bus import connect
from shared.errors import BadInput, Fault, NotFound
from shared.eventlog import NatsEventLog
from shared.events.envelope import Fact, decode
from shared.template import parse_template


def from_file(path: Path) -> tuple[list[Fact], dict[str, bytes]]:
    """The facts and blobs of an exported run.

    Raises:
        BadInput: the file cannot be read, or a line of it.
    """
    facts: list[Fact] = []
    blobs: dict[str, bytes] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", field="--file") from error
    for number, line in enumerate(lines, 1):
        try:
            row: dict[str, Any] = orjson.loads(line)
            if "blob" in row:
                blobs[row["blob"]] = base64.b64decode(row["content"])
            else:
                facts.append(decode(row["seq"], row["subject"], row["headers"], orjson.dumps(row["body"])))
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{path}: line {number} is not a fact: {error!r}", field="--file") from error
    return facts, blobs


async def from_log(url: str, run_id: str) -> tuple[list[Fact], dict[str, bytes]]:
    bus = await connect(url, "verify", timeout_s=5.0)
    try:
        facts = await NatsEventLog(bus, "verify").read(subjects.of_run(run_id))
        if not facts:
            raise NotFound(f"the log holds no run {run_id!r}")
        ref = History.of(run_id, facts).submission.template
        return facts, {ref.sha256: await NatsBlobs(bus).get(ref)}
    finally:
        await bus.close()


async def check(facts: Sequence[Fact], blobs: dict[str, bytes], without: Sequence[str] = ()) -> Verdict:
    run_id = facts[0].scope
    submission = History.of(run_id, facts).submission
    content = blobs.get(submission.template.sha256)
    if content is None:
        raise NotFound(f"the template of run {run_id!r} is missing: export the run again")
    template = parse_template(content, submission.template_id)
    template = template.model_copy(update={"features": template.features.without(without)})
    return await verify(run_id, facts, template, TOPOLOGIES[template.topology])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--nats", default="nats://127.0.0.1:4222")
    parser.add_argument("--without", action="append", default=[], metavar="NAME")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    if bool(asked.run) == bool(asked.file):
        parser.error("give --run RUN or --file FILE")
    try:
        facts, blobs = from_file(asked.file) if asked.file else asyncio.run(from_log(asked.nats, asked.run))
        verdict = asyncio.run(check(facts, blobs, asked.without))
    except Fault as fault:
        print(fault.message, file=sys.stderr)
        return 2
    if asked.json:
        print(orjson.dumps({"facts": verdict.facts, "divergedAt": verdict.diverged_at, "message": verdict.message}).decode())
    elif verdict.diverged_at is None:
        print(f"verified {verdict.facts} facts")
    else:
        print(f"diverged at {verdict.diverged_at}: {verdict.message}")
    return 0 if verdict.diverged_at is None else 1


if __name__ == "__main__":
    raise SystemExit(main())
