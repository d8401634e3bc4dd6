"""Files behind URLs: the same bytes as on the disk whatever a server does, or an error that says what it did."""

import errno
import gzip
import importlib.util
import os
import random
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from megatape.commands.cli.extras import EXTRAS
from megatape.data.io import retries
from megatape.data.io.files import copy_file, file_states, is_url, open_file
from megatape.data.io.inputs import find_files, relative
from megatape.data.io.retries import Attempts, Retries
from megatape.errors import PathError, UserError
from tests.helpers.processes.web import Fault, Web, served

QUICK = Retries(count=3, wait=0.01, timeout=0.5)
CONTENT = random.Random(0).randbytes(3_000_000)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRIES", QUICK)


@pytest.fixture(scope="module")
def server() -> Iterator[Web]:
    with served() as web:
        yield web


@pytest.fixture
def web(server: Web) -> Web:
    server.files = {"data.bin": CONTENT}
    server.faults = []
    server.always = Fault()
    server.requests = []
    server.links = []
    return server


def read(web: Web) -> bytes:
    with open_file(web.url("data.bin")) as file:
        return file.read()


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
def test_a_stream_goes_on_where_it_was_interrupted(web: Web, faults: list[Fault]) -> None:
    """Every byte once and in order; what has come is not asked for again."""
    web.faults = list(faults)
    assert read(web) == CONTENT
    assert not web.faults
    begins = [int(asked[6:-1] or 0) for method, _, asked in web.requests if method == "GET"]
    assert begins == sorted(begins)
    if faults and faults[0].after > 100_000:
        assert begins[1] > 0


@pytest.mark.parametrize(
    "fault, message",
    [
        (Fault(status=503), "the server answers 503 .* at byte 0 of 3,000,000, after 4 attempts"),
        (Fault(then="stall"), "no answer for 0.5 s at byte 0 of .*, after 4 attempts"),
        (Fault(encoding="br"), "the server compresses it on the way .br.: download it"),
        (Fault(announced=10), r"has changed .* 3,000,010 bytes, 3,000,000 before"),
    ],
)
def test_a_server_that_keeps_failing_is_an_error(web: Web, fault: Fault, message: str) -> None:
    web.always = fault
    with pytest.raises(OSError, match=rf"^{web.url('data.bin')}: {message}"):
        read(web)


