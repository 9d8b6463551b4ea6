"""`api/inference`: requests reach the arbiter as they were sent, and its answers have the status that a client acts by."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import Fault, RemoteFault, ServiceUnavailable
from tests.requirements import covers
from tests.unit.gateway.conftest import World

LEASE = {"leaseId": "l1", "holder": "nightly", "slot": "primary", "card": "gpu0", "state": "granted"}
ASK = {"holder": "nightly", "slot": "primary", "models": ["writer"]}


@pytest.mark.parametrize(("state", "status"), [("granted", 201), ("waiting", 202), ("admitted", 202), ("refused", 409)])
@covers("lease.api")
async def test_a_request_is_answered_by_what_became_of_it(world: World, state: str, status: int) -> None:
    world.arbiter.answer = {**LEASE, "state": state, "reason": "20000 MiB do not fit beside 8000"}
    answer = await world.client.post("/api/inference/leases", json=ASK)
    assert answer.status_code == status
    assert answer.json()["leaseId"] == "l1"
    if state == "refused":
        assert answer.json()["code"] == "lease.refused"
        assert "20000 MiB" in answer.json()["detail"]
    assert world.arbiter.asked == [("lease_request", ASK)]


@covers("lease.bad_input")
async def test_an_idempotency_key_is_the_key_of_the_lease(world: World) -> None:
    world.arbiter.answer = LEASE
    await world.client.post("/api/inference/leases", json=ASK, headers={"Idempotency-Key": "k1"})
    assert world.arbiter.asked == [("lease_request", {**ASK, "key": "k1"})]


@pytest.mark.parametrize(
    ("method", "path", "body", "asked"),
    [
        ("GET", "/leases", None, ("leases", {})),
        ("GET", "/leases/l1?waitS=5&seen=granted", None, ("lease", {"leaseId": "l1", "waitS": 5.0, "seen": "granted"})),
        ("POST", "/leases/l1/renew", {"ttlS": 60}, ("lease_renew", {"leaseId": "l1", "ttlS": 60.0})),
        ("POST", "/leases/l1/renew", None, ("lease_renew", {"leaseId": "l1"})),
        ("DELETE", "/leases/l1", None, ("lease_release", {"leaseId": "l1", "reason": ""})),
        ("GET", "/queue", None, ("queue", {})),
        ("GET", "/cards", None, ("cards", {})),
        ("GET", "/models", None, ("models", {})),
        ("POST", "/cards/gpu0/hold", {"holder": "render"}, ("hold", {"holder": "render", "card": "gpu0"})),
        ("DELETE", "/holds/h1", None, ("hold_release", {"holdId": "h1"})),
    ],
)
@covers("lease.api")
async def test_each_path_asks_one_thing_of_the_arbiter(
    world: World, method: str, path: str, body: dict[str, Any] | None, asked: tuple[str, dict[str, Any]]
) -> None:
    world.arbiter.answer = {"ok": True}
    answer = await world.client.request(method, f"/api/inference{path}", json=body)
    assert (answer.status_code, answer.json()) == (200, {"ok": True})
    assert world.arbiter.asked == [asked]


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (RemoteFault("lease.bad_request", "slot: none is configured", details={"field": "slot"}), 422),
        (RemoteFault("lease.not_found", "no lease 'l1' is known"), 404),
        (RemoteFault("lease.ended", "lease l1 was released"), 409),
        (RemoteFault("rpc.bug", "the service failed"), 502),
        (ServiceUnavailable("the scheduler service is not there"), 503),
    ],
)
@covers("lease.bad_input")
async def test_what_the_arbiter_refuses_is_a_problem_that_says_what_to_mend(world: World, fault: Fault, status: int) -> None:
    world.arbiter.answer = fault
    answer = await world.client.post("/api/inference/leases", json=ASK)
    assert answer.status_code == status
    assert answer.json()["detail"] == fault.message


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"slot": "primary"}, "holder"),
        ({**ASK, "servicesMib": -1}, "servicesMib"),
        ({**ASK, "priority": "run"}, "priority"),
        ({**ASK, "x": 1}, "x"),
    ],
)
@covers("lease.bad_input")
async def test_a_body_that_is_wrong_by_itself_never_reaches_the_arbiter(world: World, body: dict[str, Any], field: str) -> None:
    answer = await world.client.post("/api/inference/leases", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert world.arbiter.asked == []
