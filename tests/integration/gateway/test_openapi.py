"""The OpenAPI documents: true to the routes, and to what the node answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from luxrelay.node.gateway.schemas import SCHEMAS

from .conftest import Stand

pytestmark = pytest.mark.slow
EXAMPLES = int(os.environ.get("LUXRELAY_API_EXAMPLES", "3"))
PHASES = os.environ.get("LUXRELAY_API_PHASES", "fuzzing")
START = "from schemathesis.cli import schemathesis; schemathesis()"
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_headers_conformance", "response_schema_conformance", "unsupported_method",
    "negative_data_rejection",
)  # fmt: skip


def references(value: object) -> set[str]:
    """Return the names of all schemas that a document refers to."""
    if isinstance(value, dict):
        own = {value["$ref"].rpartition("/")[2]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("admin", [False, True], ids=["public", "admin"])
def test_the_document_is_whole(standing: Stand, *, admin: bool) -> None:
    """Every operation has an id of its own, answers, and schemas that are there."""
    document = standing.fetch("/openapi.json", admin=admin).json
    operations = [operation for path in document["paths"].values() for operation in path.values()]

    assert len({each["operationId"] for each in operations}) == len(operations)
    assert all(each["summary"] and each["responses"] for each in operations)
    assert references(document) <= set(SCHEMAS)


@pytest.mark.parametrize("admin", [False, True], ids=["public", "admin"])
def test_what_is_answered_is_what_is_written(stand: Stand, tmp_path: Path, *, admin: bool) -> None:
    """Schemathesis finds no 5xx, no undocumented answer and no body of another form."""
    stand.store_line(5)
    token = stand.token("read", "publish", "admin")
    address = stand.admin_address if admin else stand.address
    done = subprocess.run(
        [
            sys.executable, "-c", START, "run",
            f"http://{address}/openapi.json", "--checks", ",".join(CHECKS),
            "--header", f"Authorization: Bearer {token}", "--max-examples", str(EXAMPLES),
            "--phases", PHASES, "--seed", "20261128", "--no-color",
            "--exclude-path", "/v1/stream", "--exclude-path", "/dashboard/live",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    counters = stand.service.stats()
    assert (counters.admin if admin else counters.public).faults == 0
    assert json.loads(stand.fetch("/openapi.json", admin=admin).body)["openapi"] == "3.1.0"
