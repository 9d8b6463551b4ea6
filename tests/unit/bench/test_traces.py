from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from bench import traces
from bench.groups.ordering import compared
from services.scheduler.ordering.simulate import Arrival
from tests.requirements import covers


@pytest.mark.parametrize("kind", traces.KINDS)
def test_a_seed_makes_the_same_arrivals_again_and_another_seed_others(kind: str) -> None:
    assert traces.made(kind, 1) == traces.made(kind, 1)
    assert traces.made(kind, 1).arrivals != traces.made(kind, 2).arrivals


@pytest.mark.parametrize("kind", traces.KINDS)
def test_made_arrivals_are_of_the_kind_that_was_asked_for(kind: str) -> None:
    rows = traces.made(kind, 3).arrivals
    models = Counter(row.model for row in rows)
    assert len(rows) == 500
    assert models["a"] > models["b"] > models["c"] > 60
    assert 1.7 < sum(row.answer_s for row in rows) / 500 < 2.3
    if kind == "agents":
        assert set(Counter(row.agent for row in rows).values()) == {20}
    elif kind != "burst":
        assert rows[-1].asked_s == pytest.approx(500 / traces.RATES[kind], rel=0.15)


def test_recorded_arrivals_are_read_with_their_kind_and_seed(tmp_path: Path) -> None:
    (tmp_path / "open020-4.jsonl").write_text('{"id": 0, "model": "a", "service": 2.1, "arrival": 14.4}\n')
    (tmp_path / "agents-2.jsonl").write_text('{"id": 7, "model": "c", "service": 0.5, "agent": 3, "k": 0}\n')
    assert list(traces.recorded(tmp_path)) == [
        traces.Trace("agents", 2, (Arrival("7", "c", 0.5, None, "agent-3"),)),
        traces.Trace("open020", 4, (Arrival("0", "a", 2.1, 14.4),)),
    ]


def test_a_named_folder_without_arrivals_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(traces.FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="kind"):
        traces.folder()


@covers("order.fair")
@pytest.mark.parametrize("kind", traces.KINDS)
def test_the_targets_hold_for_the_median_of_made_arrivals(kind: str) -> None:
    """A single trace says little: a swap more of thirty, or one long wait of plain grouping more or less, is chance."""
    for slots in (1, 4):
        ours, _ = compared([(traces.made(kind, seed), slots) for seed in (1, 2, 3)])
        middle = {figure: median(each.values()) for figure, each in ours.items()}
        assert middle["swaps_vs_grouped"] <= 1.05
        assert middle.get("max_wait_vs_grouped", 0.0) <= 0.9
        assert middle.get("p95_wait_ratio_vs_fifo", 0.0) <= 0.1
        assert max(ours.get("makespan_vs_clairvoyant", {0: 0.0}).values()) <= 1.02
