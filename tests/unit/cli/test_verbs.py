"""What the verbs print and decide, apart from the engine that they ask."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from aetherium import export
from aetherium.cli import VERBS, build, demo
from aetherium.cli.replay import as_text, plain, state_at
from aetherium.cli.run import outcome
from aetherium.cli.show import as_text as shown
from aetherium.client import Run
from aetherium.prefix import the_one
from shared.errors import BadInput, NotFound
from shared.events.content import BlobRef, Pins
from shared.events.envelope import Event, Fact, body_of, headers_of, subject_of
from shared.events.run import LlmRequested, RunCompleted, RunStarted, RunSubmitted
from shared.subjects import Aggregate
from shared.testing.clock import FakeClock
from tests.requirements import covers

SUBMITTED = RunSubmitted(project_id=3, template_id="t", template=BlobRef(sha256="x", size=1), message="Do it.", pins=Pins(template="x"))
EVENTS: list[Event] = [
    SUBMITTED,
    RunStarted(owner="o", engine="e"),
    LlmRequested(key="k", call_id="c", agent="a", turn=1),
    RunCompleted(reply="ok"),
]


def row(seq: int, event: Event) -> bytes:
    """A line as `events export` writes it."""
    aggregate = Aggregate("run", "r1")
    headers = headers_of(event, id=f"i{seq}", time=FakeClock().now(), source="s", scope="r1")
    return orjson.dumps({"seq": seq, "subject": subject_of(aggregate, event), "headers": headers, "body": orjson.loads(body_of(event))})


def exported() -> list[bytes]:
    return [row(seq * 10, event) for seq, event in enumerate(EVENTS, 1)]


def facts() -> list[Fact]:
    return export.facts([*exported(), b'{"blob":"x","content":"e30="}'], "file")


def test_an_exported_run_is_read_back_fact_for_fact() -> None:
    assert [fact.event for fact in facts()] == EVENTS
    assert [fact.seq for fact in facts()] == [10, 20, 30, 40]


@pytest.mark.parametrize("line", [b"not json", b"{}", b"[]", b'{"seq":1,"subject":"a","headers":{},"body":{}}'])
def test_a_line_that_is_no_fact_is_named(line: bytes) -> None:
    with pytest.raises(BadInput, match=r"run\.jsonl: line 2 is not a fact"):
        export.facts([exported()[0], line], "run.jsonl")


@pytest.mark.parametrize(("at", "status", "calls"), [(10, "queued", 0), (29, "running", 0), (30, "running", 1), (99, "completed", 1)])
def test_a_run_can_be_seen_as_it_was_at_any_sequence(at: int, status: str, calls: int) -> None:
    state = state_at(facts(), at)
    assert (state.status, state.model_calls) == (status, calls)
    assert orjson.loads(orjson.dumps(plain(state)))["status"] == status


def test_before_its_first_fact_there_was_no_run() -> None:
    with pytest.raises(NotFound, match="did not exist at 9: its first fact is 10"):
        state_at(facts(), 9)


def test_the_state_says_which_fact_it_stands_at() -> None:
    text = as_text(state_at(facts(), 35), facts())
    assert text.splitlines()[0] == "run r1 at 30 (fact 3 of 4)"
    assert "running" in text


def test_replay_reads_a_file_without_an_engine(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_bytes(b"\n".join(exported()))
    result = CliRunner().invoke(build(["replay"]), ["replay", "--file", str(file), "--at", "20", "--json"])
    assert result.exit_code == 0, result.output
    assert orjson.loads(result.output)["status"] == "running"
    listed = CliRunner().invoke(build(["replay"]), ["replay", "--file", str(file)])
    assert [line.split()[2] for line in listed.output.splitlines()] == [event.TYPE for event in EVENTS]


def test_replay_wants_a_run_or_a_file_and_not_both() -> None:
    for arguments in (["replay"], ["replay", "r1", "--file", __file__]):
        result = CliRunner().invoke(build(["replay"]), arguments)
        assert isinstance(result.exception, BadInput)


def test_a_prefix_must_name_one_run() -> None:
    assert the_one(["ab1"], "ab") == "ab1"
    assert the_one(["ab", "abc"], "ab") == "ab"
    with pytest.raises(NotFound, match="aetherium runs"):
        the_one([], "x")
    with pytest.raises(BadInput, match="2 runs begin with 'ab'"):
        the_one(["ab1", "ab2"], "ab")


RUN = {
    "runGuid": "r1",
    "projectId": 3,
    "templateId": "t",
    "status": "failed",
    "message": "Do it.",
    "reason": "no model",
    "workspace": "/w/3",
}


def test_the_outcome_of_a_run_says_why_and_where() -> None:
    assert outcome(Run.model_validate(RUN)) == "\nfailed: no model\nworkspace /w/3"
    assert "Done." in outcome(Run.model_validate({**RUN, "status": "completed", "response": "Done."}))


def test_show_names_what_a_run_did() -> None:
    step = {"key": "agent", "agent": "coder", "title": "Write", "status": "failed", "startedAt": "2026-01-01T00:00:00Z", "reason": "stuck"}
    text = shown(Run.model_validate({**RUN, "steps": [step], "turns": 2, "usage": {"promptTokens": 7}}), [])
    assert "failed: no model" in text
    assert "agent (coder) failed Write: stuck" in text
    assert "2 turns" in text
    assert "7 read" in text


@covers("demo.checked")
def test_the_demo_believes_the_file_and_not_the_model(tmp_path: Path) -> None:
    file = tmp_path / "primes.txt"
    done = Run.model_validate({**RUN, "status": "completed", "workspace": str(tmp_path), "response": "All 25 primes are in primes.txt."})
    with pytest.raises(demo.NotDone, match=r"no primes\.txt"):
        demo.check(done)
    for wrong in ("", "2\n3\n5\n", "\n".join(map(str, [1, *demo.PRIMES])), "[2, 3, 5]"):
        file.write_text(wrong)
        with pytest.raises(demo.NotDone, match="does not hold the 25 primes"):
            demo.check(done)
    file.write_text("\n".join(map(str, demo.PRIMES)) + "\n")
    demo.check(done)
    assert len(demo.PRIMES) == 25
    with pytest.raises(demo.NotDone, match="the run failed: no model"):
        demo.check(done.model_copy(update={"status": "failed"}))


def test_every_verb_has_help() -> None:
    for verb in VERBS:
        result = CliRunner().invoke(build([verb]), [verb, "--help"])
        assert result.exit_code == 0, verb
        assert "Usage" in result.output
