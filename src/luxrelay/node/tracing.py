"""OpenTelemetry traces of the doors; an extra, absent when off.

One span for each batch that passes a door: gossip, publish, history. A span says how many messages
it held and how many were accepted; the ids of its messages stand in it for batches that are small
enough to read. Spans are exported by OTLP over HTTP in a thread of the library, from a bounded
queue.

Source: docs/how-to/operate.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from luxrelay.bus import MsgHeader
from luxrelay.errors import ConfigError

IDS_MAX: Final = 16
"""Most message ids that one span names."""


class Traces:
    """Spans of the doors; without a tracer nothing is done."""

    def __init__(self, provider: Any = None) -> None:
        """Take an OpenTelemetry tracer provider, or None for no traces."""
        self._provider = provider
        self.on = provider is not None
        """Whether anything is recorded."""
        self._tracer = None if provider is None else provider.get_tracer("luxrelay")

    @contextmanager
    def batch(self, door: str, headers: Sequence[MsgHeader]) -> Iterator[dict[str, int]]:
        """Record one batch; the caller puts ``accepted`` into what it is given."""
        counts: dict[str, int] = {}
        if self._tracer is None:
            yield counts
            return
        with self._tracer.start_as_current_span(f"luxrelay.{door}") as span:
            span.set_attribute("luxrelay.messages", len(headers))
            if len(headers) <= IDS_MAX:
                ids = [header.message_id.hex() for header in headers]
                span.set_attribute("luxrelay.message_ids", ids)
            yield counts
            for name, count in counts.items():
                span.set_attribute(f"luxrelay.{name}", count)

    def close(self) -> None:
        """Export what is left, and end."""
        if self._provider is not None:
            self._provider.shutdown()


def open_traces(endpoint: str, node: str, version: str) -> Traces:
    """Return traces that go to an OTLP endpoint; none when it is empty.

    Raises:
        ConfigError: the extra is not installed.

    """
    if not endpoint:
        return Traces()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  an extra
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  an extra
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "traces need an extra that is not installed",
            where="[node] traces",
            hint="pip install 'luxrelay[traces]'",
        ) from error
    attributes = {
        "service.name": "luxrelay",
        "service.instance.id": node,
        "service.version": version,
    }
    provider = TracerProvider(resource=Resource.create(attributes))
    exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Traces(provider)
