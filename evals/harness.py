"""Runs tasks through the whole engine, from the gateway to the tools, and judges what is left in the workspace.

Nothing here knows any task; tasks are data, and the check of each is the only judge.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aetherium.client import Refused, Run, Unreachable
from evals import conditions, mechanisms
from evals.engine import CannotEvaluate, Target
from evals.outcome import Failure, Result, result_of
from evals.progress import Progress
from evals.report import Report, Series
from evals.task import Task, Verdict, check
from shared.errors import BadInput, NotFound
from shared.events import run
from shared.events.envelope import Fact
from shared.template import Template

GRACE_S = 60.0  # what a run gets on top of its wall time to be started and ended
NOT_KEPT = frozenset({"__pycache__", ".pytest_cache"})
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured, and how."""

    tasks: tuple[Task, ...]
    template: str = "file-worker"
    model: str | None = None
    slot: str | None = None
    repeat: int = 1
    temperature: float = 0.0
    budget_s: float = 150.0
    without: tuple[str, ...] = ()
    ablate: tuple[str, ...] = ()
    first: Report | None = None  # an earlier report, whose main series is taken instead of made again

    def check(self) -> None:
        """
        Raises:
            BadInput: the earlier report is of other conditions, or lacks a task.
        """
        if self.first is None:
            return
        given = self.first.conditions
        for name in ("template", "temperature", "budget_s", "repeat", "without"):
            if getattr(given, name) != getattr(self, name):
                raise BadInput(f"that report was made with {name} {getattr(given, name)!r}, not {getattr(self, name)!r}", field="first")
        made = {(each.task, each.attempt) for each in self.first.main.results}
        lacking = [task.id for task in self.tasks for attempt in range(1, self.repeat + 1) if (task.id, attempt) not in made]
        if lacking:
            raise BadInput(f"that report has no result of {lacking[0]!r}: name the tasks that it has", field="first")

    def series(self) -> tuple[tuple[str, ...], ...]:
        """The mechanisms that each pass over the tasks leaves out; the main one is the first."""
        return (self.without, *((*self.without, name) for name in self.ablate if name not in self.without))

    def overrides(self, without: tuple[str, ...], attempt: int) -> dict[str, Any]:
        """What a run does otherwise than the template says."""
        features = {_camel(name): value for name, value in mechanisms.switched_off(without).items()}
        chosen = {"modelId": self.model, "slot": self.slot, "features": features or None}
        return {
            "temperature": self.temperature,
            "seed": attempt,
            "budgets": {"wallS": self.budget_s},
            **{name: value for name, value in chosen.items() if value is not None},
        }


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


@dataclass
class Learned:
    """What the facts of runs say about the engine and the model."""

    engine: str = ""
    model: str = ""
    guided: bool | None = None

    def see(self, fact: Fact) -> None:
        match fact.event:
            case run.RunStarted(engine=engine):
                self.engine = engine
            case run.ModelProfiled(model=model, guided=guided):
                self.model, self.guided = model or self.model, guided
            case _:
                pass


