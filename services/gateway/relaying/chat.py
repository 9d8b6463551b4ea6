"""A chat request as it came: only its model is read and replaced, in the bytes themselves. Pure.

Read and written anew, a body would not be the same: numbers beyond 64 bits, halves of surrogate pairs, the order and doubles of keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shared.text import clean

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()
MAX_NAME = 100


class WrongChat(Exception):
    """The request cannot be passed on; `param` is the field to mend, as OpenAI's errors name it."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param = message, param


@dataclass(frozen=True, slots=True)
class Chat:
    """`user` is how the client names whom it speaks for; `spans` are where the model's name stands in `text`."""

    text: str
    model: str
    is_stream: bool
    user: str
    spans: tuple[tuple[int, int], ...]

    def for_model(self, name: str) -> bytes:
        """The body with another model's name, and else byte for byte the same."""
        parts, at = list[str](), 0
        for start, end in self.spans if name != self.model else ():
            parts += [self.text[at:start], json.dumps(name)]
            at = end
        return "".join((*parts, self.text[at:])).encode()


def read(raw: bytes) -> Chat:
    """The request.

    Raises:
        WrongChat: it is no JSON object, or lacks what every chat has. What else it holds is for the server to judge.
    """
    try:
        text = raw.decode()
        members = list(_members(text))
    except UnicodeDecodeError as error:
        raise WrongChat(f"the body is not UTF-8: byte {error.start} cannot be read") from error
    except json.JSONDecodeError as error:
        raise WrongChat(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise WrongChat("the body is nested too deeply") from error
    fields = {key: value for key, value, _, _ in members}
    _check(fields)
    spans = tuple((start, end) for key, _, start, end in members if key == "model")
    user = fields.get("user") or fields.get("safety_identifier")
    return Chat(text, fields["model"], fields.get("stream") is True, clean(user)[:MAX_NAME] if isinstance(user, str) else "", spans)


def _check(fields: dict[str, Any]) -> None:
    if not fields.get("model"):
        raise WrongChat("model name is missing from the request", "model")
    if not isinstance(fields["model"], str):
        raise WrongChat("model must be a string", "model")
    if not isinstance(fields.get("messages"), list) or not fields["messages"]:
        raise WrongChat("messages must be a list with at least one message", "messages")
    if not isinstance(fields.get("stream"), bool | None):
        raise WrongChat("stream must be true or false", "stream")


def _members(text: str) -> Iterator[tuple[str, Any, int, int]]:
    """Key, value and the value's place, of each member of the object that the text is."""
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        _DECODER.raw_decode(text, at)  # which says what is wrong with it, if it is no JSON at all
        raise WrongChat("the body must be a JSON object")
    at = _skip(text, at + 1)
    is_first = True
    while text[at : at + 1] != "}" or not is_first:
        key, at = _DECODER.raw_decode(text, at)
        if not isinstance(key, str):
            raise json.JSONDecodeError("expected a key in quotes", text, at)
        start = _skip(text, _expect(text, _skip(text, at), ":"))
        value, end = _DECODER.raw_decode(text, start)
        yield key, value, start, end
        at, is_first = _skip(text, end), False
        if text[at : at + 1] == "}":
            break
        at = _skip(text, _expect(text, at, ","))
    if (rest := _skip(text, at + 1)) != len(text):
        raise json.JSONDecodeError("something follows the object", text, rest)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _expect(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise json.JSONDecodeError(f"expected {sign!r}", text, at)
    return at + 1
