"""The recorder process: folds the log into the read models in PostgreSQL."""

from __future__ import annotations

from services.recorder.follower import Recorder
from services.recorder.projections import all_projections
from services.recorder.settings import dsn_of
from services.recorder.tables import Tables
from shared.db import open_pool
from shared.process import Process, run, serve_health


async def main(process: Process) -> None:
    async with open_pool(dsn_of(process.settings)) as pool:
        recorder = Recorder(process.log, Tables(pool), all_projections(process.log))
        health = await serve_health(process, recorder.missing)
        try:
            await recorder.run()
        finally:
            if health is not None:
                health.close()


if __name__ == "__main__":
    run("recorder", main)
