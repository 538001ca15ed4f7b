"""The tables of the archive."""

import re

import pyarrow as pa
import pytest

from luxrelay.archive.schema import CHECKED, MESSAGES, RAW, TABLES, Table


def test_raw_rows_keep_their_published_shape() -> None:
    """The raw row schema is a contract with users of the source."""
    assert RAW.plain_ddl() == (
        "relay STRING, namespace BINARY, seq BIGINT, header BINARY, blob BINARY,"
        " received_at BIGINT, expires_at BIGINT, finality INT, parent BINARY, sidecar BINARY"
    )


@pytest.mark.parametrize("table", [RAW, CHECKED, *TABLES], ids=lambda t: t.name)
def test_names_are_unique_and_each_column_has_a_meaning(table: Table) -> None:
    """Every column says what it holds, in words that DDL can quote."""
    assert len(set(table.names)) == len(table.names)
    for column in table.columns:
        assert column.meaning
        assert "'" not in column.meaning
        assert re.fullmatch(r"[a-z][a-z0-9_]*", column.name)


def test_ddl_carries_comment_and_requirement() -> None:
    """What must not be null is said to Delta, with its meaning."""
    ddl = MESSAGES.ddl()

    assert "seq BIGINT NOT NULL COMMENT 'sequence number in the namespace, from 1'" in ddl
    assert "sidecar_epoch DECIMAL(20,0) COMMENT" in ddl


def test_arrow_and_ddl_have_the_same_columns() -> None:
    """Both are made from one list."""
    for table in (RAW, CHECKED, *TABLES):
        assert tuple(table.arrow().names) == table.names
    assert MESSAGES.arrow().field("relays").type == pa.list_(pa.string())


def test_partition_columns_are_columns() -> None:
    """A table is partitioned by what it has."""
    for table in TABLES:
        assert set(table.partition_by + table.key + table.cluster_by) <= set(table.names)
        assert table.key
