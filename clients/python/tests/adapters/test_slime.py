"""slime's custom generate function with a real worker; slime itself is a recorded signature."""

from __future__ import annotations

import inspect
import json
import threading
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import endings
import pytest
import scripted
from recorded import GOOD, SlimeSample, Words

from conftest import Server
from turngate import Call
from turngate.adapters.slime import Generate

asked: list[dict[str, Any]] = []


over = threading.Event()
ROOM = 1000
"""The context of the way room, in tokens."""


class Router(BaseHTTPRequestHandler):
    """SGLang's router. Its first answer is aborted for a weight update, and the later ones are those of a way."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked.append({**body, "key": self.headers["X-SMG-Routing-Key"]})
        way, first = body["sampling_params"].get("way"), len(asked) == 1
        status, end = 200, "abort" if first else "stop"
        if way == "length" and len(asked) == 2:
            end = "length"
        if way in ("context", "agent") and len(asked) > 2:
            status = 400
        if way == "timeout" and len(asked) > 2:
            over.wait()
        meta = {
            "output_token_logprobs": [] if first else [[-0.5, GOOD, None]], "weight_version": str(len(asked)),
            "finish_reason": {"type": end},
        }  # fmt: skip
        words = endings.TOO_LONG if way == "context" else "top_p must be above 0"
        size, bound = len(body["input_ids"]), body["sampling_params"].get("max_new_tokens", 0)
        if way == "room" and size + bound > ROOM:
            status, words = 400, endings.together(ROOM, size, bound)
        said = {"text": "good", "meta_info": meta} if status == 200 else {"error": {"message": words}}
        data = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def args() -> Iterator[Namespace]:
    asked.clear()
    over.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Router)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Namespace(sglang_router_ip="127.0.0.1", sglang_router_port=server.server_address[1], hf_checkpoint="none")
    over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def read(text: str, call: Call) -> dict[str, Any]:
    if call.messages[-1]["role"] == "tool":
        return {"content": text}
    return {**scripted.act("Hello, world!"), "content": text}


@pytest.fixture
async def generate(server: Server) -> AsyncIterator[Generate]:
    generate = Generate(
        lambda sample: endings.task(sample.metadata["task"], sample.metadata.get("way", "stop")), url=server.url, creds=server.creds("trainer-alpha"),
        name="alpha", tokenizer=Words(), parse=read, sandbox="local",
    )  # fmt: skip
    yield generate
    await generate.aclose()


async def test_a_sample_is_a_rollout(generate: Generate, args: Namespace, tasks: Path) -> None:
    assert "evaluation" in inspect.signature(generate).parameters  # slime asks so
    sample = SlimeSample(prompt="x", metadata={"task": tasks / "hello"}, status=SlimeSample.Status.PENDING)
    sampling = {"temperature": 0.5, "max_new_tokens": 8}
    assert await generate(args, sample, sampling, evaluation=False) is sample
    assert sample.status is SlimeSample.Status.COMPLETED
    assert sample.reward == 1.0
    assert len(sample.tokens) == len(asked[1]["input_ids"]) + sample.response_length
    assert sample.tokens[:-1] == asked[2]["input_ids"]
    assert sample.loss_mask is not None
    assert sample.loss_mask[0] == sample.loss_mask[-1] == 1
    assert (len(sample.loss_mask), sum(sample.loss_mask)) == (sample.response_length, 2)
    assert sample.rollout_log_probs == [-0.5 * m for m in sample.loss_mask]
    assert sample.weight_versions == ["1", "2", "3"]
    assert not sample.remove_sample
    assert {a["key"] for a in asked} == {sample.metadata["turngate_rollout"]}
    assert all(a["return_logprob"] and a["sampling_params"] == sampling for a in asked)


async def test_a_sample_without_a_row_is_removed(generate: Generate, args: Namespace, tasks: Path) -> None:
    sample = SlimeSample(metadata={"task": tasks / "broken-setup"}, status=SlimeSample.Status.PENDING)
    await generate(args, sample, {})
    assert (sample.status, sample.reward, sample.remove_sample) == (SlimeSample.Status.FAILED, None, True)
    assert (sample.loss_mask, sample.response_length, len(sample.tokens)) == ([0], 1, 2)


WORDS = {
    "stop": ("COMPLETED", False), "length": ("TRUNCATED", False), "context": ("TRUNCATED", False),
    "cap": ("TRUNCATED", False), "timeout": ("TRUNCATED", False), "agent": ("FAILED", False), "fault": ("FAILED", True),
}  # fmt: skip


@pytest.mark.parametrize("way", endings.WAYS)
async def test_a_sample_has_the_word_of_its_end(generate: Generate, args: Namespace, tasks: Path, way: str) -> None:
    status, removed = WORDS[way]
    metadata = {"task": tasks / "hello", "way": way}
    sample = SlimeSample(metadata=metadata, status=SlimeSample.Status.PENDING)
    await generate(args, sample, {"way": way})
    assert (sample.status, sample.metadata["turngate_ended"]) == (SlimeSample.Status[status], way)
    if way != "timeout" or not sample.remove_sample:  # a busy machine has no time for the first call
        assert (sample.remove_sample, sample.reward) == (removed, None if removed else 1.0)


async def test_a_first_prompt_beyond_the_context(generate: Generate, args: Namespace, tasks: Path) -> None:
    asked.append({})  # the abort
    asked.append({})  # the first answer
    sample = SlimeSample(metadata={"task": tasks / "hello"}, status=SlimeSample.Status.PENDING)
    await generate(args, sample, {"way": "context"})
    assert (sample.status, sample.metadata["turngate_ended"]) == (SlimeSample.Status.TRUNCATED, "context")
    assert (sample.remove_sample, sample.loss_mask, sample.reward) == (True, [0], 0.0)
    assert len(asked) == 3  # the refused call is not sent again


async def test_a_bound_beyond_the_context_becomes_the_rest_of_it(
    generate: Generate, args: Namespace, tasks: Path
) -> None:
    sample = SlimeSample(metadata={"task": tasks / "hello"}, status=SlimeSample.Status.PENDING)
    await generate(args, sample, {"way": "room", "max_new_tokens": ROOM})
    assert (sample.status, sample.reward) == (SlimeSample.Status.COMPLETED, 1.0)
    bounds = [(a["sampling_params"]["max_new_tokens"], len(a["input_ids"])) for a in asked]
    assert [n for n, size in bounds if n != ROOM] == [ROOM - size for n, size in bounds if n != ROOM]
    assert len({n for n, _ in bounds}) == 3  # the bound of the trainer, and the rest of the context for each answer
