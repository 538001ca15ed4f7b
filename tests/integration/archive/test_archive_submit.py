"""The same command as a job of spark-submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from luxrelay.archive.jars import find_jars, jar_folders
from luxrelay.archive.schema import RAW
from luxrelay.archive.segment_files import write_segments
from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]
NS = NamespaceId(b"\x0a" * 20)
KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"\x21" * 32)
JOB = """
from luxrelay.cli.main import main

raise SystemExit(main())
"""
DELTA = (
    "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
)


def _submit(folder: Path, *words: str, settings: tuple[str, ...]) -> tuple[int, str, str]:
    """Run the command by spark-submit; return how it ended, what it said, and what Spark said.

    Whatever the command writes comes out of the standard output of spark-submit.
    """
    job = folder / "job.py"
    job.write_text(JOB)
    bin_folder = Path(sys.executable).parent
    environ = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    more = [part for setting in settings for part in ("--conf", setting)]
    jars = ",".join(map(str, find_jars(jar_folders())))
    done = subprocess.run(
        [str(bin_folder / "spark-submit"), "--master", "local[1]", "--jars", jars, *more,
         str(job), *words],
        capture_output=True, text=True, timeout=900, check=False, env=environ, cwd=folder,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_job_of_spark_submit_archives(tmp_path: Path) -> None:
    """Master and jars are those of spark-submit; without Delta it says so and changes nothing."""
    now, out = int(time.time() * 1000), tmp_path / "archive"
    headers = [
        KEY.sign_header(
            MsgHeader(
                namespace_id=NS, seq=seq, timestamp=now, blob_commitment=bytes(32), blob_len=0,
                policy_hash=b"p" * 32,
            )
        )
        for seq in (1, 2, 3)
    ]  # fmt: skip
    rows = [
        {"relay": "f:1", "namespace": NS, "seq": each.seq, "header": each.encode(),
         "received_at": now, "expires_at": now}
        for each in headers
    ]  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, schema=RAW.arrow())
    write_segments(tmp_path / "segments", [batch], prefix="1")
    words = ("archive", "ingest", "--segments", "segments", "--out", "archive", "--json")

    code, said, log = _submit(tmp_path, *words, settings=())
    assert code == 1, log
    assert "runs without Delta" in said
    assert not out.exists()

    code, said, log = _submit(tmp_path, *words, settings=DELTA)
    assert code == 0, said + log
    answer = said[said.index("\n{") : said.rindex("\n}") + 2]
    assert json.loads(answer)["messages"] == 3
    found = DeltaTable(str(out / "messages")).to_pyarrow_table(columns=["seq"])
    assert sorted(found.column("seq").to_pylist()) == [1, 2, 3]
