"""The options of the data source."""

import pytest

from luxrelay.archive.options import NAMESPACES_MAX, SourceOptions
from luxrelay.errors import ArchiveArgumentError

NS = "ab" * 20


def test_defaults_read_everything_from_every_relay() -> None:
    """Only relays must be named."""
    options = SourceOptions.parse({"relays": "a:1, b:2"})

    assert options.relays == ("a:1", "b:2")
    assert (options.namespaces, options.parent) == ((), None)
    assert (options.read_mode, options.heads, options.starting) == ("all", "contiguous", "earliest")
    assert options.fail_on_data_loss
    assert not options.fault_rows


def test_keys_come_in_any_case() -> None:
    """Spark hands keys over in lower case, users write them in camel case."""
    lower = SourceOptions.parse({"relays": "a:1", "maxrowspertrigger": "7"})
    camel = SourceOptions.parse({"relays": "a:1", "maxRowsPerTrigger": "7"})

    assert lower == camel
    assert lower.rows_max == 7


def test_namespaces_by_name_and_by_parent() -> None:
    """Ids may carry 0x; a parent stands for itself and its lanes."""
    named = SourceOptions.parse({"relays": "a:1", "namespaces": f"{NS}, 0x{NS},{'00' * 20}"})
    parent = SourceOptions.parse({"relays": "a:1", "namespaces": f"parent:0x{NS}"})

    assert named.namespaces == (bytes.fromhex(NS), bytes(20))
    assert parent.parent == bytes.fromhex(NS)
    assert SourceOptions.parse({"relays": "a:1", "namespaces": "all"}).namespaces == ()


def test_starting_offsets_as_json() -> None:
    """Offsets name the last sequence that has been read."""
    options = SourceOptions.parse({"relays": "a:1", "startingOffsets": f'{{"0x{NS}": 12}}'})

    assert options.starting == {NS: 12}


def test_a_hole_is_waited_for_from_a_millisecond_to_a_day() -> None:
    """Both ends are allowed (H16)."""
    for number in (1, 86_400_000):
        options = SourceOptions.parse({"relays": "a:1", "holePatienceMs": str(number)})
        assert options.hole_patience_ms == number


def test_ipv6_addresses_are_addresses() -> None:
    """An IPv6 address stands in brackets."""
    assert SourceOptions.parse({"relays": "[::1]:9641"}).relays == ("[::1]:9641",)


@pytest.mark.parametrize(
    "wrong",
    [
        {"relays": ""},
        {"relays": "host"},
        {"relays": "host:0"},
        {"relays": "host:70000"},
        {"relays": "a:1,a:1"},
        {"relays": ",".join(f"h{n}:1" for n in range(65))},
        {"namespaces": "xyz"},
        {"namespaces": ",".join(f"{n:040x}" for n in range(NAMESPACES_MAX + 1))},
        {"namespaces": "parent:12"},
        {"maxRowsPerTrigger": "0"},
        {"maxRowsPerTrigger": "-1"},
        {"maxRowsPerTrigger": "10000001"},
        {"maxRowsPerTrigger": "many"},
        {"numPartitions": "1025"},
        {"holePatienceMs": "0"},
        {"holePatienceMs": "86400001"},
        {"readMode": "some"},
        {"heads": "finalized"},
        {"failOnDataLoss": "perhaps"},
        {"faultRows": "1"},
        {"deliver": "messages"},
        {"startingOffsets": "newest"},
        {"startingOffsets": "{"},
        {"startingOffsets": '{"ab": 1}'},
        {"startingOffsets": f'{{"{NS}": -1}}'},
        {"failOnDataLos": "false"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_refuse_option(wrong: dict[str, str]) -> None:
    """A wrong option is named before a relay is asked."""
    with pytest.raises(ArchiveArgumentError) as caught:
        SourceOptions.parse({"relays": "a:1"} | wrong)

    assert next(iter(wrong)).lower() in str(caught.value).lower() or caught.value.where


def test_refuse_missing_relays() -> None:
    """There is no default relay."""
    with pytest.raises(ArchiveArgumentError, match="relays is missing"):
        SourceOptions.parse({})
