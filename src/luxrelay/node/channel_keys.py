"""Configuration keys of channels that are opened in a node: synchronisation, pace, segments, state.

Source: reliable-channel-api (NodeConfig); decision C10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from luxrelay.node.checks import Key, boolean, one_of, text, whole

if TYPE_CHECKING:
    from luxrelay.channel import ChannelDefaults, RateLimitConfig, SdsConfig, SegmentationConfig

_DAY_MS: Final = 24 * 3_600_000
CHANNELS_FOLDER: Final = "channels"
"""Where the data folder keeps the state of channels."""

CHANNEL_KEYS: Final = (
    Key(
        "channel",
        "acknowledgement_timeout_ms",
        5_000,
        "milliseconds",
        whole(1, _DAY_MS),
        "Time that a channel opened in this node waits for an acknowledgement before it sends "
        "again.",
    ),
    Key(
        "channel",
        "max_retransmissions",
        5,
        "transmissions",
        whole(0, 10_000),
        "Times that a message of a channel is sent again before its delivery counts as failed.",
    ),
    Key(
        "channel",
        "causal_history_size",
        2,
        "messages",
        whole(1, 64),
        "Newest messages of the log that every message of a channel names.",
    ),
    Key(
        "channel",
        "rate_limit_enabled",
        False,
        "",
        boolean,
        "Whether messages of a channel above the limit of an epoch wait for the next one.",
    ),
    Key(
        "channel",
        "epoch_size_ms",
        600_000,
        "milliseconds",
        whole(1, 366 * _DAY_MS),
        "Length of an epoch; that of the relays' rate limit proofs where they check them.",
    ),
    Key(
        "channel",
        "messages_per_epoch",
        100,
        "messages",
        whole(0, 2**31),
        "Messages of a channel that leave in one epoch, with `rate_limit_enabled`.",
    ),
    Key(
        "channel",
        "counting",
        "first_segment",
        "",
        one_of("first_segment", "every_segment"),
        "What counts against the limit: the first segment of each message, or everything that "
        "goes to the network (C3).",
    ),
    Key(
        "channel",
        "segment_size_bytes",
        102_400,
        "bytes",
        whole(192, 204_800),
        "Longest segment of a message; with what goes around it, it fits the layer below (C9).",
    ),
    Key(
        "channel",
        "encryption_key_file",
        "",
        "path",
        text(0),
        "File of a shared key, from `luxrelay keys new-shared`, with which channels that bring no "
        "encryption of their own are encrypted; in the clear when empty.",
    ),
    Key(
        "channel",
        "persist",
        True,
        "",
        boolean,
        "Whether the state of channels is kept in the data folder, in `channels`; without it a "
        "restart forgets what was not acknowledged.",
    ),
)
"""In the order of the documentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSection:
    """What the section says, with the names of the channel's own configurations."""

    sds_config: SdsConfig
    rate_limit_config: RateLimitConfig
    segmentation_config: SegmentationConfig
    encryption_key_file: Path | None
    persist: bool

    def defaults(self, data_dir: Path, encryption_key: bytes | None) -> ChannelDefaults:
        """Return what channels of a node have when their openers say nothing else."""
        from luxrelay.channel import ChannelDefaults  # noqa: PLC0415  as below

        return ChannelDefaults(
            sds_config=self.sds_config,
            segmentation_config=self.segmentation_config,
            rate_limit_config=self.rate_limit_config,
            folder=data_dir / CHANNELS_FOLDER if self.persist else None,
            encryption_key=encryption_key,
        )


def channel_section_of(values: Mapping[str, Any], base: Path) -> ChannelSection:
    """Return what the checked values of ``[channel]`` mean; paths begin at ``base``."""
    from luxrelay.channel import (  # noqa: PLC0415  commands that read no file do without
        Counting,
        RateLimitConfig,
        SdsConfig,
        SegmentationConfig,
    )

    sds = ("acknowledgement_timeout_ms", "max_retransmissions", "causal_history_size")
    pace = ("epoch_size_ms", "messages_per_epoch")
    key_file = values["encryption_key_file"]
    return ChannelSection(
        sds_config=SdsConfig(**{name: values[name] for name in sds}),
        rate_limit_config=RateLimitConfig(
            enabled=values["rate_limit_enabled"],
            counting=Counting(values["counting"]),
            **{name: values[name] for name in pace},
        ),
        segmentation_config=SegmentationConfig(segment_size_bytes=values["segment_size_bytes"]),
        encryption_key_file=base / key_file if key_file else None,
        persist=values["persist"],
    )
