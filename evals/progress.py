"""What is going on, one line a task, never silent for long: on a terminal the line is kept current, elsewhere it is said again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from aetherium.cli.watch import waited_for
from evals.outcome import Result
from shared.events import run
from shared.events.envelope import Fact

QUIET_S = 5.0


@dataclass
class Progress:
    """The screen of an evaluation."""

    console: Console
    monotonic: Callable[[], float] = time.monotonic
    _what: str = ""
    _waits_for: str = ""
    _turn: int = 0
    _began: float = field(init=False)
    _said_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self._said_at = self.monotonic()

    def say(self, text: str, style: str = "") -> None:
        self._clear()
        self.console.print(Text(text, style), soft_wrap=True)
        self._said_at = self.monotonic()

    def begin(self, what: str, waits_for: str) -> None:
        """Something begins that may take long."""
        self._what, self._waits_for, self._turn = what, waits_for, 0
        self._began = self.monotonic()
        self.beat()

    def fact(self, fact: Fact) -> None:
        self._waits_for = waited_for(fact) or self._waits_for
        if isinstance(fact.event, run.LlmRequested):
            self._turn = max(self._turn, fact.event.turn)

    def end(self, result: Result) -> None:
        """The line that stays."""
        how = "passed" if result.passed else f"{result.failure}: {result.why}"
        work = f"{result.turns} turns, {result.model_calls} model calls, {result.tool_calls} tool calls, {result.completion_tokens} tokens"
        text = f"{result.seconds:7.1f} s  {self._what}  {how}  ({work}; {result.show[:23]})"
        self.say(text, "green" if result.passed else "red")
        self._what = ""

    def waiting(self, waits_for: str) -> None:
        self._waits_for = waits_for

    def beat(self) -> None:
        """Keep the current line current, or say it again after a while."""
        if not self._what:
            return
        turn = f"turn {self._turn}  " if self._turn else ""
        text = f"{self.monotonic() - self._began:7.1f} s  {self._what}  {turn}{self._waits_for}"
        if self.console.is_terminal:
            self._clear()
            self.console.print(Text(text[: self.console.width - 1], "dim"), end="", soft_wrap=True)
        elif self.monotonic() - self._said_at >= QUIET_S:
            self.console.print(Text(text), soft_wrap=True)
            self._said_at = self.monotonic()

    def _clear(self) -> None:
        if self.console.is_terminal:
            self.console.file.write("\r\x1b[2K")

    @asynccontextmanager
    async def beating(self) -> AsyncGenerator[None, None]:
        """Beat every second until the block ends."""

        async def beat() -> None:
            while True:
                await asyncio.sleep(1.0)
                self.beat()

        task = asyncio.create_task(beat())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self._clear()
