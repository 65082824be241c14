"""Names that obstore cannot ask for, and folder markers: neither breaks a listing, neither becomes a sample."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwise.data import BucketDataset
from stallwise.data.objects._names import LeftOut, _page, _s3_pages, is_readable
from stallwise.data.objects.index import index_of
from stallwise.data.objects.store import ObjectBucket
from stallwise.errors import InputError
from tests.data.testbed.seaweed import Seaweed, objects
from tests.data.testbed.standin_s3 import stand_in

OPTIONS = {"access_key_id": "x", "secret_access_key": "y", "region": "us-east-1"}
GOOD = {f"train/{number}.jpg": bytes([number]) * 5 for number in range(8)}
ODD = ["train//b", "train/./x", "train/../x", "train/t\tab", "train/n\nl", "train/z\x7f", "train//"]


def names_of(endpoint: str, folder: Path, url: str = "s3://bucket/train") -> tuple[list[str], LeftOut]:
    listed = index_of(ObjectBucket(url, endpoint, OPTIONS), folder=folder)
    return [ref.name for ref in listed.index], listed.left_out


def test_folder_markers_are_no_samples(tmp_path: Path) -> None:
    markers = {"train/": b"", "train/sub/": b"", "train/sub/one": b"x", "train/closed/": b""}
    with stand_in({**GOOD, **markers, "train/empty": b""}) as endpoint:
        names, left_out = names_of(endpoint, tmp_path)
    assert names == sorted([*(name.removeprefix("train/") for name in GOOD), "sub/one", "empty"])
    assert (left_out.markers, left_out.unreadable) == (3, 0)


@pytest.mark.parametrize("odd", ODD)
def test_one_odd_name_hides_no_other(tmp_path: Path, odd: str) -> None:
    """The whole bucket could not be listed before."""
    with stand_in({**GOOD, odd: b"x", "train/sub/": b"", "train/ü + %41.jpg": b"yy"}) as endpoint:
        names, left_out = names_of(endpoint, tmp_path)
        assert names == [*(name.removeprefix("train/") for name in GOOD), "ü + %41.jpg"]
        assert (left_out.markers, left_out.unreadable, left_out.example) == (1, 1, odd.removeprefix("train/"))
        assert names_of(endpoint, tmp_path)[1] == left_out, "the kept index knows it as well"


def test_a_dataset_says_what_it_leaves_out_and_reads_the_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with stand_in({**GOOD, "train//b": b"x"}) as endpoint, caplog.at_level(logging.WARNING):
        dataset = BucketDataset("s3://bucket/train", endpoint=endpoint, options=OPTIONS, index_folder=tmp_path)
        assert [dataset[number] for number in range(len(dataset))] == list(GOOD.values())
        assert dataset.left_out.unreadable == 1
        assert "1 objects of s3://bucket/train are left out" in caplog.text


def test_files_with_odd_names_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "files/sub").mkdir(parents=True)
    for name in ("a", "sub/b", "t\tab", "n\nl"):
        (tmp_path / "files" / name).write_text(name)
    url = f"file://{tmp_path}/files"
    listed = index_of(ObjectBucket(url), folder=tmp_path / "index")
    assert [ref.name for ref in listed.index] == ["a", "sub/b"]
    assert listed.left_out.unreadable == 2
    for name in ("t\tab", "n\nl"):
        (tmp_path / "files" / name).unlink()
    again = index_of(ObjectBucket(url), folder=tmp_path / "index", refresh=True)
    assert again.index.fingerprint == listed.index.fingerprint, "sizes and versions are those of the usual listing"


def test_without_keys_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with stand_in({**GOOD, "train//b": b"x"}) as endpoint:
        for options in ({"skip_signature": "true"}, OPTIONS):
            assert len(index_of(ObjectBucket("s3://bucket/train", endpoint, options), folder=tmp_path).index) == 8
        with pytest.raises(InputError, match=r"name cannot be asked for.*keys are needed"):
            next(_s3_pages(ObjectBucket("s3://bucket/train", endpoint)))


def test_the_own_listing_is_signed_and_agrees_with_obstores(
    seaweed: Seaweed, new_bucket: Callable[..., str], tmp_path: Path
) -> None:
    bucket = ObjectBucket(f"s3://{new_bucket(objects(30, 100))}/", seaweed.endpoint, seaweed.options)
    listed = index_of(bucket, folder=tmp_path).index
    own = sorted(each for page in _s3_pages(bucket) for each in page)
    assert own == [(ref.name, ref.size_bytes, ref.version) for ref in listed]
    wrong = ObjectBucket(bucket.url, bucket.endpoint, {**seaweed.options, "secret_access_key": "wrong"})
    with pytest.raises(OSError, match="403"):
        next(_s3_pages(wrong))


def test_which_names_can_be_asked_for() -> None:
    assert all(map(is_readable, ["a", "a b", "..a", "a/b", "%41", "ü", "a\\b"]))
    assert not any(map(is_readable, ["", "/a", "a/", "a//b", ".", "a/..", "a\tb", "\x7f"]))


def test_a_listing_with_declarations_is_refused() -> None:
    bomb = b'<!DOCTYPE a [<!ENTITY b "bbbb">]><ListBucketResult><Contents><Key>&b;</Key></Contents></ListBucketResult>'
    with pytest.raises(ValueError, match="declarations"):
        _page(bomb, "")
