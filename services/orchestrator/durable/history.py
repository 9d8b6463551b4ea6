"""What the log says of a run, indexed by the places of its effects. Pure: no I/O, no decisions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from services.orchestrator.durable.budgets import Spending
from shared.events import llm, run, signal, tool
from shared.events.content import MessageRef, Usage
from shared.events.envelope import Event, Fact
from shared.runstate import add_usage
from shared.transcript import reference

Answer = (llm.LlmCompleted, llm.LlmFailed, tool.ToolCompleted, tool.ToolDenied, tool.ToolFailed, tool.ToolInterrupted)

Place = tuple[str, str]

_KINDS: dict[type[Event], str] = {  # a table, because this is asked of every fact of every run
    **dict.fromkeys((run.LlmRequested, run.ToolRequested, run.BudgetRefused), "call"),
    **dict.fromkeys((run.StepCompleted, run.StepFailed), "step_end"),
    **{
        event: event.TYPE
        for event in (run.MessageAdded, run.ToolsOffered, run.ModelProfiled, run.StepStarted, run.Noted, run.TimerSet, run.VersionChosen)
    },
}


def place_of(event: Event) -> Place | None:
    """Where in the run's code a fact belongs: its kind and key. None = not written by the code."""
    kind = _KINDS.get(type(event))
    return None if kind is None else (kind, str(getattr(event, "key")))  # noqa: B009  all that stand in the table have one


@dataclass
class History:
    """The facts of one run, of all domains, in the order of the log."""

    run_id: str
    facts: list[Fact] = field(default_factory=list[Fact])
    at: dict[Place, Fact] = field(default_factory=dict[Place, Fact])
    answers: dict[str, Fact] = field(default_factory=dict[str, Fact])
    fired: dict[str, Fact] = field(default_factory=dict[str, Fact])
    digested: dict[int, str] = field(default_factory=dict[int, str])
    submitted: Fact | None = None
    started: Fact | None = None
    interrupted: Fact | None = None
    terminal: Fact | None = None
    cancel: Fact | None = None
    run_seq: int = 0
    spending: Spending = field(default_factory=Spending)
    seen: set[int] = field(default_factory=set[int])

    @classmethod
    def of(cls, run_id: str, facts: Iterable[Fact]) -> History:
        history = cls(run_id)
        for fact in facts:
            history.add(fact)
        return history

    def add(self, fact: Fact) -> bool:
        """Take in one fact; False if it was known."""
        if fact.seq in self.seen:
            return False
        self.seen.add(fact.seq)
        self.facts.append(fact)
        if fact.aggregate.domain == "run":
            self.run_seq = max(self.run_seq, fact.seq)
        self._index(fact)
        return True

    def _index(self, fact: Fact) -> None:
        event = fact.event
        if isinstance(event, Answer):
            if event.call_id not in self.answers:
                self.answers[event.call_id] = fact
                self.spending.answer(event)
        elif isinstance(event, run.LlmRequested | run.ToolRequested):
            self.spending.request(event)
            if isinstance(event, run.LlmRequested):
                self.digested.update({ref.seq: ref.digest for ref in event.adds})
        else:
            self._index_of_run(fact)
        place = place_of(event)
        if place is not None:
            self.at[place] = fact

    def _index_of_run(self, fact: Fact) -> None:
        match fact.event:
            case run.RunSubmitted():
                self.submitted = fact
            case run.RunStarted():
                self.started = fact
            case run.Interrupted():
                self.interrupted = self.interrupted or fact
            case run.RunCompleted() | run.RunFailed() | run.RunCancelled():
                self.terminal = fact
            case run.TimerFired(key=key):
                self.fired[key] = fact
            case signal.CancelRequested():
                self.cancel = self.cancel or fact
            case _:
                pass

    # ---- what a reader asks

    @property
    def submission(self) -> run.RunSubmitted:
        assert self.submitted is not None
        assert isinstance(self.submitted.event, run.RunSubmitted)
        return self.submitted.event

    def usage(self) -> Usage:
        total = Usage()
        for fact in self.answers.values():
            if isinstance(fact.event, llm.LlmCompleted):
                total = add_usage(total, fact.event.usage)
        return total

    def undigested(self) -> tuple[MessageRef, ...]:
        """References to the answers that no model call's digests cover: the terminal fact takes them."""
        return tuple(
            reference(fact)
            for fact in sorted(self.answers.values(), key=lambda fact: fact.seq)
            if fact.seq not in self.digested and not isinstance(fact.event, llm.LlmFailed)
        )

    def changed_files(self) -> tuple[str, ...]:
        """The files that the run's tools left behind, by name."""
        present: dict[str, bool] = {}
        for fact in sorted(self.answers.values(), key=lambda fact: fact.seq):
            if isinstance(fact.event, tool.ToolCompleted | tool.ToolFailed):
                for change in fact.event.changes:
                    present[change.path] = change.after_sha256 is not None
        return tuple(sorted(path for path, there in present.items() if there))

    def futile_resumes(self) -> int:
        """How often the run was taken over in a row without one fact of progress between."""
        count = 0
        for fact in reversed(self.facts):
            if isinstance(fact.event, run.RunResumed):
                count += 1
            elif fact.aggregate.domain == "run":
                break
        return count
