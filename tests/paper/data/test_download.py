"""One file, from a real server on this machine that misbehaves in every way we could think of."""

from pathlib import Path

import pytest

from edgemerge.paper.data import FetchError
from edgemerge.paper.data.download import RetryPolicy, fetch_file, no_progress
from edgemerge.paper.data.verified_files import RemoteFile, digest, verify_digest
from tests.paper.data.serving import serving
from tests.paper.data.small import put

DATA = bytes(range(256)) * 1000
SIZE = len(DATA)
PART = "file.bin.part"
WHOLE = "file.bin"


def remote(*addresses):
    def check(path):
        verify_digest(path.read_bytes(), digest(DATA, "sha256"), path=path, part="", name="har")

    return RemoteFile(addresses, SIZE, check)


def brought(served, place, pauses, *, timeout_s=5.0, progress=no_progress):
    one = remote(f"{served.url}/{WHOLE}")
    return fetch_file(
        one, place, progress=progress, retry=RetryPolicy(timeout_s=timeout_s, pause=pauses.append)
    )


def in_folder(place):
    return {path.name: path.stat().st_size for path in place.iterdir()}


def test_a_file_arrives_with_progress_and_under_its_own_name(tmp_path, pauses):
    told = []
    with serving({f"/{WHOLE}": DATA}) as served:
        path = brought(served, tmp_path / "new", pauses, progress=lambda *now: told.append(now))
    assert path.read_bytes() == DATA
    assert in_folder(path.parent) == {WHOLE: SIZE}
    assert told[-1] == (WHOLE, SIZE, SIZE)
    assert [size for _, size, _ in told] == sorted(size for _, size, _ in told)
    assert served.asked == [(f"/{WHOLE}", None)]
    assert pauses == []


def test_a_body_that_is_cut_off_is_gone_on_with(tmp_path, pauses):
    with serving({f"/{WHOLE}": DATA}, "cut", "cut") as served:
        path = brought(served, tmp_path, pauses)
    assert path.read_bytes() == DATA
    starts = [None, f"bytes={SIZE // 2}-", f"bytes={SIZE * 3 // 4}-"]
    assert [asked for _, asked in served.asked] == starts


def test_a_server_without_ranges_is_read_from_the_start(tmp_path, pauses):
    with serving({f"/{WHOLE}": DATA}, "cut") as served:
        served.ranges = False
        path = brought(served, tmp_path, pauses)
    assert path.read_bytes() == DATA
    assert [asked for _, asked in served.asked] == [None, f"bytes={SIZE // 2}-"]


