"""The charts of the report."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from luxrelay.archive.charts import (
    NARROW,
    WIDE,
    Chart,
    Outage,
    Series,
    distribution_chart,
    duration,
    lines_chart,
)

pytestmark = pytest.mark.slow

LINES = (
    Series(name="relay-a", points=((0, 0), (1, 40), (2, 90))),
    Series(name="relay-b", points=((0, 0), (1, 10), (2, 90))),
)


def _texts(svg: str) -> list[str]:
    tree = ET.fromstring(svg.replace("xlink:href", "href"))  # noqa: S314  our own SVG
    return [element.text or "" for element in tree.iter("text")]


def _stored() -> Chart:
    return lines_chart(
        LINES, label="messages stored", outages=[Outage(name="b down", start_s=0.5, end_s=1.5)]
    )


def test_lines_are_labelled_with_their_units() -> None:
    """Axes, legend and outage are text in the chart, in both sizes."""
    for svg in (_stored().wide, _stored().narrow):
        texts = _texts(svg)
        for word in ("messages stored", "seconds since the start", "relay-a", "relay-b", "b down"):
            assert word in texts


@pytest.mark.parametrize(
    ("last_s", "unit"), [(239, "seconds"), (240, "minutes"), (20_000, "hours"), (400_000, "days")]
)
def test_time_is_told_in_a_unit_that_can_be_read(last_s: int, unit: str) -> None:
    """A history of days is not told in seconds."""
    line = Series(name="archived", points=((0.0, 1.0), (float(last_s), 2.0)))

    assert f"{unit} since the start" in _texts(lines_chart([line], label="messages").wide)


def test_each_size_has_its_own_canvas() -> None:
    """A unit of the drawing is a pixel of its screen."""
    for svg, size in ((_stored().wide, WIDE), (_stored().narrow, NARROW)):
        assert re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups() == tuple(map(str, size))


def test_equal_input_gives_equal_bytes() -> None:
    """A chart does not depend on the time or on chance."""
    assert _stored() == _stored()


def test_charts_ask_for_nothing_and_share_no_ids() -> None:
    """No address, no style that leaks, no id twice on one page."""
    charts = [_stored(), distribution_chart([1.0, 2.0], label="deliveries")]
    svgs = [svg for chart in charts for svg in (chart.wide, chart.narrow)]

    assert not any("://" in svg or "<style" in svg for svg in svgs)
    ids = [name for svg in svgs for name in set(re.findall(r'\bid="([^"]+)"', svg))]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("tail", [[], [9_000.0] * 20], ids=["linear", "logarithmic"])
def test_distribution_marks_percentiles(tail: list[float]) -> None:
    """Median, 95 % and 99 % stand in the chart with their values."""
    values = [float(value) for value in range(1, 101)] * 10 + tail

    texts = " ".join(_texts(distribution_chart(values, label="deliveries").wide))

    for word in ("50 % within", "95 % within", "99 % within", "deliveries"):
        assert word in texts
    assert ("logarithmic" in texts) == bool(tail)


def test_distribution_of_one_value_and_of_clocks_that_run_ahead() -> None:
    """One value, and negative ones, still give a chart."""
    assert _texts(distribution_chart([0.0], label="deliveries").wide)
    assert _texts(distribution_chart([-5.0, -1.0], label="deliveries").narrow)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.4, "0 ms"), (999, "999 ms"), (1_000, "1 s"), (1_500, "1.5 s"), (600_000, "10 min")],
)
def test_durations_are_for_people(value: float, text: str) -> None:
    """Each size has its unit."""
    assert duration(value) == text


def test_labels_are_escaped() -> None:
    """A label cannot break out of its attribute."""
    chart = lines_chart(LINES, label='a"<b>')

    assert 'aria-label="a&quot;&lt;b&gt;"' in chart.wide
