"""Values that several domains speak of: text that may live in a blob, references, token usage, budgets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt


class Value(BaseModel):
    """A frozen part of an event."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class BlobRef(Value):
    """Content kept in the blob store because it is too large for a fact."""

    sha256: str
    size: NonNegativeInt
    preview: str = ""


class MessageRef(Value):
    """A message of a conversation: the fact that holds it, and the digest of how it reads.

    The digest lets a replay name the one fact whose text is not what the model saw.
    """

    seq: PositiveInt
    digest: str
    form: Literal["native", "text"] = "native"  # text: a tool's result reads as a user message, for guided turns


class Usage(Value):
    """Tokens of one model call, as the server counted them (0 = not reported)."""

    prompt_tokens: NonNegativeInt = 0
    completion_tokens: NonNegativeInt = 0
    cached_tokens: NonNegativeInt = 0

    @property
    def total(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Sampling(Value):
    """How the next token is chosen. Unset fields are left to the server."""

    temperature: float | None = None
    seed: int | None = None
    top_p: float | None = None
    max_tokens: PositiveInt | None = None


class Budgets(Value):
    """Hard bounds of a run, shared by all its agents (feature O29). None = unbounded."""

    model_calls: PositiveInt | None = 200
    tokens: PositiveInt | None = 2_000_000
    tool_calls: PositiveInt | None = 500
    wall_s: PositiveFloat | None = 7200.0


class Pins(Value):
    """What a run keeps though the engine moves on (feature O30): digests, and the engine's version."""

    template: str
    prompts: str = ""
    tools: str = ""
    rules: str = ""
    engine: str = ""


class Repair(Value):
    """One mend of what a model wrote, so that audit shows what it really said."""

    what: str
    before: str = ""
    after: str = ""


class ToolCall(Value):
    """A tool call that a model asked for, as the engine understood it.

    `call_id` is the engine's own, from the call's place; the server's id is not trusted to be unique.
    `source` says where it stood: `native`, or `salvaged` out of the content.
    """

    call_id: str
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    source: str = "native"
    error: str | None = None
    repairs: tuple[Repair, ...] = ()


class SeedFile(Value):
    """A text file that a run's workspace begins with. `path` is relative to the workspace."""

    path: str
    content: BlobRef


class FileChange(Value):
    """A file that a tool changed. Hashes are SHA-256; None = the file did not exist on that side."""

    path: str
    before_sha256: str | None = None
    after_sha256: str | None = None
    before: BlobRef | None = None


ShortText = Annotated[str, Field(max_length=4000)]
