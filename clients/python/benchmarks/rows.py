"""Measures turngate.rows: python benchmarks/rows.py

The rate is of the transcripts' JSON, as in Go's BenchmarkRows. The limit of the long rollout is the time in which the
json module parses the same transcript once.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import zstandard

from turngate import rows


def recording(turns: int, result: int, answer: int) -> list[bytes]:
    """Return the lines of a rollout's transcript as the recorder writes them: each turn calls a tool, and the tool's
    result adds more tokens.
    """
    numbers = random.Random(1)

    def fresh(n: int) -> list[int]:
        return [numbers.randrange(150_000) for _ in range(n)]

    return [json.dumps(line, separators=(",", ":")).encode() for line in _lines(turns, result, answer, fresh, numbers)]


def _lines(
    turns: int, result: int, answer: int, fresh: Callable[[int], list[int]], numbers: random.Random
) -> Iterator[dict[str, Any]]:
    ids = fresh(2000)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are careful."},
        {"role": "user", "content": "Mend the program."},
    ]
    base, count = 0, 0
    for n in range(1, turns + 1):
        call: dict[str, Any] = {
            "v": 1,
            "key": f"alpha-01/1/{n}",
            "tag": "agent",
            "dialect": "chat",
            "messages": messages,
        }
        if base:
            call |= {"base": base, "keep": count}
        else:
            call["tools"] = [{"type": "function", "function": {"name": "bash"}}]
        yield {"at": 1795373044737, "call": n, "request": call}
        base, count = n, count + len(messages)
        function = {"name": "bash", "arguments": json.dumps({"command": f"sed -n {n},80p main.c"})}
        said = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": f"c{n}", "type": "function", "function": function}],
        }
        completion = fresh(answer)
        logprobs = [float(f"{-numbers.random() * 3:.8g}") for _ in completion]
        reply = {
            "v": 1, "message": said, "finish_reason": "tool_calls",
            "usage": {"prompt_tokens": len(ids), "completion_tokens": answer},
            "prompt_ids": ids, "completion_ids": completion, "logprobs": logprobs,
            "versions": [{"version": "v7", "start": 0, "end": answer}],
        }  # fmt: skip
        yield {"at": 1795373044999, "call": n, "gen": f"g{n}", "ms": 900, "reply": reply}
        ids = [*ids, *completion, *fresh(result)]
        messages = [said, {"role": "tool", "tool_call_id": f"c{n}", "content": "int x = 1;\n" * (result * 4 // 12)}]


def packed(lines: list[bytes]) -> bytes:
    """Return the stored form of a transcript."""
    return zstandard.ZstdCompressor(level=1).compress(b"".join(line + b"\n" for line in lines))


def rebuild(data: bytes) -> int:
    """Make all rows, and return the number of their tokens."""
    return sum(len(row) for row in rows(data))


def least(work: Callable[[], object], times: int = 3) -> float:
    """Return the shortest time of several."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=1000, help="number of rollouts of 50 turns")
    parser.add_argument("--turns", type=int, default=200, help="turns of the long rollout")
    given = parser.parse_args()

    lines = recording(50, 300, 120)
    size, data = sum(map(len, lines)) + len(lines), packed(lines)
    start = time.perf_counter()
    tokens = sum(rebuild(data) for _ in range(given.rollouts))
    took = time.perf_counter() - start
    rate = given.rollouts * size / took / 1e6
    print(f"{given.rollouts} rollouts of 50 turns: {took:.2f} s, {rate:.0f} MB/s, rows of {tokens} tokens")

    lines = recording(given.turns, 300, 120)
    size, data = sum(map(len, lines)) + len(lines), packed(lines)
    made, parsed = least(lambda: rebuild(data)), least(lambda: [json.loads(line) for line in lines])
    print(
        f"a rollout of {given.turns} turns, {size / 1e6:.1f} MB: rows {made * 1000:.0f} ms, "
        f"parsing its JSON once {parsed * 1000:.0f} ms, ratio {made / parsed:.2f}"
    )


if __name__ == "__main__":
    main()
