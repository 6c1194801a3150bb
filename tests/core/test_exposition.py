"""Exposition text: strict about what it reads, silent about what stood there."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from breakeven.errors import ProtocolError
from breakeven.exposition import label_values, parse_page, response_body

VLLM = Path(__file__).parents[1] / "data/vllm"
RECORDED = sorted(VLLM.glob("*/metrics_*.raw")) + sorted(VLLM.glob("admission/metrics_*.txt"))


def one(line: str) -> tuple[str, dict[str, str], float]:
    (sample,) = parse_page(line).samples
    return sample.name, dict(sample.labels), sample.value


@pytest.mark.parametrize(
    ("line", "name", "labels", "value"),
    [
        ("a 1", "a", {}, 1.0),
        ("a{} 1", "a", {}, 1.0),
        ('a{b="c"} 1', "a", {"b": "c"}, 1.0),
        ('a{b="c",} 1', "a", {"b": "c"}, 1.0),
        ('a{ b = "c" , d="e"} 1', "a", {"b": "c", "d": "e"}, 1.0),
        ('a{b="c"} 1 1700000000000', "a", {"b": "c"}, 1.0),
        ('a{b="}\\"x\\\\\\n"} 1', "a", {"b": '}"x\\\n'}, 1.0),
        ('a{b="a\\tb"} 1', "a", {"b": "a\\tb"}, 1.0),
        ('a_bucket{le="+Inf"} 7', "a_bucket", {"le": "+Inf"}, 7.0),
        ("a +Inf", "a", {}, math.inf),
        ("a -Inf", "a", {}, -math.inf),
        ("a 1.5e+09", "a", {}, 1.5e9),
        ('a{x="1"} 3 # {trace="q # {"} 0.5 1.2', "a", {"x": "1"}, 3.0),
        ('{"a.b", c="d"} 4', "a.b", {"c": "d"}, 4.0),
        ("vllm:x_total\t2", "vllm:x_total", {}, 2.0),
        ("a 1\r", "a", {}, 1.0),
    ],
)
def test_a_line_is_read(line: str, name: str, labels: dict[str, str], value: float) -> None:
    """Name, labels with escapes, value; timestamps and exemplars are passed over."""
    assert one(line) == (name, labels, value)


def test_nan_is_a_value() -> None:
    """The format allows it; whoever needs a number must look."""
    assert math.isnan(one("a NaN")[2])


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a x",
        "a 1_0",
        "a infinity",
        "a 0x1",
        "1a 1",
        "a{b=c} 1",
        'a{b="c"',
        'a{b="c" d="e"} 1',
        'a{b="c",,d="e"} 1',
        'a{b="1",b="2"} 1',
        "a 1\na 1",
        'a{b="c"} 1\na{b="c"} 2',
        '{b="c"} 1',
        "{} 1",
        "<html><body>no</body></html>",
        '{"error": "the prompt said: CANARY"}',
        "# TYPE a spaceship\n",
    ],
)
def test_what_is_no_exposition_text_is_refused(text: str) -> None:
    """A page half read would be a wrong number; its text is never quoted."""
    with pytest.raises(ProtocolError, match=r"line \d") as caught:
        parse_page(text)
    assert "CANARY" not in str(caught.value)


def test_invalid_utf8_names_its_line() -> None:
    """Bytes that are no text."""
    with pytest.raises(ProtocolError, match="line 2: no valid UTF-8"):
        parse_page(b'a 1\nb{c="\xff"} 2\n')


def test_types_are_kept() -> None:
    """Declared types of families."""
    page = parse_page("# HELP a b\n# TYPE a counter\n# a comment\na 1\n# EOF\n")
    assert page.types == {"a": "counter"}


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_recorded_pages_read_as_the_reference_client_reads_them(path: Path) -> None:
    """Foreign witness: prometheus_client's own parser gives the same samples."""
    raw = path.read_bytes()
    body = response_body(raw) if raw.startswith(b"HTTP/") else raw
    theirs = [
        (s.name, s.labels, s.value)
        for family in text_string_to_metric_families(body.decode())
        for s in family.samples
    ]
    ours = [(s.name, dict(s.labels), s.value) for s in parse_page(raw).samples]
    key = lambda item: (item[0], sorted(item[1].items()))  # noqa: E731 - one use
    assert sorted(ours, key=key) == sorted(theirs, key=key)
    assert len(ours) > 300


PAGE = b'a{b="c"} 1\na{b="d"} 2\n'


def chunked(body: bytes, sizes: list[int]) -> bytes:
    out, at = b"", 0
    for size in [*sizes, len(body)]:
        part = body[at : at + size]
        if part:
            out += b"%x;ext=1\r\n%s\r\n" % (len(part), part)
        at += size
    return out + b"0\r\n\r\n"


@given(st.lists(st.integers(1, 9), max_size=8))
def test_a_chunked_response_reads_like_the_page(sizes: list[int]) -> None:
    """Chunk borders fall anywhere."""
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(PAGE, sizes)
    assert parse_page(raw) == parse_page(PAGE)


def test_heads_are_skipped_and_gzip_is_undone() -> None:
    """A recorded response is as good as its body."""
    packed = gzip.compress(PAGE)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    assert parse_page(head + packed) == parse_page(PAGE)
    assert parse_page(b"HTTP/1.0 200 OK\nX: y\n\n" + PAGE) == parse_page(PAGE)


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"HTTP/1.1 503 Busy\r\n\r\nSECRET", "status 503"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\na 1\n", "cut off at 4 of 99"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\na 1\n", "no number"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n", "without its end"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no number"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nxx", "damaged gzip"),
        (b"HTTP/1.1 200 OK\r\nX: y", "no end"),
    ],
)
def test_broken_responses_are_refused(raw: bytes, what: str) -> None:
    """Half a page, or an error page, is no page; its body is not quoted."""
    with pytest.raises(ProtocolError, match=what) as caught:
        parse_page(raw)
    assert "SECRET" not in str(caught.value)


def test_label_values_are_distinct_and_sorted() -> None:
    """Which engines and models stand on a page."""
    page = parse_page('x{engine="1"} 1\nx{engine="0"} 1\ny{engine="1"} 1\nz 1\n')
    assert label_values(page.samples, "engine") == ("0", "1")