def test_failures_count_only_where_nothing_comes(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two with a megabyte in between each is the first; an answer that is final is not asked for again."""
    web.files["large.bin"] = 2 * CONTENT
    web.faults = [Fault(after=2_500_000, then="end")] * 2
    monkeypatch.setattr(retries, "RETRIES", Retries(count=1, wait=0.01))
    with open_file(web.url("large.bin")) as file:
        assert file.read() == 2 * CONTENT
    web.requests.clear()
    web.always = Fault(status=403)
    with pytest.raises(OSError, match="the server answers 403"):
        read(web)
    assert [method for method, _, _ in web.requests] == ["HEAD", "GET"]


@pytest.mark.parametrize("then", ["end", "reset"])
def test_answers_that_are_always_cut(web: Web, then: str) -> None:
    """Received bytes are never requested again. A read once lost part of each 70 KB, and failed after eight answers."""
    web.always = Fault(after=70_000, then=then)
    assert read(web) == CONTENT
    begins = [int(asked[6:-1] or 0) for method, _, asked in web.requests if method == "GET"]
    assert begins == list(range(0, len(CONTENT), 70_000))


@pytest.mark.parametrize("date", [False, True])
def test_a_server_says_how_long_to_wait(web: Web, date: bool) -> None:
    """Retry-After is in seconds or a date, and may be invalid. Too long a wait is an error that names it."""
    wanted = formatdate(time.time() + 2, usegmt=True) if date else "1"
    web.faults = [Fault(status=429, retry_after=wanted), Fault(status=503, retry_after="soon")]
    began = time.monotonic()
    assert read(web) == CONTENT
    assert 0.9 < time.monotonic() - began < 10
    web.faults = [Fault(status=503, retry_after=formatdate(time.time() + 7200, usegmt=True) if date else "7200")]
    with pytest.raises(OSError, match=r"the server answers 503 .* and asks to wait 7,[12]\d\d s: give the same command again"):
        read(web)


def test_a_body_that_is_always_shorter_than_announced_is_an_error(web: Web) -> None:
    web.faults = [Fault(after=2_000_000, then="end")]
    web.always = Fault(after=0, then="end")
    with pytest.raises(OSError, match="at byte 2,000,000 of 3,000,000, after 4 attempts"):
        read(web)


@pytest.mark.parametrize("fault", [Fault(tag="another"), Fault(tag="another", ranges=False), Fault(announced=1)])
def test_a_file_that_changes_meanwhile_is_refused(web: Web, fault: Fault) -> None:
    web.faults = [Fault(after=1_000_000, then="reset"), fault]
    with pytest.raises(OSError, match="data.bin: has changed since it was opened"):
        read(web)


def test_a_packed_file_is_read_as_it_is_stored(web: Web) -> None:
    """Also where the server announces what it holds as a compression on the way, as many do."""
    web.files["a.json.gz"] = gzip.compress(b"text")
    web.always = Fault(encoding="gzip")
    with open_file(web.url("a.json.gz")) as file:
        assert gzip.decompress(file.read()) == b"text"


def test_what_is_not_there(web: Web) -> None:
    with pytest.raises(FileNotFoundError, match="nothing.bin: the server answers 404"):
        open_file(web.url("nothing.bin"))
    with pytest.raises(OSError, match="127.0.0.1:9/x: .*Connect.*, after 4 attempts"):
        file_states(["http://127.0.0.1:9/x"])
    with pytest.raises(ValueError, match="Protocol not known: gopher"):
        open_file("gopher://host/x")
    if importlib.util.find_spec("gcsfs") is None:
        with pytest.raises(ModuleNotFoundError, match="gs://bucket/x: Please install gcsfs") as missing:
            open_file("gs://bucket/x")
        assert missing.value.name in EXTRAS
    with pytest.raises(FileNotFoundError, match="input memory://none: no such file"):
        find_files(["memory://none"], "*")


@pytest.mark.parametrize("braces", ["{1..99999999}", "{1..999}{1..999}", "{0001..200000}", "{a,{-9..99999999}}"])
def test_braces_that_stand_for_too_many_names(braces: str) -> None:
    with pytest.raises(UserError, match=r"its braces stand for more than 100,000 names"):
        find_files([f"memory://host/{braces}.jsonl"])


def test_a_listing_is_complete(web: Web) -> None:
    """A folder below the first one that cannot be listed is tried again, not left out."""
    web.files |= {"a/one.jsonl": b"1", "a/b/two.jsonl": b"2"}
    web.faults = [Fault(), Fault(then="reset")]
    assert len(find_files([web.url("a/")], "*.jsonl")) == 2
    web.faults = [Fault(), *[Fault(status=503)] * 4]
    with pytest.raises(OSError, match="a/: the server answers 503"):
        find_files([web.url("a/")], "*.jsonl")


@pytest.mark.parametrize(
    "names, missing",
    [
        (["train-00000-of-00002-0123456789abcdef.parquet", "train-00001-of-00002-fedcba9876543210.parquet"], ""),
        (["a-1-of-2.jsonl", "a-2-of-2.jsonl", "b_0_of_1.jsonl", "7-of-nine.jsonl"], ""),
        (["en/a-0-of-2.jsonl", "de/a-1-of-2.jsonl"], r"2 files a-\*-of-2.jsonl these are missing: [01]\."),
        (["a-0-of-2.jsonl", "a-1-of-2.json"], r"2 files a-\*-of-2.jsonl? these are missing: [01]\."),
        (["a-2-of-3.jsonl"], r"missing: 0-1\."),
        (["a-3-of-3.jsonl"], r"missing: 1-2\."),
        (["a-5-of-999999999999.jsonl"], r"missing: 0-4, 6-999999999998\."),
    ],
)
def test_sets_of_numbered_files(web: Web, names: list[str], missing: str) -> None:
    """From 0 or 1 on, in each folder; fingerprints of the hub's files are no part of the set's name."""
    web.files = dict.fromkeys((f"x/{name}" for name in names), b"1")
    found = find_files([web.url("x/")], "*")
    assert len(found) == len(names) and find_files(found, partial=False) == found
    if not missing:
        assert find_files([web.url("x/")], "*", partial=False) == found
        return
    with pytest.raises(UserError, match=rf"^input {web.url('x/')}: of the {missing if missing[0] != 'm' else '.*' + missing}"):
        find_files([web.url("x/")], "*", partial=False)


@pytest.mark.timeout(60)
def test_a_listing_that_contains_itself(web: Web) -> None:
    """Every page has a link to a page below it; links to folders above are not followed, and their files are of no input."""
    web.files |= {"a/one.jsonl": b"1"}
    web.links = ["../", "../two.jsonl", "b/../"]
    assert find_files([web.url("a/")], "*.jsonl") == [web.url("a/one.jsonl")]
    web.links = ["b/", "c/"]
    with pytest.raises(ValueError, match=rf"{web.url('a/')}: folders more than 32 deep"):
        find_files([web.url("a/")], "*.jsonl")
    assert len(web.requests) < 100


@pytest.mark.timeout(60)
def test_a_server_that_sends_a_byte_at_a_time(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file and a listing, which are never silent."""
    web.files |= {"a/one.jsonl": b"1"}
    web.always = Fault(after=5, then="trickle")
    # A busy machine takes some of the time.
    monkeypatch.setattr(retries, "RETRIES", Retries(count=1, wait=0.01, timeout=0.5))
    with pytest.raises(OSError, match=r"ConnectionError: only \d+ bytes in .* at byte \d+ of 3,000,000, after 2 attempts"):
        open_file(web.url("data.bin")).read()
    monkeypatch.setattr(retries, "RETRIES", Retries(count=1, wait=0.01, timeout=0.1))
    with pytest.raises(OSError, match=r"a/: no answer for 0.1 s, after 2 attempts"):
        find_files([web.url("a/")], "*.jsonl")


@pytest.mark.parametrize("location", ["file:///etc/passwd", "gopher://host/x", "http://[::x", "/data.bin"])
def test_redirects_to_what_no_web_server_has(web: Web, location: str) -> None:
    """No attempt more: neither another scheme nor a redirect to itself passes."""
    web.always = Fault(status=302, location=location)
    with pytest.raises(OSError, match=rf"^{web.url('data.bin')}: the server redirects"):
        read(web)
    assert sum(method == "GET" for method, *_ in web.requests) < 15


def client_error(name: str, base: type[Exception] = Exception, status: int = 0, **more: int) -> Exception:
    """As botocore, httpx and gcsfs raise them: no OSErrors, known by names."""
    error: Any = type(name, (type("TransportError", (base,), {}) if name == "ConnectError" else base,), more)("why\nit failed")
    error.response = SimpleNamespace(status_code=status) if status else None
    return error


@pytest.mark.parametrize(
    "error, count, message",
    [
        (
            client_error("NoCredentialsError"),
            1,
            r"s3://b/x: access denied \(NoCredentialsError: why it failed\): set AWS_ACCESS_KEY",
        ),
        (client_error("HfHubHTTPError", OSError, 401), 1, "access denied .*: set AWS_ACCESS_KEY_ID"),
        (PermissionError("Forbidden"), 1, r"access denied \(PermissionError: Forbidden\)"),
        (client_error("HfHubHTTPError", OSError, 400), 1, "s3://b/x: HfHubHTTPError: why it failed$"),
        (client_error("ParamValidationError"), 1, "s3://b/x: ParamValidationError: why it failed$"),
        (client_error("OfflineModeIsEnabled", ConnectionError), 1, "s3://b/x: OfflineModeIsEnabled: why it failed$"),
        (ValueError("Invalid endpoint: x"), 1, "s3://b/x: ValueError: Invalid endpoint: x$"),
        (client_error("HfHubHTTPError", OSError, 503), 4, "HfHubHTTPError: why it failed, after 4 attempts: check the network"),
        (client_error("HttpError", code=503), 4, "HttpError: why it failed, after 4 attempts"),
        (client_error("HttpError", code=403), 1, "access denied"),
        (client_error("ConnectError"), 4, "ConnectError: why it failed, after 4 attempts: check the network"),
        (OSError(5, "Input/output error"), 4, "Input/output error, after 4 attempts"),
    ],
    ids=lambda value: f"{type(value).__name__}" if isinstance(value, Exception) else None,
)
def test_errors_of_clients(error: Exception, count: int, message: str) -> None:
    """In one line, tried again where that may help. A fault of the program keeps its traceback."""
    calls: list[None] = []

    def fail() -> None:
        calls.append(None)
        raise error

    with pytest.raises(PathError, match=message):
        Attempts("s3://b/x").run(fail)
    assert len(calls) == count
    with pytest.raises(KeyError):
        Attempts("s3://b/x").run(lambda: {}["x"])


def test_any_part_of_a_file(web: Web) -> None:
    with open_file(web.url("data.bin")) as file:
        for position in (2_500_000, 10, 200_000, 2_999_990, 3_000_000, 0):
            assert file.seek(position) == position == file.tell()
            assert file.read(100) == CONTENT[position : position + 100]
        assert file.seek(-5, 2) == 2_999_995 and file.read() == CONTENT[-5:]


def test_the_same_files_by_path_and_by_url(web: Web, tmp_path: Path) -> None:
    """Listed, sized, read and copied alike: folders, files of web servers and of object storage."""
    files = {"a/one.jsonl": b"1", "a/two.jsonl": b"22", "a/b/three.jsonl": b"333", "a/other.txt": b""}
    memory = fsspec.filesystem("memory")
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
        memory.pipe_file(f"/sources/{name}", content)
        web.files[name] = content
    for root in (str(tmp_path), f"file://{tmp_path}", "memory://sources", web.address):
        one, two = find_files([f"{root}/a/"], "*.jsonl", recursive=False)
        assert (one.rpartition("/")[2], two.rpartition("/")[2]) == ("one.jsonl", "two.jsonl")
        assert [state.size for state in file_states([one, two])] == [1, 2]
        with open_file(two) as file:
            assert file.read() == b"22"
        copy_file(two, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"22"
        (tmp_path / "copy").unlink()
        names = find_files([f"{root}/a/"], "*.jsonl")
        assert [name.partition("/a/")[2] for name in names] == ["b/three.jsonl", "one.jsonl", "two.jsonl"]
        if root in ("memory://sources", web.address):
            assert find_files([f"{root}/a/{{one,two}}.jsonl"]) == [f"{root}/a/one.jsonl", f"{root}/a/two.jsonl"]
            assert find_files([f"{root}/a/t*.jsonl"], "*.txt") == [two] and is_url(two)
            with pytest.raises(ValueError, match=r"a/x\*.jsonl: no file"):
                find_files([f"{root}/a/x*.jsonl"])
        with pytest.raises(ValueError, match=r"no file named \*.parquet in this directory"):
            find_files([f"{root}/a/"], "*.parquet")
    assert not is_url(str(tmp_path)) and not is_url("C4/{a,b}")


def test_file_urls_are_quoted_or_not(tmp_path: Path) -> None:
    """Programs write file URLs with quoted spaces and a host, people without. An existing unquoted name has precedence."""
    for name in ("a b/c.jsonl", "d%20e/c.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"1")
    for url, name in (("a%20b", "a b"), ("a b", "a b"), ("d%20e", "d%20e"), ("d%2520e", "d%20e")):
        wanted = f"{tmp_path}/{name}/c.jsonl"
        for start in ("file://", "file://localhost"):
            for given in (f"{start}{tmp_path}/{url}", f"{start}{tmp_path}/{url}/c.jsonl"):
                assert find_files([given], "*.jsonl") == [wanted]
        assert relative(wanted, f"file://{tmp_path}/{url}") == "c.jsonl"


def test_another_content_of_the_same_size_is_another_version(web: Web, tmp_path: Path) -> None:
    """By path, on a web server and in object storage."""
    memory = fsspec.filesystem("memory")
    names = [str(tmp_path / "a"), web.url("a"), "memory://versions/a"]

    def write(content: bytes) -> None:
        Path(names[0]).write_bytes(content)
        web.files["a"] = content
        memory.pipe_file("/versions/a", content)

    write(b"one")
    first = file_states(names)
    assert file_states(names) == first
    write(b"two")
    assert all(
        before.size == now.size and before.version != now.version for before, now in zip(first, file_states(names), strict=True)
    )


@pytest.mark.parametrize(
    "name, given, path",
    [
        ("c4/en/a.gz", "c4/", "en/a.gz"),
        ("c4/a.gz", "./c4/a.gz", ""),
        ("a.gz", ".", "a.gz"),
        ("/c4/a.gz", "file:///c4", "a.gz"),
        ("c4/a.gz", "c", None),
        ("http://host/c4/a.gz", "http://host/c4", "a.gz"),
        ("http://host/c4/1.gz", "http://host/c4/{0..2}.gz", ""),
        ("http://host/c4/3.gz", "http://host/c4/{0..2}.gz", None),
        ("http://host/c4/900000.gz", "http://host/c4/{0..1000000..100000}.gz", ""),
        ("http://host/c4/a.gz", "http://host/c4/*.gz", ""),
        ("http://host/c4/a.gz", ".", None),
        ("c4/a.gz", "http://host/c4", None),
    ],
)
def test_the_input_that_a_file_belongs_to(name: str, given: str, path: str | None) -> None:
    assert relative(name, given) == path


def test_an_object_that_changes_meanwhile_is_refused() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/changing", b"1" * 5_000_000)
    with open_file("memory://changing") as file:
        file.read(10)
        memory.pipe_file("/changing", b"2" * 5_000_000)
        file.seek(4_000_000)
        with pytest.raises(OSError, match="memory://changing: has changed since it was opened"):
            file.read(10)


def test_folders_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left out without a word: a link to nothing is found, and fails when it is read; so does a folder that cannot
    be listed. Links to folders and unfinished preparations are not entered."""
    for name in ("a/0.jsonl", "b/c/1.jsonl", "out.partial/units/2.jsonl", "in.partial/3.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "lost.jsonl").symlink_to("nowhere")
    (tmp_path / "a" / "linked").symlink_to(tmp_path / "b")
    found = [f"{tmp_path}/{name}" for name in ("a/0.jsonl", "a/lost.jsonl", "b/c/1.jsonl")]
    assert find_files([str(tmp_path)], "*.jsonl") == found
    assert find_files([str(tmp_path / "in.partial")], "*.jsonl") == [f"{tmp_path}/in.partial/3.jsonl"]
    with pytest.raises(UserError, match="no file named"):
        find_files([str(tmp_path / "b")], "*.jsonl", recursive=False)
    with pytest.raises(UserError, match=f"input: {tmp_path}/b/c/1.jsonl is given twice"):
        find_files([f"{tmp_path}/b/../b/c/1.jsonl", str(tmp_path / "b")], "*.jsonl")
    scan = os.scandir

    def refuse(path: str) -> Any:
        if str(path).endswith("b"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        find_files([str(tmp_path)], "*.jsonl")
