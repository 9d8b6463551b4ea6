"""Follow an engine from outside with nothing but nats-py: print every run as it completes.

    python examples/subscribe.py [nats://127.0.0.1:4222]

`aetherium status` prints the address. Facts are CloudEvents: attributes in headers, the body is JSON.
"""

import asyncio
import json
import sys

import nats


async def main(url: str) -> None:
    connection = await nats.connect(url)
    subscription = await connection.subscribe("aetherium.evt.run.*.completed")
    async for message in subscription.messages:
        headers = message.headers or {}
        print(headers["ce-time"], headers["ce-subject"], json.loads(message.data).get("reply", ""), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"))
