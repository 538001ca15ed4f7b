"""The offsets of the fixed part add up."""

from luxrelay.bus import constants as c


def test_offsets_are_those_of_the_document() -> None:
    """Each field begins where the one before ends (11-01)."""
    sizes = [1, 1, 20, 8, 8, 32, 4, 32]
    offsets = [
        c.OFFSET_VERSION, c.OFFSET_FLAGS, c.OFFSET_NAMESPACE, c.OFFSET_SEQ, c.OFFSET_TIMESTAMP,
        c.OFFSET_COMMITMENT, c.OFFSET_BLOB_LEN, c.OFFSET_POLICY_HASH,
    ]  # fmt: skip
    assert offsets == [sum(sizes[:i]) for i in range(len(sizes))]
    assert sum(sizes) == c.PREIMAGE_BYTES == c.OFFSET_KEY_LEN
    assert c.FIXED_BYTES == c.PREIMAGE_BYTES + 6
