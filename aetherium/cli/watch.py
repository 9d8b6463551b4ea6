"""A run on the screen as it happens. Never silent for long: what is waited for is said again every few seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from aetherium.client import Delta, GatewayClient, Run
from shared.events import llm, run, tool
from shared.events.envelope import Fact
from shared.runlog import line_of

QUIET_S = 5.0
STYLES = {
    "run.completed": "bold green",
    "run.failed": "bold red",
    "run.cancelled": "yellow",
    "run.parked": "bold red",
    "run.noted": "yellow",
}


@dataclass
class Screen:
    """Prints facts as lines with the time since the start, and text as it is written."""

    console: Console
    monotonic: Callable[[], float] = time.monotonic
    waits_for: str = "an orchestrator takes the run"
    began: float = field(init=False)
    _said_at: float = field(init=False)
    _is_mid_line: bool = False

    def __post_init__(self) -> None:
        self.began = self._said_at = self.monotonic()

    @property
    def elapsed(self) -> float:
        return self.monotonic() - self.began

    def line(self, text: str, style: str = "") -> None:
        self._close()
        self.console.print(Text(f"{self.elapsed:7.1f} s  ", "dim") + Text(text, style), soft_wrap=True)
        self._said_at = self.monotonic()

    def delta(self, delta: Delta) -> None:
        text = delta.text or delta.reasoning
        if not text:
            return
        if not self._is_mid_line:
            self.console.print(" " * 11, end="")
        self.console.print(Text(text.replace("\n", "\n" + " " * 11), "italic dim" if delta.reasoning else "cyan"), end="", soft_wrap=True)
        self._is_mid_line = True
        self._said_at = self.monotonic()

    def fact(self, fact: Fact) -> None:
        self.waits_for = waited_for(fact) or self.waits_for
        text = line_of(fact)
        if text is not None:
            self.line(text, STYLES.get(fact.type, ""))

    def beat(self) -> None:
        """Say what is waited for, if nothing was said for a while."""
        if self.monotonic() - self._said_at >= QUIET_S:
            self.line(f"… {self.waits_for}", "dim")

    def _close(self) -> None:
        if self._is_mid_line:
            self.console.print()
            self._is_mid_line = False


def waited_for(fact: Fact) -> str | None:
    """What the run waits for after a fact; None = as before."""
    match fact.event:
        case llm.LlmQueued(position=position):
            return f"the model call waits, number {position} in the queue"
        case run.LlmRequested() | llm.LlmDispatched() | llm.LlmRetried():
            return "the model computes"
        case run.ToolRequested(tool=name):
            return f"{name} runs"
        case run.RunStarted() | run.RunResumed() | llm.LlmCompleted() | tool.ToolCompleted():
            return "the orchestrator works"
        case run.RunParked():
            return "the run is parked until the engine is mended"
        case _:
            return None


async def follow(client: GatewayClient, run_guid: str, screen: Screen) -> Run:
    """Show a run to its end, and give it."""
    beating = asyncio.create_task(_beat(screen))
    try:
        async with aclosing(client.events(run_guid, live=True)) as events:
            async for item in events:
                match item:
                    case Fact():
                        screen.fact(item)
                        if isinstance(item.event, run.RunParked):
                            break
                    case Delta():
                        screen.delta(item)
                    case _:
                        pass  # nothing was forgotten that is still on the screen
        return await client.status(run_guid)
    finally:
        beating.cancel()


async def _beat(screen: Screen) -> None:
    while True:
        await asyncio.sleep(1.0)
        screen.beat()