@dataclass
class Evaluation:
    """An evaluation under way. `report` can be asked for at any moment: what was stopped is not lost."""

    plan: Plan
    target: Target
    progress: Progress
    template: Template
    known: dict[str, Any]
    learned: Learned = field(default_factory=Learned)
    done: list[Series] = field(default_factory=list[Series])

    async def make(self) -> None:
        """Every attempt of every series, one after the other: tasks beside each other would share the machine."""
        for without in self.plan.series():
            if self.plan.first is not None and not self.done:
                self.done.append(self._main_of(self.plan.first))
                continue
            self.done.append(Series(without=without))
            if without:
                self.progress.say(f"without {', '.join(without)}")
            for attempt in range(1, self.plan.repeat + 1):
                for number, task in enumerate(self.plan.tasks, 1):
                    result = await self._carried(task, attempt, without) or await self._attempt(task, attempt, number, without)
                    self.done[-1] = Series(without=without, results=(*self.done[-1].results, result))

    def _main_of(self, earlier: Report) -> Series:
        wanted = {task.id for task in self.plan.tasks}
        self.learned = Learned(earlier.conditions.engine, earlier.conditions.model, earlier.conditions.guided)
        return Series(without=earlier.main.without, results=tuple(each for each in earlier.main.results if each.task in wanted))

    async def _carried(self, task: Task, attempt: int, without: tuple[str, ...]) -> Result | None:
        """The main series' result of the task, where what is left out now changed nothing in its run.

        The run's code is executed again against its log without the mechanism. If it asks for the same all the way, a model that
        always takes the likeliest token would be asked the same and answer the same.
        """
        known = next((each for each in self.done[0].results if (each.task, each.attempt) == (task.id, attempt)), None)
        off = [name for name in without if name not in self.plan.without]
        if self.plan.temperature > 0 or self.target.nats is None or known is None or not known.status or not off:
            return None
        if not await asyncio.to_thread(agrees_without, self.target.nats, known.run_guid, off):
            return None
        self.progress.say(f"{task.id}: without {', '.join(off)} its run would be the same")
        return known.model_copy(update={"carried": True})

    async def _attempt(self, task: Task, attempt: int, number: int, without: tuple[str, ...]) -> Result:
        again = f" #{attempt}" if self.plan.repeat > 1 else ""
        self.progress.begin(f"[{number}/{len(self.plan.tasks)}] {task.id}{again}", "the run is submitted")
        async with self.progress.beating():
            try:
                ended = await self._run(task, attempt, without)
                self.progress.waiting("the workspace is checked")
                result = await self._judged(task, attempt, ended)
            except NotEnded as late:
                result = _unjudged(task, attempt, late)
        self.progress.end(result)
        return result

    async def _run(self, task: Task, attempt: int, without: tuple[str, ...]) -> Run:
        """The run at its end.

        Raises:
            NotEnded: it is parked, or still not over; it was cancelled.
        """
        client = self.target.client
        submission = await client.submit(
            self.plan.template,
            task.prompt.strip(),
            project=f"eval-{task.id}",
            files=task.files,
            overrides=self.plan.overrides(without, attempt),
            source_agent="eval",
        )
        ended = False
        try:
            async with asyncio.timeout(self.plan.budget_s + GRACE_S):
                ended = await self._follow(submission.run_guid)
                state = await client.status(submission.run_guid)
        except TimeoutError:
            raise NotEnded(submission.run_guid, f"the engine did not end the run within {self.plan.budget_s + GRACE_S:g} s") from None
        finally:
            if not ended:
                await self._cancel(submission.run_guid)
        if not ended:
            raise NotEnded(submission.run_guid, f"the engine parked the run: {state.reason}")
        return state

    async def _follow(self, run_guid: str) -> bool:
        """Whether the run came to an end; False when it is parked."""
        async with aclosing(self.target.client.events(run_guid)) as events:
            async for item in events:
                if isinstance(item, Fact):
                    self.progress.fact(item)
                    self.learned.see(item)
                    if isinstance(item.event, (*run.TERMINAL, run.RunParked)):
                        return not isinstance(item.event, run.RunParked)
        return False

    async def _cancel(self, run_guid: str) -> None:
        with suppress(Refused, Unreachable, TimeoutError):
            async with asyncio.timeout(5):
                await self.target.client.cancel(run_guid, "the evaluation gave it up")

    async def _judged(self, task: Task, attempt: int, ended: Run) -> Result:
        if not ended.workspace.is_dir():
            if ended.tool_calls:
                raise CannotEvaluate(f"the workspace {ended.workspace} is not on this machine: run the evaluation where the engine runs")
            verdict, left = Verdict(False, "it called no tool"), dict[str, bytes]()
        else:
            verdict = await asyncio.to_thread(check, task, ended.workspace)
            left = await asyncio.to_thread(files_of, ended.workspace)
        return result_of(task, attempt, ended, verdict, left, max_turns=self.template.circuit_breaker.max_turns_per_agent)

    def report(self) -> Report:
        plan = self.plan
        main, *ablation = self.done or [Series(without=plan.without)]
        wanted = len(plan.series()) * plan.repeat * len(plan.tasks)
        own = {name: getattr(plan, name) for name in ("template", "temperature", "budget_s", "repeat", "without")}
        learned = {"engine": self.learned.engine, "guided": self.learned.guided, "slot": plan.slot or ""}
        limits = {"max_turns": self.template.circuit_breaker.max_turns_per_agent, "max_tokens": self.template.nodes[0].max_tokens}
        model = self.learned.model or plan.model or self.known.get("model", "")
        given = conditions.Conditions.model_validate({**self.known, **own, **learned, **limits, "model": model})
        if plan.first is not None:  # what is measured now goes with it
            given = plan.first.conditions
        complete = sum(len(each.results) for each in self.done) == wanted
        return Report(conditions=given, complete=complete, main=main, ablation=tuple(ablation))


class NotEnded(Exception):
    """A run whose workspace is not judged, because the engine failed."""

    def __init__(self, run_guid: str, reason: str) -> None:
        super().__init__(reason)
        self.run_guid, self.reason = run_guid, reason


def _unjudged(task: Task, attempt: int, late: NotEnded) -> Result:
    return Result(
        task=task.id,
        kind=task.kind,
        level=task.level,
        attempt=attempt,
        passed=False,
        failure=Failure.ENGINE_ERROR,
        detail="the workspace was not checked",
        status="",
        reason=late.reason,
        run_guid=late.run_guid,
    )


def agrees_without(nats: str, run_guid: str, off: Sequence[str]) -> bool:
    """Whether a run's code, executed again without some mechanisms, does just what the log says."""
    left_out = [part for name in off for part in ("--without", name)]
    command = [sys.executable, "-P", "-m", "services.orchestrator.verify", "--run", run_guid, "--nats", nats, *left_out]
    return subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=GRACE_S).returncode == 0


def files_of(workspace: Path) -> dict[str, bytes]:
    """The files of a workspace with their first mebibyte, without what tests and imports leave behind."""
    return {str(path.relative_to(workspace)): _head(path) for path in _walk(workspace)}


def _walk(workspace: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(workspace):
        names[:] = sorted(set(names) - NOT_KEPT)
        yield from (path for name in sorted(files) if (path := Path(folder, name)).is_file() and not path.is_symlink())


def _head(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        return file.read(READ_BYTES)
    return b""


async def begin(plan: Plan, engine: Target, progress: Progress) -> Evaluation:
    """Learn the conditions.

    Raises:
        Refused: the engine has no such template.
    """
    template = Template.model_validate(await engine.client.template(plan.template))
    known = await conditions.of_model(engine.model)
    return Evaluation(plan, engine, progress, template, {**known, **conditions.of_this_machine()})


def chosen(tasks: Sequence[Task], names: Sequence[str]) -> tuple[Task, ...]:
    """The tasks of these names; all of them when none is named.

    Raises:
        NotFound: there is no task of a name.
    """
    by_name = {task.id: task for task in tasks}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise NotFound(f"no task {unknown[0]!r}. Known: {', '.join(by_name)}", field="tasks")
    return tuple(by_name[name] for name in dict.fromkeys(names)) if names else tuple(tasks)
