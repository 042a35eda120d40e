"""Checks of a trainer's connection: python -m turngate.doctor --nats URL --creds FILE --name NAME."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import time
from collections.abc import AsyncIterator
from importlib import metadata

from .errors import MissingCommandError, TurngateError
from .schema import Fleet, Opened, codec
from .tasks.command import program
from .wire import names
from .wire.link import Link
from .wire.streams import Streams

OPTIONAL = {"httpx": "for Upstream", "numpy": "for Row.numpy", "torch": "for Row.torch", "tqdm": "for progress"}

STATES = {True: "ok  ", False: "FAIL", None: "none"}
"""The word for the outcome of a check."""

ANSWER_WITHIN = 2.0
"""Seconds that a check waits for an answer."""


async def checks(url: str, creds: str | None, name: str) -> AsyncIterator[tuple[bool | None, str, str]]:
    """Yield for each check whether it succeeded, its name, and what was found or how to mend it.

    None: it did not succeed, and not every trainer needs it.
    """
    yield True, "packages", packages()
    try:
        yield True, "command", program()
    except MissingCommandError as e:
        yield None, "command", f"Task.load needs it: {e}"
    try:
        names.check_trainer(name)
        start = time.monotonic()
        link = await Link.open(url, creds, f"{name} doctor", names.inbox(name))
    except TurngateError as e:
        yield False, "connection", f"{e}; start a server with: turngate up"
        return
    try:
        yield True, "connection", f"{url}, {(time.monotonic() - start) * 1000:.0f} ms"
        small = link.max_payload < 8 << 20
        note = "; 8 MB would keep large calls out of the object store" if small else ""
        yield True, "max_payload", f"{link.max_payload} bytes{note}"
        worker = True
        try:
            opened = codec.decode(
                Opened, (await link.request(names.trainer_subject(name, "open"), timeout=ANSWER_WITHIN)).data
            )
            if opened.error:
                yield False, "bounds", opened.error
            else:
                yield (
                    True,
                    "bounds",
                    f"{opened.max_queue or 'any number of'} requests in the queue, weight {opened.weight}",
                )
        except TurngateError as e:
            worker = False
            yield False, "bounds", f"no worker answers ({e}); do the name and the credentials belong together?"
        streams = Streams(link, ANSWER_WITHIN)
        buckets = names.tasks_bucket(name), names.artifacts_bucket(name)
        own = [names.queue(name), names.records(name), *map(names.object_stream, buckets)]
        found = await asyncio.gather(*map(streams.last_sequence, own), return_exceptions=True)
        for stream, last in zip(own, found, strict=True):
            if isinstance(last, BaseException):
                yield False, f"stream {stream}", f"{last}; the first worker makes it"
            else:
                yield True, f"stream {stream}", f"{last} messages so far"
        if not worker:
            return
        try:
            fleet = codec.decode(Fleet, (await link.request(names.trainer_subject(name, "fleet"))).data)
            free = sum(max(w.slots - w.busy, 0) for w in fleet.workers if not (w.draining or w.full))
            agents = sorted({a for w in fleet.workers for a in w.offer.agents})
            backends = sorted({b for w in fleet.workers for b in w.offer.backends})
            sandboxes, installed = ", ".join(backends), ", ".join(agents)
            offer = f"{len(fleet.workers)}, {free} slots free, sandboxes {sandboxes}, agents {installed}"
            yield bool(fleet.workers), "workers", offer if fleet.workers else "none; start one with: turngate worker"
        except TurngateError as e:
            yield False, "workers", str(e)
    finally:
        await link.close()


def packages() -> str:
    """Return the versions of Python and of the packages that this one uses."""
    found = [f"Python {platform.python_version()}"]
    for package in ("turngate", "nats-py", "msgpack", "zstandard", "nkeys", *OPTIONAL):
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            found.append(f"no {package} ({OPTIONAL[package]})" if package in OPTIONAL else f"no {package}")
    return ", ".join(found)


async def _main(url: str, creds: str | None, name: str) -> int:
    failed = 0
    async for ok, check, found in checks(url, creds, name):
        print(f"{STATES[ok]} {check}: {found}")
        failed += ok is False
    return 1 if failed else 0


def main() -> int:
    """Run the checks. The exit status is 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m turngate.doctor", description=__doc__)
    parser.add_argument(
        "--nats", default=os.environ.get("TURNGATE_NATS", "nats://127.0.0.1:4222"), help="URL of the server"
    )
    parser.add_argument("--creds", default=os.environ.get("TURNGATE_CREDS"), help="file with the trainer's credentials")
    parser.add_argument("--name", default=os.environ.get("TURNGATE_NAME", "local"), help="name of the trainer")
    given = parser.parse_args()
    return asyncio.run(_main(given.nats, given.creds, given.name))


if __name__ == "__main__":
    sys.exit(main())
