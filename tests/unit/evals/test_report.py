"""The report: its sums, its table, what a mechanism is worth, and its files."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from evals import mechanisms
from evals.conditions import Conditions
from evals.outcome import Failure, Result
from evals.report import Report, Series, markdown, write
from services.gateway.requests import FeatureOverrides
from shared.errors import BadInput
from shared.template import Features
from tests.requirements import covers


def result(task: str, passed: bool = True, **fields: Any) -> Result:
    base: dict[str, Any] = {
        "task": task,
        "kind": "edit",
        "level": 1,
        "attempt": 1,
        "passed": passed,
        "failure": None if passed else Failure.WRONG_RESULT,
        "detail": "" if passed else "a | b\nis not right",
        "status": "completed",
        "run_guid": f"guid-{task}",
    }
    return Result.model_validate({**base, **fields})


def report(*results: Result, **fields: Any) -> Report:
    conditions = Conditions(
        model="org/some model:1b",
        model_source="local",
        model_sha256="abc",
        guided=True,
        template="file-worker",
        max_turns=12,
        temperature=0,
        budget_s=150,
        repeat=1,
        cpus=2,
        measured_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )
    return Report.model_validate({"conditions": conditions, "complete": True, "main": Series(results=results), **fields})


def test_the_sums_are_over_all_attempts_and_over_those_that_passed() -> None:
    summary = report(
        result("a", seconds=1, turns=2, completion_tokens=10),
        result("b", seconds=3, turns=4, completion_tokens=30, level=2),
        result("c", passed=False, seconds=100, turns=12, completion_tokens=900, kind="fix", level=2),
    ).main.summary
    assert (summary["passed"], summary["attempts"], summary["pass_rate"]) == (2, 3, 0.667)
    assert summary["failures"] == {"wrong_result": 1}
    assert (summary["by_kind"], summary["by_level"]) == ({"edit": "2 of 2", "fix": "0 of 1"}, {"1": "1 of 1", "2": "1 of 2"})
    assert (summary["medians"]["seconds"], summary["medians_of_passed"]["seconds"]) == (3, 2)
    assert summary["medians_of_passed"]["tokens_out"] == 20


def test_without_any_result_there_are_no_medians() -> None:
    assert report().main.summary["medians"] == {}
    assert markdown(report()).startswith("# 0 of 0 passed")


@covers("evals.report")
def test_the_table_has_a_line_for_each_attempt_with_the_command_that_explains_it() -> None:
    text = markdown(report(result("a"), result("b", passed=False, prompt_tokens=9, cached_tokens=4, completion_tokens=2, seconds=1.26)))
    assert text.startswith("# 1 of 2 passed: org/some model:1b, 2026-01-02")
    assert (
        "| b | edit | 1 | **wrong_result** a \\| b is not right | completed | 0 | 0 | 0 | 9/4/2 | 1.3 | `aetherium show guid-b` |" in text
    )
    assert "- model file SHA-256: abc" in text
    assert "action by action under a schema" in text
    assert "1 wrong_result" in text


def test_a_report_says_that_it_is_of_a_script_or_not_whole() -> None:
    whole = report(result("a"))
    assert "scripted" not in markdown(whole)
    assert "stopped" not in markdown(whole)
    scripted = whole.conditions.model_copy(update={"model_source": "scripted"})
    assert "The model is scripted" in markdown(whole.model_copy(update={"conditions": scripted}))
    assert "stopped before its last task" in markdown(whole.model_copy(update={"complete": False}))


def test_a_mechanism_is_worth_the_attempts_that_it_makes_pass() -> None:
    main = [result("a"), result("b"), result("c", passed=False)]
    without = Series(without=("reask",), results=(result("a"), result("b", passed=False), result("c")))
    worse = Series(without=("hold_to_request",), results=(result("a", passed=False),))  # it was stopped
    text = markdown(report(*main, ablation=(without, worse)))
    assert "| reask | 2 of 3 | 2 of 3 | +0 | b | c |" in text
    assert "| hold_to_request | 1 of 1 | 0 of 1 | +1 | a |  |" in text


@pytest.mark.parametrize(("passes", "repeat", "target", "met"), [(9, 1, 9, True), (8, 1, 9, False), (27, 3, 9, True), (26, 3, 9, False)])
def test_a_target_is_met_on_average_over_the_rounds(passes: int, repeat: int, target: float, met: bool) -> None:
    made = report(*(result(str(number), passed=number < passes) for number in range(12 * repeat)))
    made = made.model_copy(update={"conditions": made.conditions.model_copy(update={"repeat": repeat})})
    assert made.meets(target) is met
    assert not made.model_copy(update={"complete": False}).meets(target)


def test_a_report_is_written_as_json_and_table_and_read_back(tmp_path: Path) -> None:
    made = report(result("a"), result("b", passed=False))
    table = write(made, tmp_path / "new", latest=False)
    assert table.name == "2026-01-02-030405-org-some-model-1b.md"
    assert table.read_text() == markdown(made)
    stored = table.with_suffix(".json")
    assert Report.model_validate_json(stored.read_bytes()) == made
    assert json.loads(stored.read_bytes())["main"]["summary"]["passed"] == 1
    assert not (tmp_path / "new" / "latest.json").exists()
    write(made, tmp_path / "new", latest=True)
    assert (tmp_path / "new" / "latest.json").read_bytes() == stored.read_bytes()


# ---- mechanisms


@pytest.mark.parametrize("name", mechanisms.NAMES)
def test_every_mechanism_is_one_that_a_template_can_switch_off(name: str) -> None:
    assert Features.model_validate(mechanisms.switched_off([name])) != Features()


def test_mechanisms_are_named_in_lists_and_all_together() -> None:
    assert mechanisms.named(["reask,hold-to-request", "reask"]) == ("reask", "hold_to_request")
    assert mechanisms.named(["all"]) == mechanisms.NAMES
    assert mechanisms.named([]) == ()
    with pytest.raises(BadInput, match=r"no mechanism 'magic'\. Known: constrained_turns"):
        mechanisms.named(["magic"])


def test_what_is_switched_off_is_what_the_gateway_takes() -> None:
    over = FeatureOverrides.model_validate({"constrainedTurns": "never", "reask": False})
    assert over.over(Features()) == Features.model_validate(mechanisms.switched_off(["constrained_turns", "reask"]))
    with pytest.raises(ValidationError):
        FeatureOverrides.model_validate({"magic": False})
