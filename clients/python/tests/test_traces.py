"""One trace has the spans of a trainer and those of the workers, from submit to commit."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgpack
import pytest

pytest.importorskip("opentelemetry.proto")
pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from conftest import Server, new_server
from fake_worker import TRAINER, FakeWorker
from test_front import TOKEN, Process
from turngate import Call, Client, Handle, Reply, Request, Result, ToolUse, Verdict, Verify
from turngate.front import Front
from turngate.schema import AgentChoice, SandboxChoice
from turngate.schema import Task as RequestTask
from turngate.wire import traces
from turngate.wire.loop_thread import LoopThread

PARENT = {"traceparent": "00-0102030405060708090a0b0c0d0e0f10-1112131415161718-01", "tracestate": "a=b"}


class Collector:
    """Collector takes the spans of workers, by OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for of in ExportTraceServiceRequest.FromString(body).resource_spans:
                    spans.extend(span for scope in of.scope_spans for span in scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture
def exporting(collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with a worker that exports its spans."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.url)
    server = new_server(tmp_path / "server")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> trace.Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("test")


def traced(call: Mapping[str, str]) -> tuple[str, str]:
    """Return the ids of a trace and of a span that headers name."""
    _, trace_id, span_id, _ = call["traceparent"].split("-")
    return trace_id, span_id


def ids(span: ReadableSpan) -> tuple[str, str, str]:
    """Return the ids of the trace, the span and its parent."""
    assert span.context is not None
    parent = span.parent.span_id if span.parent is not None else 0
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}", f"{parent:016x}"


def request() -> Request:
    return Request(task=RequestTask(name="t", instruction="say done"), agent=AgentChoice(name="mini"),
                   sandbox=SandboxChoice(backend="local"), verify=Verify(by="trainer"))  # fmt: skip


async def test_the_trace_of_a_rollout(
    exporting: Server, collector: Collector, exporter: InMemorySpanExporter, tracer: trace.Tracer, tmp_path: Path
) -> None:
    """The worker's spans are under the trainer's, and those of its handlers under the worker's; also through a front."""
    seen: dict[tuple[str, str], str] = {}  # headers that a handler got, by its name and trace

    def note(name: str, of: Mapping[str, str]) -> None:
        with tracer.start_as_current_span(name):
            one_trace, seen[name, one_trace] = traced(of)

    def policy(call: Call) -> Reply:  # in a thread
        note("generate", call.trace)
        return Reply(message={"role": "assistant", "content": "done"}, finish_reason="stop", prompt_ids=[1],
                     completion_ids=[2], logprobs=[-1.0])  # fmt: skip

    async def verify(handle: Handle) -> Verdict:
        note("score", handle.trace)
        return Verdict(reward=1.0)

    with tracer.start_as_current_span("connect"):  # not that of the submit
        client = await Client.connect(exporting.url, exporting.creds("trainer-alpha"), "alpha", verify=verify)
        client.serve(policy)
    async with client:
        with tracer.start_as_current_span("step"):
            await client.submit(request())
        results: list[Result] = [r async for r in client.results()]
    process = Process(exporting, tmp_path)
    async with Front(process.url, TOKEN) as front:
        with tracer.start_as_current_span("connect"):
            serving = await front.serve(policy, verify=verify)
        async with serving, contextlib.aclosing(front.results()) as feed:
            with tracer.start_as_current_span("step"):
                (rollout,) = await front.submit(request())
            async for result in feed:
                if result.id == rollout:
                    results.append(result)
                    break
    process.kill()
    assert [(r.status, r.reward) for r in results] == [("done", 1.0)] * 2
    exporting.stop()  # it sends the spans that are left
    mine = {(span.name, ids(span)[0]): ids(span) for span in exporter.get_finished_spans()}
    theirs = {(s.name.split()[0], s.trace_id.hex()): (s.span_id.hex(), s.parent_span_id.hex()) for s in collector.spans}
    steps = [one_trace for name, one_trace in mine if name == "step"]
    assert len(steps) == 2
    assert {one_trace for _, one_trace in theirs} == set(steps)
    for one in steps:
        assert theirs["rollout", one][1] == mine["step", one][1]
        chat, verified = theirs["chat", one][0], theirs["verify", one][0]
        assert (mine["generate", one][2], mine["score", one][2]) == (chat, verified)
        assert (seen["generate", one], seen["score", one]) == (chat, verified)


async def test_the_trace_of_a_tool_call(server: Server, exporter: InMemorySpanExporter, tracer: trace.Tracer) -> None:
    """A tool's span is under the worker's. Without headers it has no parent, nor with wrong ones."""

    def search(use: ToolUse) -> str:
        with tracer.start_as_current_span(use.arguments["name"]):
            return "found"

    with tracer.start_as_current_span("connect"):
        client = await Client.connect(
            server.url, server.creds(f"trainer-{TRAINER}"), TRAINER, tools={"search": search}, answer_all=True
        )
    async with client, FakeWorker(server.url, server.creds("admin")) as worker:
        rollout = worker.rollout()
        wrong = {"traceparent": "00-" + "0" * 600, "tracestate": "\x00"}
        for number, headers in enumerate((PARENT, {}, wrong, {**PARENT, "tracestate": "a=" + "b" * 600}), 1):
            call = {"v": 1, "key": f"{rollout}/1/{number}", "name": "search", "arguments": b'{"name":"%d"}' % number}
            asked = await worker.send(rollout, number, msgpack.packb(call), what="tool", headers=headers)
            await asked.frame("final")
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert [traced(PARENT) == (ids(spans[n])[0], ids(spans[n])[2]) for n in "1234"] == [True, False, False, True]
    assert [spans[n].parent is None for n in "1234"] == [False, True, True, False]
    states = [dict(s.context.trace_state) for n in "14" if (s := spans[n]).context is not None]
    assert states == [{"a": "b"}, {}]


def test_headers(tracer: trace.Tracer) -> None:
    assert traces.of({}) == traces.of({"tracestate": "a=b"}) == traces.current() == {}
    with traces.under(PARENT):
        assert traces.current() == traces.of({**PARENT, "other": "x"}) == PARENT
        with tracer.start_as_current_span("mine"):
            assert traces.current()["traceparent"].startswith(PARENT["traceparent"][:35])
    assert traces.current() == {}


def test_a_blocking_client_passes_the_span_of_its_thread_on() -> None:
    async def inside() -> dict[str, str]:
        return traces.current()

    thread = LoopThread("test")
    with traces.under(PARENT):
        assert thread.run(inside()) == PARENT
    assert thread.run(inside()) == {}
    thread.stop()


def test_without_the_package() -> None:
    """Nothing of OpenTelemetry is needed."""
    code = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "import turngate.client.client\n"
        "from turngate.wire import traces\n"
        f"with traces.under({PARENT!r}):\n"
        "    assert traces.current() == {}\n"
        f"assert traces.of({PARENT!r}) == {PARENT!r}\n"
        "assert [m for m in sys.modules if m.startswith('opentelemetry.')] == []\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
