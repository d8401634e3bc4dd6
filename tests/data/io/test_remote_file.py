"""Files behind URLs: the same bytes as on disk whatever a server does, or an error that says what the server did."""

import gzip
import random
import time
from email.utils import formatdate

import fsspec
import pytest

from megatape.data.io import retries
from megatape.data.io.files import open_file
from megatape.data.io.retries import Retries
from tests.helpers.processes.web import Fault, Web

CONTENT = random.Random(0).randbytes(3_000_000)


@pytest.fixture
def web(web: Web) -> Web:
    web.files = {"data.bin": CONTENT}
    return web


def read(web: Web) -> bytes:
    with open_file(web.url("data.bin")) as file:
        return file.read()


def requested_starts(web: Web) -> list[int]:
    """Return the first byte asked for by each GET request."""
    starts = []
    for method, _, byte_range in web.requests:
        if method == "GET":
            starts.append(int(byte_range.removeprefix("bytes=").removesuffix("-") or 0))
    return starts


@pytest.mark.parametrize(
    "faults",
    [
        [],
        [Fault(status=503), Fault(status=429), Fault(status=500)],
        [Fault(after=70_000, then="reset"), Fault(after=900_000, then="reset")],
        [Fault(after=1_000_000, then="end"), Fault(after=0, then="end"), Fault(status=502)],
        [Fault(after=123_456, then="stall")],
        [Fault(after=2_999_999, then="reset"), Fault(ranges=False)],
        [Fault(after=1_000_000, then="end"), Fault(after=500_000, then="end", ranges=False), Fault(ranges=False)],
        [Fault(after=1_000_000, then="end"), Fault(most=100_000), Fault(most=1)],
    ],
    ids=["none", "busy", "reset", "ends early", "stalls", "ignores ranges", "ignores ranges and ends early", "sends parts"],
)
def test_a_stream_continues_where_it_was_interrupted(web: Web, faults: list[Fault]) -> None:
    """Every byte arrives once and in order. Received bytes are not requested again."""
    web.faults = list(faults)

    assert read(web) == CONTENT

    assert web.faults == []
    starts = requested_starts(web)
    assert starts == sorted(starts)
    if faults and faults[0].after > 100_000:
        assert starts[1] > 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(status=503), "the server answers 503 .* at byte 0 of 3,000,000, after 4 attempts"),
        (Fault(then="stall"), "no answer for 0.5 s at byte 0 of .*, after 4 attempts"),
        (Fault(encoding="br"), "the server compresses it on the way .br.: download it"),
        (Fault(announced=10), r"has changed .* 3,000,010 bytes, 3,000,000 before"),
    ],
    ids=["busy", "stalls", "compresses", "announces another length"],
)
def test_a_server_that_keeps_failing_is_an_error(web: Web, fault: Fault, message: str) -> None:
    web.always = fault
    with pytest.raises(OSError, match=rf"^{web.url('data.bin')}: {message}"):
        read(web)


