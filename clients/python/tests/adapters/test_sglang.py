"""SGLang does not run without a GPU, so requests and answers of Upstream are compared with its published source."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from fake_engine import Answer, Asked, FakeEngine
from test_upstream import ask
from test_upstream_tokens import END, MODELS, Letters, hi
from turngate import Reply
from turngate.upstream import Upstream
from turngate.upstream.completion import SGL_HEADERS
from turngate.upstream.tokens import SGLang

PROTOCOL = "srt/entrypoints/openai/protocol.py"


spec = importlib.util.find_spec("sglang")  # without importing it: that needs a GPU's libraries
if spec is None:
    pytest.skip("sglang is not installed", allow_module_level=True)


def source(path: str) -> ast.Module:
    assert spec is not None
    assert spec.submodule_search_locations
    return ast.parse((Path(spec.submodule_search_locations[0]) / path).read_text())


def fields(path: str, name: str) -> set[str]:
    """Return the fields of a class and the arguments of its constructor."""
    for node in ast.walk(source(path)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            out = {b.target.id for b in node.body if isinstance(b, ast.AnnAssign) and isinstance(b.target, ast.Name)}
            for b in node.body:
                if isinstance(b, ast.FunctionDef) and b.name == "__init__":
                    out |= {a.arg for a in [*b.args.args, *b.args.kwonlyargs]}
            return out
    raise AssertionError(f"sglang has no class {name} in {path}")


def texts(path: str) -> set[str]:
    return {n.value for n in ast.walk(source(path)) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


async def test_generate_has_the_fields() -> None:
    async def handler(asked: Asked) -> Answer:
        meta = {"finish_reason": {"type": "stop", "matched": END}, "output_token_logprobs": [[-0.5, END, None]]}
        return 200, json.dumps({"text": "", "meta_info": meta})

    async with (
        FakeEngine(handler, MODELS) as engine,
        Upstream(engine.url, key="", tokens="sglang", template=Letters(), max_tokens=20, top_logprobs=1) as u,
    ):
        await ask(u, hi(temperature=0.5, seed=3))
        body = engine.asked[-1].body
    assert set(body) <= fields("srt/managers/io_struct.py", "GenerateReqInput")
    sampling = fields("srt/sampling/sampling_params.py", "SamplingParams")
    assert set(body["sampling_params"]) | SGLang.SAME <= sampling
    read = {"finish_reason", "output_token_logprobs", "output_top_logprobs", "weight_version"}
    assert read <= texts("srt/managers/tokenizer_manager.py")


LOGPROBS = {"content": [{"logprob": -0.5, "top_logprobs": []}]}
WHOLE = {
    "message": {"role": "assistant", "content": "OK"},
    "finish_reason": "stop",
    "response_token_ids": [END],
    "prompt_token_ids": [1, 2],
    "logprobs": LOGPROBS,
}
EXTRA = {"input_ids": [1, 2], "output_ids": [[END]]}


async def test_chat_has_the_fields() -> None:
    async def handler(asked: Asked) -> Answer:
        return 200, json.dumps({"choices": [WHOLE]})

    async with FakeEngine(handler, MODELS) as engine, Upstream(engine.url, key="", top_logprobs=1) as u:
        check(await ask(u, hi(temperature=0.5, seed=3, max_tokens=5)))
        body = engine.asked[-1].body
    assert "return_token_ids" in body
    assert set(body) <= fields(PROTOCOL, "ChatCompletionRequest")
    assert set(WHOLE) <= fields(PROTOCOL, "ChatCompletionResponseChoice")


async def test_a_stream_has_the_fields() -> None:
    chunks: list[Any] = [
        {"choices": [{"delta": {"role": "assistant", "content": "OK"}, "logprobs": LOGPROBS}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "sglext": EXTRA},
    ]
    text = "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"

    async def handler(asked: Asked) -> Answer:
        return 200, text

    async with FakeEngine(handler, MODELS) as engine, Upstream(engine.url, key="") as u:
        *_, last = [piece async for piece in u.stream(hi(max_tokens=5))]
        asked = engine.asked[-1]
    assert isinstance(last, Reply)
    check(last)
    assert set(EXTRA) <= fields(PROTOCOL, "SglExt")
    names = {name.lower() for name in SGL_HEADERS}
    assert names <= texts("srt/entrypoints/openai/serving_chat.py")
    assert names <= {name.lower() for name in asked.headers}


def check(reply: Reply) -> None:
    assert (list(reply.completion_ids), list(reply.prompt_ids), list(reply.logprobs)) == ([END], [1, 2], [-0.5])
    assert not reply.edits
