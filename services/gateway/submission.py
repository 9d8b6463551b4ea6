"""How a request becomes facts: a project and a run, stored together or not at all, at most once per key."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.gateway.index import Index
from services.gateway.problems import KeyReused, TooLarge
from services.gateway.requests import Ask, RunFromTemplate, RunOnProject
from services.gateway.templates import Library
from shared import telemetry
from shared.blobs import Blobs
from shared.errors import BadInput, Conflict, LogUnavailable, NotFound, Verdict
from shared.eventlog import EventLog, Write
from shared.events.content import BlobRef, Budgets, Pins, SeedFile
from shared.events.envelope import Event, body_of
from shared.events.project import ProjectCreated
from shared.events.run import RunSubmitted
from shared.ids import derived_id, digest, new_id
from shared.subjects import Aggregate
from shared.template import Template

MAX_SUBMISSION = 200 * 1024  # bytes of the fact; a message is repeated in later facts beside other things
PATIENCE_S = 15.0  # how long a client waits for the log to take its request
_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class NotStoredYet(LogUnavailable):
    """The log did not say whether it has the request."""

    code = "log.not_stored_yet"
    verdict = Verdict.UNKNOWN


class Catalogue(Protocol):
    """The tools that exist now."""

    async def digest(self) -> str:
        """The digest of all of them.

        Raises:
            ServiceUnavailable: the tools service is away.
        """
        ...


@dataclass(frozen=True, slots=True)
class Accepted:
    """A submission that is in the log; `is_replay` = an earlier request with the same key put it there."""

    run_id: str
    project_id: int
    is_replay: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """What a run keeps to its end, as it lies in the blob store."""

    template: BlobRef
    pins: Pins
    files: tuple[SeedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What this engine adds to a request, and how long one may be."""

    engine: str
    budgets: Budgets
    max_message_chars: int


@dataclass
class Submitter:
    """Puts submissions into the log."""

    log: EventLog
    blobs: Blobs
    index: Index
    catalogue: Catalogue
    limits: Limits

    async def submit(self, ask: RunFromTemplate | RunOnProject, library: Library, *, key: str | None, trace: str | None) -> Accepted:
        """Store the run that `ask` describes.

        Raises:
            NotFound: no such template or project.
            KeyReused: the key was used for another request.
            ServiceUnavailable: the tools service does not say what tools there are.
        """
        check_length(ask.message, self.limits.max_message_chars)
        check_key(key)
        run_id = derived_id("run", key) if key is not None else new_id()
        if key is not None and (earlier := await self._earlier(run_id, ask)):
            return earlier
        template = library.get(ask.template_id if isinstance(ask, RunFromTemplate) else await self._template_of(ask.project_id))
        template = ask.overrides.resolved(template)
        blob = await self.blobs.put(template.as_bytes(), preview=template.name)
        files = await self._kept(ask.files) if isinstance(ask, RunFromTemplate) else ()
        pins = pins_of(template, blob, await self.catalogue.digest(), self.limits.engine)
        parent = trace if trace and _TRACEPARENT.fullmatch(trace) else telemetry.new_traceparent()
        with telemetry.span("gateway.submit", parent, run_id=run_id):
            return await self._store(run_id, ask, template, Kept(blob, pins, files))

    async def _kept(self, files: Mapping[str, str]) -> tuple[SeedFile, ...]:
        return tuple([SeedFile(path=path, content=await self.blobs.put(text.encode())) for path, text in files.items()])

    async def _store(self, run_id: str, ask: RunFromTemplate | RunOnProject, template: Template, kept: Kept) -> Accepted:
        """The log decides: whoever appends first to the run is its submitter, and to the project its creator."""
        while True:
            project_id = ask.project_id if isinstance(ask, RunOnProject) else self.index.take_project_id()
            submitted = submission_of(ask, project_id, template, kept, self.limits.budgets)
            check_size(submitted)
            writes = [Write(Aggregate("run", run_id), [submitted], 0)]
            if isinstance(ask, RunFromTemplate):
                writes.insert(0, Write(Aggregate("project", str(project_id)), [project_of(ask, template)], 0))
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self.log.commit(writes)
            except TimeoutError as error:
                raise NotStoredYet(
                    "the event log does not answer, so the run may start late or not at all: send the request again with the same "
                    "Idempotency-Key to learn which, without starting it twice"
                ) from error
            except Conflict:
                if earlier := await self._earlier(run_id, ask):
                    return earlier
                if isinstance(ask, RunOnProject):
                    raise
                continue  # another gateway took the project's number
            return Accepted(run_id, project_id)

    async def _earlier(self, run_id: str, ask: Ask) -> Accepted | None:
        """What an earlier request with the same key made, if there was one."""
        stored = await self.log.last(submitted_subject(run_id))
        if stored is None or not isinstance(stored.event, RunSubmitted):
            return None
        if stored.event.request_digest != ask.digest():
            raise KeyReused(
                "this Idempotency-Key was used for another request: use a new key for a new request",
                field="Idempotency-Key",
                runGuid=run_id,
            )
        return Accepted(run_id, stored.event.project_id, is_replay=True)

    async def _template_of(self, project_id: int) -> str:
        created = await self.log.last(Aggregate("project", str(project_id)).filter.replace(">", "created"))
        if created is None or not isinstance(created.event, ProjectCreated):
            raise NotFound(f"no project {project_id}: start one with /api/orchestrator/run-from-template", field="projectId")
        return created.event.template_id


def submitted_subject(run_id: str) -> str:
    return Aggregate("run", run_id).filter.replace(">", "submitted")


def check_length(message: str, limit: int) -> None:
    if len(message) > limit:
        raise TooLarge(f"message: it has {len(message)} characters; at most {limit} are taken", field="message", limit=limit)


def check_size(event: Event) -> None:
    """A message within the limit of characters may still be too many bytes."""
    size = len(body_of(event))
    if size > MAX_SUBMISSION:
        raise TooLarge(
            f"message: the request takes {size} bytes; at most {MAX_SUBMISSION} are stored", field="message", limit=MAX_SUBMISSION
        )


def check_key(key: str | None) -> None:
    if key is not None and not _KEY.fullmatch(key):
        raise BadInput("Idempotency-Key: it must be 1 to 255 printable ASCII characters", field="Idempotency-Key")


def pins_of(template: Template, blob: BlobRef, tools: str, engine: str) -> Pins:
    return Pins(template=blob.sha256, prompts=digest(_prompts(template)), tools=tools, engine=engine)


def _prompts(template: Template) -> Sequence[str]:
    return [node.system_prompt for node in template.nodes]


def submission_of(ask: RunFromTemplate | RunOnProject, project_id: int, template: Template, kept: Kept, budgets: Budgets) -> RunSubmitted:
    return RunSubmitted(
        project_id=project_id,
        template_id=template.id,
        template=kept.template,
        message=ask.message,
        pins=kept.pins,
        budgets=ask.overrides.budgets_over(budgets),
        model=ask.overrides.model_id,
        sampling=ask.overrides.sampling(),
        source_agent=ask.source_agent,
        request_digest=ask.digest(),
        files=kept.files,
    )


def project_of(ask: RunFromTemplate, template: Template) -> ProjectCreated:
    return ProjectCreated(name=ask.project_name, template_id=template.id, description=ask.description, workspace_tier=ask.workspace_tier)
