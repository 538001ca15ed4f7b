"""Every kind of vectors by the name of its folder."""

from typing import Final

from luxrelay.testing.cases import envelopes, fees, headers, namespaces, policies, sidecars
from luxrelay.testing.cases.case import VectorKind

KINDS: Final[dict[str, VectorKind]] = {
    "envelope": envelopes,
    "fee": fees,
    "header": headers,
    "namespace": namespaces,
    "policy": policies,
    "sidecar": sidecars,
}
"""Folder name to module."""
