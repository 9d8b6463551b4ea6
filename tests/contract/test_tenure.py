"""What an office's register promises: a record follows the one that its writer knows, or is refused."""

from __future__ import annotations

import pytest

from shared.bus import Bus
from shared.errors import Conflict
from shared.ids import new_id
from shared.tenure import BUCKET, NatsRegister, Record, Register
from shared.testing.memory import MemoryRegister
from tests.requirements import covers

ANN, BOB = Record("ann", "1", 4.0), Record("bob", "2", 4.0)


@pytest.fixture(params=["memory", "nats"])
def register(request: pytest.FixtureRequest) -> Register:
    return MemoryRegister() if request.param == "memory" else NatsRegister(request.getfixturevalue("bus"), new_id())


@covers("standby.one")
async def test_a_record_follows_the_one_that_its_writer_knows_or_is_refused(register: Register) -> None:
    assert await register.read() == (0, None)
    first = await register.write(ANN, after=0)
    assert await register.read() == (first, ANN)
    with pytest.raises(Conflict):
        await register.write(BOB, after=0)
    second = await register.write(BOB, after=first)
    assert second > first
    with pytest.raises(Conflict):
        await register.write(ANN, after=first)
    assert await register.read() == (second, BOB)


@covers("standby.one")
async def test_it_is_a_key_of_an_ordinary_bucket(bus: Bus) -> None:
    key = new_id()
    await NatsRegister(bus, key).read()  # which makes the bucket
    await NatsRegister(bus, key).write(ANN, after=0)
    bucket = await bus.client.jetstream().key_value(BUCKET)
    assert b'"ann"' in ((await bucket.get(key)).value or b"")
