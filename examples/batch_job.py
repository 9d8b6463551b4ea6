"""A batch job that shares a card with the engine: it asks for a lease, works in small pieces, and yields when it is asked to.

    python examples/batch_job.py --url http://127.0.0.1:5257 --slot primary --model qwen2.5-coder-1.5b

Needs only httpx. `WORK` stands for what the job does with the model; it must end within the grace (30 s unless set otherwise).
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx

PIECES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:5257")
    parser.add_argument("--slot", default="primary")
    parser.add_argument("--model", action="append", default=[])
    asked = parser.parse_args()
    left = iter(range(1, PIECES + 1))
    with httpx.Client(base_url=f"{asked.url}/api/inference", timeout=60.0, trust_env=False) as api:
        while work_while_allowed(api, granted(api, asked.slot, asked.model), left):
            print("yielded; asking again", flush=True)
    print("done")


def granted(api: httpx.Client, slot: str, models: list[str]) -> str:
    """Wait for a lease; gives its id."""
    body = {"holder": "nightly-batch", "slot": slot, "models": models, "ttlS": 120}
    answer = api.post("/leases", json=body, headers={"Idempotency-Key": str(uuid.uuid4())})
    if answer.status_code == 409:
        raise SystemExit(answer.json()["detail"])
    lease = answer.raise_for_status().json()
    while lease["state"] not in ("granted", "release_wanted"):
        if "endedAt" in lease:
            raise SystemExit(f"the lease was {lease['state']}: {lease['reason']}")
        print(f"waits at position {lease.get('position', '?')}: {lease.get('reason', '')}", flush=True)
        lease = state(api, lease["leaseId"], wait_s=20, seen=lease["state"])
    return str(lease["leaseId"])


def work_while_allowed(api: httpx.Client, lease_id: str, left: Iterator[int]) -> bool:
    """Work piece by piece; True when it was asked to yield before all was done."""
    for piece in left:
        work(piece)
        api.post(f"/leases/{lease_id}/renew", json={}).raise_for_status()
        if state(api, lease_id)["state"] == "release_wanted":
            api.request("DELETE", f"/leases/{lease_id}").raise_for_status()
            return True
    api.request("DELETE", f"/leases/{lease_id}").raise_for_status()
    return False


def work(piece: int) -> None:
    """A piece of the job: here it only takes its time."""
    time.sleep(1.0)
    print(f"piece {piece} of {PIECES}", flush=True)


def state(api: httpx.Client, lease_id: str, *, wait_s: float = 0.0, seen: str = "") -> dict[str, Any]:
    answer = api.get(f"/leases/{lease_id}", params={"waitS": wait_s, "seen": seen})
    return dict(answer.raise_for_status().json())


if __name__ == "__main__":
    main()
