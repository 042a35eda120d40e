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

import pytest
import scripted
from recorded import GOOD, SlimeSample, Words

from conftest import Server
from turngate import Call, Task
from turngate.adapters.slime import Generate

asked: list[dict[str, Any]] = []


class Router(BaseHTTPRequestHandler):
    """SGLang's router, whose first answer is aborted for a weight update."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked.append({**body, "key": self.headers["X-SMG-Routing-Key"]})
        first = len(asked) == 1
        meta = {
            "output_token_logprobs": [] if first else [[-0.5, GOOD, None]], "weight_version": str(len(asked)),
            "finish_reason": {"type": "abort" if first else "length" if body["sampling_params"].get("cut") else "stop"},
        }  # fmt: skip
        data = json.dumps({"text": "good", "meta_info": meta}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def args() -> Iterator[Namespace]:
    asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Router)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Namespace(sglang_router_ip="127.0.0.1", sglang_router_port=server.server_address[1], hf_checkpoint="none")
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
        lambda sample: Task.load(sample.metadata["task"]), url=server.url, creds=server.creds("trainer-alpha"),
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


async def test_a_sample_whose_answer_was_cut_is_truncated(generate: Generate, args: Namespace, tasks: Path) -> None:
    sample = SlimeSample(metadata={"task": tasks / "hello"}, status=SlimeSample.Status.PENDING)
    await generate(args, sample, {"cut": True})
    assert (sample.status, sample.reward) == (SlimeSample.Status.TRUNCATED, 1.0)
