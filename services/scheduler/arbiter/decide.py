"""`decide`: the facts that follow from a command. Same state, command and time: same facts."""

from __future__ import annotations

from datetime import datetime

from services.scheduler.arbiter import backend, commands, requests
from services.scheduler.arbiter.commands import Command
from services.scheduler.arbiter.draft import Draft
from services.scheduler.arbiter.settle import settle
from services.scheduler.arbiter.state import NOTHING, Answering, State
from services.scheduler.arbiter.sweep import sweep
from shared.events.card import CardFact
from shared.events.envelope import Event
from shared.subjects import Aggregate


def decide(state: State, command: Command, now: datetime, answering: Answering = NOTHING) -> list[Event]:
    """The facts of one command, to be stored together before the world is touched; `evolve` makes the next state of them.

    `answering`: calls in flight by (slot, model). When one ends that somebody may wait for, send a `Sweep`.

    Raises:
        BadRequest: a field of the command is wrong; nothing happened.
        UnknownLease: no lease has that id.
        LeaseEnded: the lease is over.
    """
    return decide_and_evolve(state, command, now, answering)[0]


def decide_and_evolve(state: State, command: Command, now: datetime, answering: Answering = NOTHING) -> tuple[list[Event], State]:
    """`decide`, with the state after its facts, which need not be folded again."""
    draft = Draft(state, now, answering)
    _handle(draft, command)
    settle(draft)
    return draft.facts, draft.state


def aggregate_of(fact: Event) -> Aggregate:
    """Where a fact of the arbiter belongs in the log: its slot, or its card."""
    scope = fact.card if isinstance(fact, CardFact) else str(getattr(fact, "slot", ""))
    return Aggregate(fact.TYPE.partition(".")[0], scope)


def _handle(draft: Draft, command: Command) -> None:
    match command:
        case commands.RequestLease():
            requests.request(draft, command)
        case commands.RequestGroup():
            requests.request_group(draft, command)
        case commands.Renew():
            requests.renew(draft, command)
        case commands.Release():
            requests.release(draft, command)
        case commands.EndRun():
            requests.end_run(draft, command)
        case commands.NeedModel():
            requests.need_model(draft, command)
        case commands.HoldCard():
            requests.hold(draft, command)
        case commands.ReleaseHold():
            requests.release_hold(draft, command)
        case commands.Sweep():
            sweep(draft)
        case _:
            _handle_backend(draft, command)


def _handle_backend(
    draft: Draft,
    command: commands.MeasureCard
    | commands.ObserveSlot
    | commands.LoseSlot
    | commands.FinishLoad
    | commands.FailLoad
    | commands.FinishUnload
    | commands.FailUnload,
) -> None:
    match command:
        case commands.MeasureCard():
            backend.measure(draft, command)
        case commands.ObserveSlot():
            backend.observe(draft, command)
        case commands.LoseSlot():
            backend.lose(draft, command)
        case commands.FinishLoad():
            backend.finish_load(draft, command)
        case commands.FailLoad():
            backend.fail_load(draft, command)
        case commands.FinishUnload():
            backend.finish_unload(draft, command)
        case commands.FailUnload():
            backend.fail_unload(draft, command)