def test_received_bytes_reset_the_count_of_failures(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two failures with megabytes in between are a first failure each."""
    monkeypatch.setattr(retries, "RETRIES", Retries(count=1, wait=0.01))
    web.files["large.bin"] = 2 * CONTENT
    web.faults = [Fault(after=2_500_000, then="end")] * 2

    with open_file(web.url("large.bin")) as file:
        assert file.read() == 2 * CONTENT


def test_a_final_answer_is_not_requested_again(web: Web) -> None:
    web.always = Fault(status=403)

    with pytest.raises(OSError, match="the server answers 403"):
        read(web)

    assert [method for method, _, _ in web.requests] == ["HEAD", "GET"]


@pytest.mark.parametrize("then", ["end", "reset"])
def test_a_server_that_always_cuts_its_answers(web: Web, then: str) -> None:
    """Received bytes are never requested again. A read once lost part of each 70 KB, and failed after eight answers."""
    web.always = Fault(after=70_000, then=then)

    assert read(web) == CONTENT

    assert requested_starts(web) == list(range(0, len(CONTENT), 70_000))


def retry_after(seconds: int, as_date: bool) -> str:
    """Return the header Retry-After."""
    if as_date:
        return formatdate(time.time() + seconds, usegmt=True)
    return str(seconds)


# Rounding a date down to a second may turn two seconds from now into one.
@pytest.mark.parametrize(("as_date", "seconds"), [(False, 1), (True, 2)], ids=["seconds", "date"])
def test_the_wait_that_a_server_asks_for_is_kept(web: Web, as_date: bool, seconds: int) -> None:
    """An invalid wait is ignored."""
    web.faults = [
        Fault(status=429, retry_after=retry_after(seconds, as_date)),
        Fault(status=503, retry_after="soon"),
    ]

    start = time.monotonic()
    assert read(web) == CONTENT
    waited = time.monotonic() - start

    assert 0.9 < waited < 10


@pytest.mark.parametrize("as_date", [False, True], ids=["seconds", "date"])
def test_too_long_a_wait_is_an_error(web: Web, as_date: bool) -> None:
    web.faults = [Fault(status=503, retry_after=retry_after(7200, as_date))]

    with pytest.raises(OSError, match=r"the server answers 503 .* and asks to wait 7,[12]\d\d s: give the same command again"):
        read(web)


def test_a_body_that_is_always_shorter_than_announced_is_an_error(web: Web) -> None:
    web.faults = [Fault(after=2_000_000, then="end")]
    web.always = Fault(after=0, then="end")
    with pytest.raises(OSError, match="at byte 2,000,000 of 3,000,000, after 4 attempts"):
        read(web)


@pytest.mark.parametrize("fault", [Fault(tag="another"), Fault(tag="another", ranges=False), Fault(announced=1)])
def test_a_file_that_changes_while_being_read_is_refused(web: Web, fault: Fault) -> None:
    web.faults = [Fault(after=1_000_000, then="reset"), fault]
    with pytest.raises(OSError, match="data.bin: has changed since it was opened"):
        read(web)


def test_a_compressed_file_is_read_as_stored(web: Web) -> None:
    """Many servers announce such a file as compressed on the way."""
    web.files["a.json.gz"] = gzip.compress(b"text")
    web.always = Fault(encoding="gzip")
    with open_file(web.url("a.json.gz")) as file:
        assert gzip.decompress(file.read()) == b"text"


@pytest.mark.timeout(60)
def test_a_file_sent_byte_by_byte_is_an_error(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server sending single bytes is never silent, so the time limit has to notice it."""
    web.always = Fault(after=5, then="trickle")
    monkeypatch.setattr(retries, "RETRIES", Retries(count=1, wait=0.01, timeout=0.5))

    with pytest.raises(OSError, match=r"ConnectionError: only \d+ bytes in .* at byte \d+ of 3,000,000, after 2 attempts"):
        read(web)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "gopher://host/x", "http://[::x", "/data.bin"])
def test_redirects_away_from_the_web_or_to_itself_are_refused(web: Web, location: str) -> None:
    """Refused redirects are not tried again."""
    web.always = Fault(status=302, location=location)

    with pytest.raises(OSError, match=rf"^{web.url('data.bin')}: the server redirects"):
        read(web)

    assert sum(method == "GET" for method, *_ in web.requests) < 15


def test_any_part_of_a_file_is_read(web: Web) -> None:
    """Forwards and backwards, by positions from the start and from the end."""
    with open_file(web.url("data.bin")) as file:
        for position in (2_500_000, 10, 200_000, 2_999_990, 3_000_000, 0):
            assert file.seek(position) == position
            assert file.tell() == position
            assert file.read(100) == CONTENT[position : position + 100]
        assert file.seek(-5, 2) == 2_999_995
        assert file.read() == CONTENT[-5:]


def test_an_object_that_changes_while_being_read_is_refused() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/changing", b"1" * 5_000_000)
    with open_file("memory://changing") as file:
        file.read(10)
        memory.pipe_file("/changing", b"2" * 5_000_000)
        file.seek(4_000_000)
        with pytest.raises(OSError, match="memory://changing: has changed since it was opened"):
            file.read(10)
