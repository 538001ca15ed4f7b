"""The table of signature schemes."""

from luxrelay.bus.schemes import SCHEMES, SignatureScheme


def test_lengths_of_every_scheme() -> None:
    """Key fields and signatures have the lengths of LP-6411 §2.7 and §2.8 (11-25, 11-28)."""
    rows = [(s.key_field_bytes, s.signature_bytes) for _, s in sorted(SCHEMES.items())]
    assert rows == [(33, 64), (34, 64), (1953, 3309), (2593, 4627), (1985, 3373)]


def test_numbers_are_one_based() -> None:
    """Zero never parses (H5)."""
    assert [scheme.value for scheme in SignatureScheme] == [1, 2, 3, 4, 5]
