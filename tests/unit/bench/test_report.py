from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from bench import report
from bench.figures import BY_NAME, FIGURES, GROUPS, groups_of, percentile
from tests.requirements import covers

RUNS = {"effect_p50_ms": [1.9, 1.5, 9.0], "floor_effect_p50_ms": [1.0, 1.0, 1.2], "effects_per_s_50_runs": [1000.0]}


def test_a_name_of_a_figure_or_of_a_group_selects_what_measures_it() -> None:
    assert groups_of([]) == GROUPS
    assert groups_of(["idle_rss_mb", "effects"]) == ("effects", "stack")
    with pytest.raises(KeyError, match="effect_p5_ms"):
        groups_of(["effect_p5_ms"])


@covers("bench.figures")
def test_every_floor_that_a_figure_names_is_measured_with_it() -> None:
    for figure in FIGURES:
        assert figure.floor is None or BY_NAME[figure.floor].group == figure.group
        assert figure.target is None or figure.floor is not None, f"{figure.name} has a target and nothing to compare with"


def test_the_value_is_the_median_of_the_runs_beside_its_floor() -> None:
    rows = report.rows(RUNS, {"cpus": 2})
    effect = rows["effect_p50_ms"]
    assert (effect["value"], effect["runs"], effect["met"]) == (1.9, [1.9, 1.5, 9.0], True)
    assert effect["floor"] == {"name": "floor_effect_p50_ms", "value": 1.0, "ratio": 1.9}
    assert effect["conditions"] == {"cpus": 2}
    assert (rows["effects_per_s_50_runs"]["met"], "floor" in rows["effects_per_s_50_runs"]) == (False, False)


def test_figures_that_were_not_measured_again_stay_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "results" / "latest.json"
    report.write(report.rows({"idle_rss_mb": [500.0]}, {"load_average": 1}), file)
    report.write(report.rows(RUNS, {"load_average": 2}), file)
    written = orjson.loads(file.read_bytes())
    assert list(written) == ["floor_effect_p50_ms", "effect_p50_ms", "effects_per_s_50_runs", "idle_rss_mb"]
    assert written["idle_rss_mb"]["conditions"] == {"load_average": 1}


def test_the_table_says_what_is_met_and_leaves_the_floors_to_their_figures() -> None:
    lines = report.table(report.rows(RUNS, {})).splitlines()
    assert [line.split()[0] for line in lines] == ["figure", "effect_p50_ms", "effects_per_s_50_runs"]
    assert lines[1].split()[-3:] == ["≤", "2", "yes"]
    assert lines[2].split()[-3:] == ["≥", "1300", "NO"]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_a_percentile_is_one_of_the_values(share: float, expected: int) -> None:
    assert percentile(list(range(100, 0, -1)), share) == expected
