"""Answers calls for `go test -run '^$' -bench PythonTrainer ./e2e`, which counts them.

    python benchmarks/calls.py client|echo URL SEED TRAINER

client answers with turngate. echo is the limit: a bare subscriber of nats-py that sends each body back.
"""

from __future__ import annotations

import asyncio
import sys

import nats
from nats.aio.msg import Msg

from turngate import Call, Client, Reply

ANSWER = {"role": "assistant", "content": "Done."}


async def client(url: str, seed: str, trainer: str) -> None:
    async def answer(call: Call) -> Reply:
        return Reply(message=ANSWER, finish_reason="stop")

    async with await Client.connect(url, seed, trainer) as client:
        client.serve(answer)
        print("ready", flush=True)
        await asyncio.Event().wait()


async def echo(url: str, seed: str, trainer: str) -> None:
    inbox = f"_INBOX.trainer.{trainer}".encode()
    nc = await nats.connect(url, nkeys_seed=seed, inbox_prefix=inbox)

    async def answer(msg: Msg) -> None:
        await nc.publish(msg.reply, msg.data)

    await nc.subscribe(f"rollout.*.llm.{trainer}.>", cb=answer)
    await nc.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run({"client": client, "echo": echo}[sys.argv[1]](*sys.argv[2:]))
