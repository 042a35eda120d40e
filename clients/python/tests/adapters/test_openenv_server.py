"""A server of OpenEnv, called by OpenEnv's own client, with an engine that has vLLM's API."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import scripted

from conftest import Server, free_port

pytest.importorskip("openenv", reason="SKIPPED: openenv is not installed; .ci/run and make adapters install it")

import pydantic
import uvicorn
from openenv.core.mcp_client import MCPToolClient

from turngate.adapters import openenv_server


def model(name: str, more: str, **fields: Any) -> Any:
    """Return a model with recorded fields, which refuses others unless more is "allow"."""
    return pydantic.create_model(name, __config__=pydantic.ConfigDict(extra=more, strict=True), **fields)


# The fields of envs/opencode_env/models.py in OpenEnv's repository; its package on PyPI does not have the environment.
Command = model(
    "CommandResult",
    "forbid",
    cmd=(str, ...),
    exit_code=(int, ...),
    stdout=(str, ""),
    stderr=(str, ""),
    duration_s=(float, 0.0),
)
Turn = model(
    "RolloutTurn", "allow", turn=(int, ...), finish_reason=(str | None, None), completion_tokens=(list[str], []),
    completion_token_ids=(list[int], []), per_token_logps=(list[float], []), latency_s=(float, 0.0), timestamp=(float, 0.0),
    upstream_status=(int | None, None), upstream_error=(dict[str, Any] | None, None),
)  # fmt: skip
RolloutResult = model(
    "RolloutResult", "forbid", task_id=(str, ""), sandbox_id=(str, ""), reward=(float | None, None), wall_s=(float, 0.0),
    agent_exit_code=(int | None, None), mode=(str, ""), setup_results=(list[Command], []), verify_results=(list[Command], []),  # type: ignore[valid-type]
    proxy_turns=(list[Turn], []),  # type: ignore[valid-type]
    files=(dict[str, str], {}), files_extra=(list[str], []), agent_log_tail=(str, ""),
    proxy_log_tail=(str, ""), error=(str | None, None),
)  # fmt: skip


class Engine(BaseHTTPRequestHandler):
    """An engine that writes the greeting in its first turn."""

    def do_GET(self) -> None:
        self._say({"data": [{"id": "policy", "max_model_len": 4096}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        done = body["messages"][-1]["role"] == "tool"
        message = {"role": "assistant", "content": "Done."} if done else scripted.act("Hello, world!")
        prompt = [*scripted.PROMPT, *scripted.ACT, *scripted.SEEN] if done else scripted.PROMPT
        ids, values = (scripted.DONE, [-0.125]) if done else (scripted.ACT, [-0.5, -0.25])
        choice = {
            "index": 0, "message": message, "finish_reason": "stop" if done else "tool_calls", "token_ids": ids,
            "logprobs": {"content": [{"token": f"token_id:{i}", "logprob": x} for i, x in zip(ids, values, strict=True)]},
        }  # fmt: skip
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        self._say({"id": "1", "model": "policy", "prompt_token_ids": prompt, "choices": [choice], "usage": usage})

    def _say(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def environment(server: Server) -> Iterator[str]:
    settings = openenv_server.Settings(
        server.url, server.creds("trainer-alpha"), "alpha", agent="mini", sandbox="local"
    )
    ours = openenv_server.Server(settings)
    port = free_port()
    serving = uvicorn.Server(uvicorn.Config(openenv_server.create_app(ours), port=port, log_level="warning"))
    ready = threading.Event()
    startup = serving.startup

    async def started(*args: Any, **more: Any) -> None:
        await startup(*args, **more)
        ready.set()

    serving.startup = started
    thread = threading.Thread(target=serving.run)
    thread.start()
    assert ready.wait(30)
    yield f"http://127.0.0.1:{port}"
    serving.should_exit = True
    thread.join()
    ours.close()


def test_a_rollout_as_the_environment_for_opencode_runs_it(environment: str, engine: str) -> None:
    with MCPToolClient(base_url=environment, message_timeout_s=120).sync() as env:
        first = env.reset()
        assert (first.done, first.reward) == (False, None)
        assert [tool.name for tool in env.list_tools()] == ["run_rollout"]
        verify = ["grep -q '^Hello' hello.txt", "test -e given.txt", "echo seen; echo wrong >&2; exit 3"]
        said = env.call_tool(
            "run_rollout", base_url=engine, api_key="none", model="policy", instruction="Write hello.txt.",
            setup=["echo 'it''s' > given.txt", "[[ -s given.txt ]]"], verify=verify, task_id="hello",
        )  # fmt: skip
        result = json.loads(said)
        assert result["error"] is None
        assert result["reward"] == pytest.approx(2 / 3)
        assert [c["exit_code"] for c in result["setup_results"]] == [0, 0]
        assert [(c["cmd"], c["exit_code"]) for c in result["verify_results"]] == list(
            zip(verify, (0, 0, 3), strict=True)
        )
        assert (result["task_id"], result["agent_exit_code"]) == ("hello", 0)
        assert [c["stdout"] for c in result["verify_results"]] == ["", "", "seen\nwrong\n"]
        valid = RolloutResult.model_validate(result)
        assert all(0 < turn.latency_s < 60 and turn.timestamp > 1.6e9 for turn in valid.proxy_turns)
        assert all(0 <= c.duration_s < 60 for c in valid.verify_results)
        one, two = result["proxy_turns"]
        assert (one["completion_token_ids"], one["per_token_logps"]) == (scripted.ACT, [-0.5, -0.25])
        assert two["prompt_token_ids"] == [*scripted.PROMPT, *scripted.ACT, *scripted.SEEN]
        assert env.state().step_count == 1
        scored = env.call_tool(
            "run_rollout", base_url=engine, model="policy", instruction="Write hello.txt.", agent="mini",
            verify=["echo 0.25 > /logs/verifier/reward.txt"],
        )  # fmt: skip
        assert json.loads(scored)["reward"] == 0.25
        assert env.state().step_count == 2


def test_sessions_at_once(environment: str) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            env = stack.enter_context(MCPToolClient(base_url=environment, message_timeout_s=120).sync())
            assert env.reset().done is False


def test_failures_are_results_and_mistakes_are_named(environment: str, engine: str) -> None:
    with MCPToolClient(base_url=environment, message_timeout_s=120).sync() as env:
        env.reset()
        ask = {"base_url": engine, "model": "policy", "instruction": "x"}
        result = json.loads(env.call_tool("run_rollout", **ask, setup=["exit 4"], verify=["true"]))
        assert result["reward"] is None
        assert "setup" in result["error"]
        assert [c["exit_code"] for c in result["setup_results"]] == [4]
        with pytest.raises(RuntimeError, match="endpoint: 'vllm' is not valid"):
            env.call_tool("run_rollout", **ask, endpoint="vllm")
