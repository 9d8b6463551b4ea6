"""What a blob store promises, on its in-memory twin and on a real server alike."""

from __future__ import annotations

import hashlib
import os

import pytest

from shared import subjects
from shared.blobs import CHUNK, PREVIEW, Blobs, NatsBlobs, reference_to
from shared.bus import Bus
from shared.errors import NotFound
from shared.events.content import BlobRef
from shared.testing.memory import MemoryBlobs
from tests.requirements import covers


@pytest.fixture(params=["memory", "nats"])
def blobs(request: pytest.FixtureRequest) -> Blobs:
    return MemoryBlobs() if request.param == "memory" else NatsBlobs(request.getfixturevalue("bus"))


async def stored_chunks(bus: Bus, ref: BlobRef) -> int:
    subject = subjects.blob(ref.sha256)
    info = await bus.api(f"STREAM.INFO.{subjects.BLOB_STREAM}", {"subjects_filter": subject})
    return (info["state"].get("subjects") or {}).get(subject, 0)


@covers("blobs.by_digest")
@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
async def test_content_of_any_size_comes_back_byte_for_byte(blobs: Blobs, size: int) -> None:
    content = os.urandom(size)
    ref = await blobs.put(content)
    assert (ref.sha256, ref.size) == (hashlib.sha256(content).hexdigest(), size)
    assert await blobs.get(ref) == content


async def test_a_reference_carries_the_beginning_of_a_preview(blobs: Blobs) -> None:
    ref = await blobs.put(os.urandom(10), preview="p" * 1000)
    assert ref.preview == "p" * PREVIEW


async def test_what_was_never_stored_is_not_found(blobs: Blobs) -> None:
    with pytest.raises(NotFound) as missing:
        await blobs.get(reference_to(os.urandom(20)))
    assert len(missing.value.details["sha256"]) == 64


@covers("blobs.by_digest")
async def test_damaged_content_is_not_found_rather_than_returned(blobs: Blobs) -> None:
    ref = reference_to(os.urandom(20))
    if isinstance(blobs, MemoryBlobs):
        blobs.content[ref.sha256] = b"other content"
    else:
        assert isinstance(blobs, NatsBlobs)
        await blobs.bus.client.request(subjects.blob(ref.sha256), b"x" * 20, timeout=2)
    with pytest.raises(NotFound):
        await blobs.get(ref)


@covers("blobs.by_digest")
async def test_the_same_content_is_stored_once(bus: Bus) -> None:
    content = os.urandom(2 * CHUNK + 1)
    first = await NatsBlobs(bus).put(content)
    assert await NatsBlobs(bus).put(content) == first
    assert await stored_chunks(bus, first) == 3


async def test_what_a_dead_writer_left_half_is_not_found_and_the_next_writer_completes_it(bus: Bus) -> None:
    content = os.urandom(2 * CHUNK + 1)
    ref = reference_to(content)
    await NatsBlobs(bus)._append(ref, content[:CHUNK], 0)
    with pytest.raises(NotFound):
        await NatsBlobs(bus).get(ref)
    await NatsBlobs(bus).put(content)
    assert await NatsBlobs(bus).get(ref) == content
    assert await stored_chunks(bus, ref) == 3
