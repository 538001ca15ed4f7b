"""Traces: a span for each batch, with what an operator looks for; nothing when they are off."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from luxrelay.bus import MsgHeader, SigningKey, lane, topic_namespace
from luxrelay.errors import ConfigError
from luxrelay.node.tracing import IDS_MAX, Traces, open_traces

KEY = SigningKey.generate()


def header(seq: int) -> MsgHeader:
    """Return a signed header."""
    return KEY.sign_header(
        MsgHeader(
            namespace_id=lane(topic_namespace("/chat/1/room"), KEY.public_field),
            seq=seq,
            timestamp=1,
            blob_commitment=bytes(32),
            blob_len=0,
            policy_hash=bytes(32),
        )
    )


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """What has been exported."""
    return InMemorySpanExporter()


@pytest.fixture
def traces(spans: InMemorySpanExporter) -> Iterator[Traces]:
    """Traces that export at once."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    made = Traces(provider)
    yield made
    made.close()


def test_a_span_says_how_many_and_which(traces: Traces, spans: InMemorySpanExporter) -> None:
    """The door, the messages, the accepted ones, and their ids while one can read them."""
    headers = [header(seq) for seq in (1, 2)]
    with traces.batch("gossip", headers) as counts:
        counts["accepted"] = 1
    (span,) = spans.get_finished_spans()
    assert span.name == "luxrelay.gossip"
    assert span.attributes is not None
    assert span.attributes["luxrelay.messages"] == 2
    assert span.attributes["luxrelay.accepted"] == 1
    ids = tuple(each.message_id.hex() for each in headers)
    assert span.attributes["luxrelay.message_ids"] == ids


def test_ids_are_bounded(traces: Traces, spans: InMemorySpanExporter) -> None:
    """A large batch is counted, not listed."""
    with traces.batch("sync", [header(seq) for seq in range(1, IDS_MAX + 2)]):
        pass
    (span,) = spans.get_finished_spans()
    assert span.attributes is not None
    assert "luxrelay.message_ids" not in span.attributes


def test_off_is_off() -> None:
    """Without an endpoint nothing is imported, recorded or closed."""
    off = open_traces("", "relay-1", "0")
    with off.batch("publish", [header(1)]) as counts:
        counts["accepted"] = 1
    off.close()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"luxrelay\[traces\]"):
        open_traces("http://127.0.0.1:4318", "relay-1", "0")


def test_spans_arrive_at_an_otlp_endpoint() -> None:
    """The exporter speaks OTLP over HTTP to whoever listens; closing sends what is left."""
    arrived: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        """Keeps what is posted."""

        def do_POST(self) -> None:
            """Take one request."""
            assert self.path == "/v1/traces"
            arrived.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        made = open_traces(f"http://127.0.0.1:{server.server_port}/", "relay-1", "1.2")
        with made.batch("publish", [header(1)]) as counts:
            counts["accepted"] = 1
        made.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    request = ExportTraceServiceRequest.FromString(b"".join(arrived))
    (resource,) = request.resource_spans
    names = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert names["service.instance.id"] == "relay-1"
    assert [s.name for s in resource.scope_spans[0].spans] == ["luxrelay.publish"]
