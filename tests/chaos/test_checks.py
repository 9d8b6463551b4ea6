"""The judge must be able to condemn: each wrong is shown to it once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from shared.events import run
from shared.events.content import BlobRef, Pins
from shared.events.envelope import Event, Fact
from shared.events.tool import ToolInterrupted
from shared.subjects import Aggregate
from tests.chaos.checks import Findings, check_effects, check_ends, check_shown
from tests.chaos.workload import EFFECTS, KINDS, expected_lines

RUN = "r1"
KIND = "appends"


def fact(seq: int, event: Event) -> Fact:
    return Fact(seq, f"id-{seq}", datetime(2026, 1, 1, tzinfo=UTC), "test", Aggregate(event.TYPE.partition(".")[0], RUN), event)


SUBMITTED = fact(
    1, run.RunSubmitted(project_id=1, template_id="chaos", template=BlobRef(sha256="0", size=1), message="m", pins=Pins(template="0"))
)
COMPLETED = fact(9, run.RunCompleted(reply="done"))


def with_effects(folder: Path, lines: list[str]) -> Path:
    (folder / EFFECTS).write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_a_run_that_did_all_its_work_once_is_in_order(tmp_path: Path) -> None:
    found = Findings()
    check_ends(found, {RUN: KIND}, {RUN: [SUBMITTED, COMPLETED]})
    check_effects(found, RUN, KIND, [SUBMITTED, COMPLETED], with_effects(tmp_path, sorted(expected_lines(KIND))))
    check_shown(found, {1: SUBMITTED, 9: COMPLETED}, [SUBMITTED, COMPLETED])
    assert (found.problems, found.completed, found.duplicated, found.lost) == ([], 1, 0, 0)


def test_an_effect_that_happened_twice_is_counted(tmp_path: Path) -> None:
    found = Findings()
    lines = sorted(expected_lines(KIND))
    check_effects(found, RUN, KIND, [], with_effects(tmp_path, [*lines, lines[0]]))
    assert found.duplicated == 1
    assert lines[0] in found.problems[0]


def test_a_missing_effect_is_excused_only_by_the_interruption_of_its_own_call(tmp_path: Path) -> None:
    lines = sorted(expected_lines(KIND))
    command = next(
        str(call["arguments"]["command"]).replace("${turn}", str(place))
        for place, turn in enumerate(KINDS[KIND])
        for call in turn.get("tool_calls", ())
        if f"echo {lines[0]} " in str(call["arguments"]["command"]).replace("${turn}", str(place))
    )
    asked = fact(2, run.ToolRequested(key="k", call_id="c1", agent="worker", tool="run_shell", arguments={"command": command}))
    told = fact(3, ToolInterrupted(call_id="c1", tool="run_shell", message="interrupted"))
    folder = with_effects(tmp_path, lines[1:])
    excused, missing, other = Findings(), Findings(), Findings()
    check_effects(excused, RUN, KIND, [asked, told], folder)
    check_effects(missing, RUN, KIND, [asked], folder)
    check_effects(other, RUN, KIND, [asked, replace(told, event=ToolInterrupted(call_id="c2", tool="run_shell", message=""))], folder)
    assert excused.problems == []
    assert len(missing.problems) == len(other.problems) == 1


def test_a_run_without_an_end_and_one_that_is_not_in_the_log_are_found() -> None:
    endless, gone, twice = Findings(), Findings(), Findings()
    check_ends(endless, {RUN: KIND}, {RUN: [SUBMITTED]})
    check_ends(gone, {RUN: KIND}, {})
    check_ends(twice, {RUN: KIND}, {RUN: [SUBMITTED, COMPLETED, replace(COMPLETED, seq=10)]})
    assert "0 ends" in endless.problems[0]
    assert gone.lost == 1
    assert "2 ends" in twice.problems[0]


def test_a_fact_that_was_shown_and_is_not_in_the_log_as_it_was_is_lost() -> None:
    changed, vanished, unseen = Findings(), Findings(), Findings()
    check_shown(changed, {1: SUBMITTED}, [replace(SUBMITTED, id="another")])
    check_shown(vanished, {1: SUBMITTED, 9: COMPLETED}, [SUBMITTED])
    check_shown(unseen, {1: SUBMITTED}, [SUBMITTED, COMPLETED])
    assert (changed.lost, vanished.lost, unseen.lost) == (1, 1, 1)