def test_a_download_that_failed_for_good_is_gone_on_with_next_time(tmp_path, pauses):
    with serving({f"/{WHOLE}": DATA}, "cut", "503", "503") as served:
        with pytest.raises(FetchError, match=r"answered 503 .*: try again later, which goes on"):
            brought(served, tmp_path, pauses)
        assert in_folder(tmp_path) == {PART: SIZE // 2}
        assert brought(served, tmp_path, pauses).read_bytes() == DATA
    assert in_folder(tmp_path) == {WHOLE: SIZE}
    assert served.asked[-1] == (f"/{WHOLE}", f"bytes={SIZE // 2}-")


def test_three_tries_with_growing_delay_and_no_more(tmp_path, pauses):
    with (
        serving({f"/{WHOLE}": DATA}, *["503"] * 9) as served,
        pytest.raises(FetchError, match=r"file.bin could not be fetched .*answered 503"),
    ):
        brought(served, tmp_path, pauses)
    assert len(served.asked) == 3
    assert 1.0 <= pauses[0] <= 2.0
    assert 2.0 <= pauses[1] <= 4.0
    assert in_folder(tmp_path) == {}


def test_what_came_whole_but_was_not_yet_renamed_is_taken(tmp_path, pauses):
    put(tmp_path, {PART: DATA})
    with serving({f"/{WHOLE}": DATA}) as served:
        assert brought(served, tmp_path, pauses).read_bytes() == DATA
    assert in_folder(tmp_path) == {WHOLE: SIZE}


@pytest.mark.parametrize("old", [b"garbage", bytes(SIZE), bytes(SIZE + 9)])
def test_a_part_that_does_not_belong_is_thrown_away_and_read_afresh(tmp_path, pauses, old):
    put(tmp_path, {PART: old})
    with serving({f"/{WHOLE}": DATA}) as served:
        assert brought(served, tmp_path, pauses).read_bytes() == DATA
    assert in_folder(tmp_path) == {WHOLE: SIZE}
    assert served.asked[-1] == (f"/{WHOLE}", None)


def test_other_bytes_than_asked_for_are_not_appended(tmp_path, pauses):
    put(tmp_path, {PART: DATA[:1000]})
    told = []
    with serving({f"/{WHOLE}": DATA}, "shift") as served:
        path = brought(served, tmp_path, pauses, progress=lambda *now: told.append(now))
    assert path.read_bytes() == DATA
    assert [asked for _, asked in served.asked] == ["bytes=1000-", None]
    assert {whole for _, _, whole in told} == {SIZE}  # of the second answer alone


@pytest.mark.parametrize("act", ["other", "unsaid"])
def test_a_wrong_checksum_leaves_nothing_and_tells_both(tmp_path, pauses, act):
    with serving({f"/{WHOLE}": DATA}, act) as served:
        words = r"file.bin.* found \d+ bytes with sha256:\w{12}…, expected sha256:\w{12}…\)"
        with pytest.raises(FetchError, match=words):
            brought(served, tmp_path, pauses)
    assert in_folder(tmp_path) == {}
    assert len(served.asked) == 1  # it would send the same again


@pytest.mark.parametrize("act", ["endless", "boast"])
def test_a_server_that_sends_too_much_is_cut_off(tmp_path, pauses, act):
    words = rf"sends \d+ bytes or more, expected at most {SIZE}"
    with serving({f"/{WHOLE}": DATA}, act) as served, pytest.raises(FetchError, match=words):
        brought(served, tmp_path, pauses)
    assert in_folder(tmp_path) == {}
    assert len(served.asked) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("act", "kept"), [("hang", {}), ("stall", {PART: SIZE // 2})])
def test_a_server_that_hangs_is_left_after_the_timeout(tmp_path, pauses, act, kept):
    with serving({f"/{WHOLE}": DATA}, act, "hang", "hang") as served:
        with pytest.raises(FetchError, match=r"timed out"):
            brought(served, tmp_path, pauses, timeout_s=0.1)
        assert in_folder(tmp_path) == kept


def test_a_server_that_trickles_is_left_when_the_time_for_the_whole_is_over(tmp_path, pauses):
    slow = RetryPolicy(whole_s=-1.0, pause=pauses.append)
    with (
        serving({f"/{WHOLE}": DATA}) as served,
        pytest.raises(FetchError, match=r"still not whole after"),
    ):
        fetch_file(remote(f"{served.url}/{WHOLE}"), tmp_path, progress=no_progress, retry=slow)


def test_nobody_listening_is_told(tmp_path, pauses):
    with serving({}) as served:
        pass
    with pytest.raises(ConnectionError, match=r"refused.*: try again later"):
        brought(served, tmp_path, pauses)


@pytest.mark.parametrize("act", ["404", "403", "other", "endless"])
def test_after_a_refusal_the_next_mirror_is_asked_at_once(tmp_path, pauses, act):
    with serving({f"/a/{WHOLE}": DATA, f"/b/{WHOLE}": DATA}, act) as served:
        one = remote(f"{served.url}/a/{WHOLE}", f"{served.url}/b/{WHOLE}")
        path = fetch_file(
            one, tmp_path, progress=no_progress, retry=RetryPolicy(pause=pauses.append)
        )
    assert path.read_bytes() == DATA
    assert served.asked == [(f"/a/{WHOLE}", None), (f"/b/{WHOLE}", None)]
    assert pauses == []


def test_a_mirror_goes_on_where_another_stopped(tmp_path, pauses):
    with serving({f"/a/{WHOLE}": DATA, f"/b/{WHOLE}": DATA}, "cut", "404") as served:
        one = remote(f"{served.url}/a/{WHOLE}", f"{served.url}/b/{WHOLE}")
        fetch_file(one, tmp_path, progress=no_progress, retry=RetryPolicy(pause=pauses.append))
    assert served.asked[-1] == (f"/b/{WHOLE}", f"bytes={SIZE // 2}-")


def test_a_user_who_breaks_off_leaves_only_a_part(tmp_path, pauses):
    def stop(_name, _size, _whole):
        raise KeyboardInterrupt

    with serving({f"/{WHOLE}": DATA}) as served, pytest.raises(KeyboardInterrupt):
        brought(served, tmp_path, pauses, progress=stop)
    assert set(in_folder(tmp_path)) == {PART}


def test_a_folder_that_cannot_be_written_is_told_at_once(tmp_path, pauses):
    put(tmp_path, {"taken": b"a file"})
    with serving({f"/{WHOLE}": DATA}) as served:
        with pytest.raises(FetchError, match=r"taken cannot be written .*EDGEMERGE_DATA"):
            brought(served, tmp_path / "taken", pauses)
        (tmp_path / PART).mkdir()
        with pytest.raises(FetchError, match=r"file.bin cannot be written"):
            brought(served, tmp_path, pauses)
    assert pauses == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full disk to try it on")
def test_a_full_disk_is_told_at_once(tmp_path, pauses):
    (tmp_path / PART).symlink_to("/dev/full")
    with (
        serving({f"/{WHOLE}": DATA}) as served,
        pytest.raises(FetchError, match=r"cannot be written \(No space left.*make room"),
    ):
        brought(served, tmp_path, pauses)
    assert len(served.asked) == 1
