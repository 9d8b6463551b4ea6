"""A short storm; `make chaos` makes a long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.observer import percentile
from tests.chaos.storm import rage
from tests.requirements import covers

KILLS = 12
SEED = 20


@pytest.mark.chaos
@covers("chaos.kills", "run.resume.within_5_s", "tool.at_most_once")
async def test_random_kills_lose_no_fact_and_repeat_no_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    report = await rage(tmp_path, kills=KILLS, seed=SEED, at_a_time=4, say=told.append)
    with capsys.disabled():
        print(f"\n{report.line}")
    assert report.is_good, "\n".join([*report.problems, *told])
    assert report.findings.completed > KILLS / 3


def test_the_95th_percentile_is_the_value_that_19_of_20_do_not_exceed() -> None:
    assert percentile([float(number) for number in range(1, 21)], 0.95) == 19
    assert percentile([3.0], 0.95) == 3
    assert percentile([], 0.95) == 0
