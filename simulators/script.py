"""The script of a simulated model: what it answers, decided by the request alone.

A turn is chosen by the number of assistant messages that the request already holds, so a retry, a
resume after a crash and a second process all get the same answer. Only a fault may be limited to its
first requests, and that count lives in the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

Message = Mapping[str, Any]


class FaultKind(StrEnum):
    """How an answer goes wrong. The wire form of each was seen on a real server."""

    DROP_BEFORE_ANSWER = "drop_before_answer"  # the socket closes where the status line should be
    DROP_MID_STREAM = "drop_mid_stream"  # the socket closes within the body
    HALF_STREAM = "half_stream"  # the body ends in good order, without finish_reason and [DONE]
    ERROR_IN_STREAM = "error_in_stream"  # an error object under status 200
    PROXY_ERROR_IN_STREAM = "proxy_error_in_stream"  # plain text of a router whose child died
    GARBAGE = "garbage"  # broken JSON as an event
    NEVER = "never"  # no answer until the client leaves
    HTTP_500 = "http_500"
    PARSER_REJECTS = "parser_rejects"  # 500: the server's own chat parser refused the text
    LOADING = "loading"  # 503
    CONTEXT_EXCEEDED = "context_exceeded"  # 400


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScriptedCall(_Part):
    """A native tool call. `arguments` as text is sent as it stands, broken JSON included."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)
    id: str | None = None


class Turn(_Part):
    """One assistant turn, or `times` of them. `${user}` and `${turn}` in texts and arguments are filled in."""

    content: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    reasoning: str = ""
    finish_reason: str | None = None
    times: PositiveInt = 1
    chunk: PositiveInt = 12  # characters a delta
    first_token_delay_s: NonNegativeFloat = 0.0
    delay_s: NonNegativeFloat = 0.0  # before every later delta
    fault: FaultKind | None = None
    first_n: PositiveInt | None = None  # the fault hits only the first n requests of this turn; None = all


class Conversation(_Part):
    """Turns for requests whose last matching user message contains `match`; None matches all."""

    match: str | None = None
    turns: tuple[Turn, ...] = Field(min_length=1)


class Chosen(_Part):
    """A turn with its place: the key of its fault counter and of its ids."""

    conversation: int
    entry: int
    turn: NonNegativeInt
    spec: Turn
    user: str = ""


class Script(_Part):
    """A whole simulated server. A file may also hold a bare list of turns."""

    model: str = "scripted"
    context: PositiveInt = 32_768  # tokens per slot
    slots: PositiveInt = 4
    load_s: NonNegativeFloat = 0.0  # every endpoint answers 503 until then
    turns: tuple[Turn, ...] = ()
    conversations: tuple[Conversation, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _bare_list(cls, value: Any) -> Any:
        return {"turns": cast("list[Any]", value)} if isinstance(value, list) else value

    @model_validator(mode="after")
    def _has_turns(self) -> Script:
        if not self.turns and not self.conversations:
            raise ValueError("a script needs `turns` or `conversations`")
        return self

    def all_conversations(self) -> tuple[Conversation, ...]:
        """The named conversations, then the plain turns as the one that matches the rest."""
        return (*self.conversations, *((Conversation(turns=self.turns),) if self.turns else ()))

    def choose(self, messages: Sequence[Message]) -> Chosen | None:
        """The turn that answers `messages`, or None if no conversation matches.

        Beyond the last turn the last one is repeated.
        """
        said = [text_of(message) for message in reversed(messages) if message.get("role") == "user"]
        done = sum(1 for message in messages if message.get("role") == "assistant")
        for number, conversation in enumerate(self.all_conversations()):
            user = next((text for text in said if conversation.match is None or conversation.match in text), None)
            if user is None and (conversation.match is not None or said):
                continue
            entry, spec = _entry(conversation.turns, done)
            return Chosen(conversation=number, entry=entry, turn=done, spec=spec, user=user or "")
        return None


def _entry(turns: Sequence[Turn], done: int) -> tuple[int, Turn]:
    end = 0
    for entry, turn in enumerate(turns):
        end += turn.times
        if done < end:
            return entry, turn
    return len(turns) - 1, turns[-1]


def text_of(message: Message) -> str:
    """The text of a chat message, whose content may be a string, parts, or absent."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = content or []
    return "".join(str(part.get("text", "")) for part in parts)


def filled(value: Any, chosen: Chosen) -> Any:
    """`value` with `${user}` and `${turn}` replaced in every string."""
    if isinstance(value, str):
        return value.replace("${user}", chosen.user).replace("${turn}", str(chosen.turn))
    if isinstance(value, dict):
        return {key: filled(item, chosen) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [filled(item, chosen) for item in cast("list[Any]", value)]
    return value


def parse_script(text: str) -> Script:
    """A script from its YAML text. Raises `pydantic.ValidationError` naming the wrong key."""
    return Script.model_validate(yaml.safe_load(text))


def load_script(path: Path) -> Script:
    return parse_script(path.read_text(encoding="utf-8"))


DEFAULT_SCRIPT = Path(__file__).parent / "scripts" / "quick-script-demo.yaml"
