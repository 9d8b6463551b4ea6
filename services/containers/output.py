"""The output of a command in bounded memory: its beginning, its end, and how much was left out between."""

from __future__ import annotations

from collections import deque

HEAD_BYTES = 24 * 2**10
TAIL_BYTES = 40 * 2**10


class HeadAndTail:
    """Bytes in, text out; never holds more than the two bounds and one chunk."""

    def __init__(self, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._head_bound, self._tail_bound = head, tail
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._total = 0

    def add(self, chunk: bytes) -> None:
        self._total += len(chunk)
        room = self._head_bound - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail.append(chunk)
            self._tail_size += len(chunk)
            while self._tail_size - len(self._tail[0]) >= self._tail_bound:
                self._tail_size -= len(self._tail.popleft())

    @property
    def cut(self) -> int:
        """Bytes that `text` does not show."""
        return max(0, self._total - len(self._head) - self._tail_bound)

    def text(self) -> str:
        """What was kept, with the cut stated; bytes that are no UTF-8 are replaced."""
        tail = b"".join(self._tail)[-self._tail_bound :] if self._tail else b""
        if not self.cut:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        middle = f"\n[{self.cut:,} bytes cut]\n"
        return self._head.decode("utf-8", "replace") + middle + tail.decode("utf-8", "replace")
