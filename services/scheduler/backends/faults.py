"""How a model call fails. Each message says what to do next; `details["fragment"]` is text that had come.

A model call has no effect outside, so RETRY means that the next try may succeed, not how often to try:
that is the dispatcher's to bound.
"""

from __future__ import annotations

from typing import ClassVar

from shared.errors import Fault, Verdict


class BackendFault(Fault):
    """Any failure of a model call."""

    code: ClassVar[str] = "llm.failed"

    @property
    def fragment(self) -> str:
        """What the model had written; never to be acted on."""
        return str(self.details.get("fragment", ""))


class InferenceUnreachable(BackendFault):
    """Nothing listens at the configured address."""

    code = "llm.unreachable"
    verdict = Verdict.RETRY


class ConnectionDropped(BackendFault):
    """The server closed the connection before its answer was whole."""

    code = "llm.connection_dropped"
    verdict = Verdict.RETRY


class StreamBroken(BackendFault):
    """The answer ended in good order, but without a finish reason or the end marker."""

    code = "llm.stream_broken"
    verdict = Verdict.RETRY


class ProxyError(BackendFault):
    """A router in front of the server lost it."""

    code = "llm.proxy_error"
    verdict = Verdict.RETRY


class OutputUnparseable(BackendFault):
    """The server's own parser refused what the model wrote. Retry once, then change something."""

    code = "llm.output_unparseable"
    verdict = Verdict.RETRY


class ModelNotLoaded(BackendFault):
    """The server has no such model in memory, or lost it during the call: reload, then retry."""

    code = "llm.model_not_loaded"
    verdict = Verdict.RETRY


class ModelLoading(BackendFault):
    """The model is being loaded: wait. Such a wait is not a failed try."""

    code = "llm.model_loading"
    verdict = Verdict.RETRY


class ModelLoadFailed(BackendFault):
    """The server cannot load the model, and would fail again."""

    code = "llm.model_load_failed"


class OutOfMemory(BackendFault):
    """The server ran out of memory: something must be unloaded before another try."""

    code = "llm.out_of_memory"
    verdict = Verdict.RETRY


class Overloaded(BackendFault):
    """The server refuses for now: wait, `details["retry_after_s"]` if it said how long."""

    code = "llm.overloaded"
    verdict = Verdict.RETRY


class ContextExceeded(BackendFault):
    """The prompt does not fit: `details` has `prompt_tokens` and `context` if the server told."""

    code = "llm.context_exceeded"


class BackendRefused(BackendFault):
    """The request is wrong, or not allowed."""

    code = "llm.refused"


class BackendBroken(BackendFault):
    """The server failed on its side."""

    code = "llm.backend_broken"
    verdict = Verdict.RETRY


class ProtocolError(BackendFault):
    """The answer is not what an OpenAI-compatible server sends."""

    code = "llm.protocol_error"


class CallTimeout(BackendFault):
    """The caller's time was up; `details["kind"]` is total or idle."""

    code = "llm.timeout"


class StateUnknown(BackendFault):
    """The server did not say what it holds, or what became of a load: nothing may be concluded, least of all "empty".

    `details["cause"]` is the code of the failure behind it. Source: integrations, "LM Studio".
    """

    code = "slot.unknown"
    verdict = Verdict.UNKNOWN


class NotManaged(BackendFault):
    """This server offers no such management; somebody must do it there."""

    code = "llm.not_managed"


class ModelUnknown(BackendFault):
    """The server lists no such model: nothing was asked of it."""

    code = "llm.model_unknown"


class LoadedSmaller(BackendFault):
    """The model is loaded with less context than is wanted; a further load would stack a copy. Unload it first.

    `details` has `context` (tokens, as loaded) and `wanted`.
    """

    code = "llm.loaded_smaller"


class NoRoom(BackendFault):
    """The server holds as many models as it may: one more, and it would evict one of its own choice. Unload one first."""

    code = "llm.no_room"
    verdict = Verdict.RETRY
