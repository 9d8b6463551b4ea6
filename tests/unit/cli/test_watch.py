"""A run on the screen: nothing is lost between streamed text and lines, and silence is filled."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

import pytest
from rich.console import Console

from aetherium.cli.watch import Screen
from aetherium.client import Delta
from shared.events.content import ToolCall, Usage
from shared.events.envelope import Event, Fact
from shared.events.llm import LlmCompleted, LlmQueued
from shared.events.run import LlmRequested, MessageAdded, RunCompleted, RunFailed, ToolRequested
from shared.events.tool import ToolCompleted, ToolDenied
from shared.runlog import call, line_of
from shared.subjects import Aggregate
from shared.testing.clock import FakeClock
from tests.requirements import covers


@dataclass
class Shown:
    """A screen whose time the test owns."""

    at: float = 0.0
    out: io.StringIO = field(default_factory=io.StringIO)

    def screen(self) -> Screen:
        return Screen(Console(file=self.out, highlight=False, width=200), monotonic=lambda: self.at)

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()


def fact(event: Event, seq: int = 1) -> Fact:
    return Fact(seq, "i", FakeClock().now(), "s", Aggregate(event.TYPE.split(".")[0], "r1"), event)


@covers("cli.live")
def test_facts_are_lines_with_the_time_since_the_start() -> None:
    shown = Shown()
    screen = shown.screen()
    shown.at = 12.3
    screen.fact(fact(ToolRequested(key="k", call_id="c", agent="coder", tool="run_shell", arguments={"command": "ls [red]"})))
    screen.fact(fact(MessageAdded(key="k", agent="coder", role="system", content="says nothing to a reader")))
    screen.fact(fact(RunCompleted()))
    assert shown.lines == ['   12.3 s  coder calls run_shell(command="ls [red]")', "   12.3 s  completed"]


def test_streamed_text_is_joined_and_the_next_fact_begins_a_line() -> None:
    shown = Shown()
    screen = shown.screen()
    for text in ("Hel", "lo", "\nthere"):
        screen.delta(Delta("c", text))
    screen.fact(fact(RunCompleted()))
    assert shown.lines == [" " * 11 + "Hello", " " * 11 + "there", "    0.0 s  completed"]


@covers("cli.live")
def test_a_silent_model_is_announced_every_few_seconds() -> None:
    shown = Shown()
    screen = shown.screen()
    screen.fact(fact(LlmRequested(key="k", call_id="c", agent="coder", turn=1)))
    for second in range(1, 13):
        shown.at = float(second)
        screen.beat()
    assert shown.lines[1:] == ["    5.0 s  … the model computes", "   10.0 s  … the model computes"]
    screen.fact(fact(ToolRequested(key="k", call_id="c", agent="coder", tool="run_shell")))
    shown.at = 20.0
    screen.beat()
    assert shown.lines[-1] == "   20.0 s  … run_shell runs"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (LlmQueued(call_id="c", position=2, reason="the slot is busy"), "the model call waits, number 2: the slot is busy"),
        (LlmCompleted(call_id="c", content="Done.\nBye."), "the model says: Done. Bye. (0 tokens, 0.0 s)"),
        (
            LlmCompleted(call_id="c", tool_calls=(ToolCall(call_id="t", name="f"),), usage=Usage(completion_tokens=9), duration_ms=1500),
            "the model calls f (9 tokens, 1.5 s)",
        ),
        (ToolCompleted(call_id="c", tool="f", content="no such file", is_error=True), "f refused: no such file (0.0 s)"),
        (ToolDenied(call_id="c", tool="f", layer="capability", message="not allowed"), "f was denied: not allowed"),
        (RunFailed(code="budget", reason="too many calls"), "failed (budget): too many calls"),
    ],
)
def test_each_kind_of_fact_reads_as_a_sentence(event: Event, line: str) -> None:
    assert line_of(fact(event)) == line


def test_long_arguments_are_cut_so_that_all_of_them_show() -> None:
    text = call("write_file", {"content": "x" * 500, "path": "primes.py"})
    assert 'path="primes.py"' in text
    assert len(text) < 130
