"""A file's bytes as text, and back to the same bytes: encoding, byte-order mark and line ends are kept."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
# What no text holds: control characters other than tab, line ends, form feed and escape.
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_SNIFFED = 65_536


@dataclass(frozen=True, slots=True)
class TextFile:
    """Text with its own line ends. Single-byte text that is not UTF-8 goes through latin-1, which loses no byte."""

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""

    def encoded(self, text: str) -> bytes:
        """`text` as this file stores it.

        Raises:
            UnicodeEncodeError: the file's encoding has no such character.
        """
        return self.mark + text.encode(self.encoding)

    @property
    def line_end(self) -> str:
        crlf = self.text.count("\r\n")
        return "\r\n" if crlf and crlf * 2 >= self.text.count("\n") else "\n"


def decode(data: bytes) -> TextFile | None:
    """The text of a file, or None when it is binary."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return TextFile(data[len(mark) :].decode(encoding), encoding, mark)
            except UnicodeDecodeError:
                return None
    if is_binary(data):
        return None
    try:
        return TextFile(data.decode())
    except UnicodeDecodeError:
        return TextFile(data.decode("latin-1"), "latin-1")


def is_binary(data: bytes) -> bool:
    """Whether bytes without a byte-order mark cannot be text."""
    return _BINARY.search(data, 0, _SNIFFED) is not None


def is_text(data: bytes) -> bool:
    """Whether a before-image is worth keeping as text."""
    return decode(data) is not None
