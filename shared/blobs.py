"""Content-addressed blobs: what is too large for a fact, and before-images of changed files.

A blob lives under its SHA-256 in the stream `BLOBS`, in chunks of at most 512 KiB. Putting the same
content again stores nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import nats.errors
import orjson

from shared import subjects
from shared.bus import Bus
from shared.errors import LogUnavailable, NotFound
from shared.events.content import BlobRef

CHUNK = 512 * 1024
PREVIEW = 200


class Blobs(Protocol):
    """Put and get content by its digest."""

    async def put(self, content: bytes, *, preview: str = "") -> BlobRef: ...

    async def get(self, ref: BlobRef) -> bytes:
        """The content.

        Raises:
            NotFound: the store does not hold it, or not whole.
        """
        ...


def reference_to(content: bytes, preview: str = "") -> BlobRef:
    return BlobRef(sha256=hashlib.sha256(content).hexdigest(), size=len(content), preview=preview[:PREVIEW])


@dataclass(frozen=True)
class NatsBlobs:
    """Blobs in JetStream. The chunks of one blob are messages of one subject, in order."""

    bus: Bus

    async def put(self, content: bytes, *, preview: str = "") -> BlobRef:
        ref = reference_to(content, preview)
        chunks = [content[at : at + CHUNK] for at in range(0, len(content), CHUNK)] or [b""]
        for place in range(await self._stored(ref), len(chunks)):
            await self._append(ref, chunks[place], place)
        return ref

    async def _stored(self, ref: BlobRef) -> int:
        """How many chunks are there already: all of them, or those of a writer that died."""
        subject = subjects.blob(ref.sha256)
        info = await self.bus.api(f"STREAM.INFO.{subjects.BLOB_STREAM}", {"subjects_filter": subject})
        counts: dict[str, int] = info["state"].get("subjects") or {}
        return counts.get(subject, 0)

    async def _append(self, ref: BlobRef, chunk: bytes, place: int) -> None:
        # The message id makes the same chunk of a second writer a duplicate that is not stored.
        headers = {"Nats-Msg-Id": f"{ref.sha256}-{place}"}
        try:
            reply = await self.bus.ask(subjects.blob(ref.sha256), chunk, headers=headers)
        except (TimeoutError, nats.errors.Error) as error:
            raise LogUnavailable(f"the blob store did not take {ref.sha256[:12]}") from error
        answer = orjson.loads(reply.data)
        if "error" in answer:
            raise LogUnavailable(f"the blob store refused {ref.sha256[:12]}: {answer['error'].get('description')}")

    async def get(self, ref: BlobRef) -> bytes:
        parts: list[bytes] = []
        size, seq = 0, 1
        while size < ref.size or not parts:
            ask = {"seq": seq, "next_by_subj": subjects.blob(ref.sha256)}
            try:
                message = await self.bus.ask(f"$JS.API.DIRECT.GET.{subjects.BLOB_STREAM}", orjson.dumps(ask))
            except (TimeoutError, nats.errors.Error) as error:
                raise LogUnavailable(f"the blob store did not answer for {ref.sha256[:12]}") from error
            headers = message.headers or {}
            if "Nats-Sequence" not in headers:
                raise NotFound(f"no blob {ref.sha256}", sha256=ref.sha256)
            parts.append(message.data)
            size += len(message.data)
            seq = int(headers["Nats-Sequence"]) + 1
        content = b"".join(parts)
        if hashlib.sha256(content).hexdigest() != ref.sha256:
            raise NotFound(f"blob {ref.sha256} is damaged", sha256=ref.sha256)
        return content
