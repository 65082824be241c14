"""Small files that would take all memory, and what a program shows of a file's words: each is one sentence, or text."""

import csv
import gzip
import io
import itertools
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwise import inputs
from stallwise.cloud.request import terms_of
from stallwise.cluster.topology import expand, parse_cluster
from stallwise.cluster.traces._formats import read_trace as read_jobs
from stallwise.elastic._manifest import (
    MANIFEST_FORMAT,
    CheckpointManifest,
    FileFact,
    check_checkpoint,
    encode_manifest,
    hasher,
)
from stallwise.errors import InputError, StallwiseError
from stallwise.hardware.catalog import load_catalog
from stallwise.inputs import read_whole
from stallwise.overcommit.traces import read_use
from stallwise.run.manifest import read_manifest
from stallwise.run.reader import Run
from stallwise.run.table_file import check_table_size, read_parquet, read_table_file
from stallwise.run.traces.files import read_trace
from stallwise.spot.lifetimes.readers import read_log
from tests.conftest import Cli, needs
from tests.run.made import make_run


def refused(read: Callable[[Path], object], path: Path, words: str, most_bytes: float = 120e6) -> None:
    """One sentence, and not the memory that the file asks for."""
    tracemalloc.start()
    try:
        with pytest.raises(StallwiseError, match=words) as error:
            read(path)
        assert "\n" not in str(error.value)
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()


def packed(path: Path, before: bytes, mib: int, filler: bytes = b" ") -> Path:
    """A gzip file that unpacks to so many MiB."""
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(before)
        for _ in range(mib):
            file.write(filler * ((1 << 20) // len(filler)))
    return path


def test_gzip_that_unpacks_into_very_much(tmp_path: Path) -> None:
    events = (
        b'{"traceEvents": [' + b",".join([b'{"ph": "X", "name": "a", "ts": 1, "dur": 1}'] * 60_000) + b'], "other": ['
    )
    # Before: the whole rest was joined, 623 MB of 1.4 MB.
    refused(read_trace, packed(tmp_path / "rest.json.gz", events, 60, b"{}, "), "MiB stand behind its list")
    refused(read_whole, packed(tmp_path / "bomb.gz", b"", 80), "more than 300 times its size")
    refused(read_use, packed(tmp_path / "use.csv.gz", b"a,b\n", 80), "more than 300 times")


def test_a_table_that_unpacks_into_very_much(tmp_path: Path) -> None:
    polars = needs("polars")
    frame = polars.select(polars.repeat(0.0, 3_000_000).alias("duration_s"), polars.repeat(1, 3_000_000).alias("rank"))
    frame.write_parquet(tmp_path / "steps.parquet")
    for read in (read_parquet, check_table_size):
        refused(read, tmp_path / "steps.parquet", "3,000,000 rows of 2 columns, which no record of its size holds")
    header = io.BytesIO()
    import numpy as np

    np.save(header, np.zeros(5_000_000, dtype=np.bool_))
    with zipfile.ZipFile(tmp_path / "steps.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("kept.npy", header.getvalue())
    for read in (read_table_file, check_table_size):
        refused(read, tmp_path / "steps.npz", "5,000,000 rows of 1 columns, which no record of its size holds")


@pytest.mark.parametrize("kind", ["nested", "large"])
def test_a_manifest_or_a_part_that_is_none(tmp_path: Path, kind: str) -> None:
    content = b"[" * 20_000 if kind == "nested" else b" " * (17 << 20)
    (tmp_path / "manifest.json").write_bytes(content)
    refused(read_manifest, tmp_path, "nested too deeply" if kind == "nested" else "more than 16 MiB")
    make_run(tmp_path / "run", [1.0])
    rank = next((tmp_path / "run").glob("parts/rank-*"), tmp_path / "run/parts/rank-00000")
    rank.mkdir(parents=True, exist_ok=True)
    (rank / "rank.json").write_bytes(content)
    (rank / "steps-00000.json").write_bytes(content)
    run = Run.open(tmp_path / "run")
    assert run.read("steps").damage
    assert next(one for one in run.manifest.ranks if one.rank == 0).reason is not None


def test_a_host_list_names_no_more_hosts_than_a_cluster_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallwise.cluster.topology._MOST_GPUS", 10_000)
    assert expand("n[1-3,7],gpu[01-02]x[0-1]") == ["n1", "n2", "n3", "n7", "gpu01x0", "gpu01x1", "gpu02x0", "gpu02x1"]
    for text in (
        "n[0-99999]n[0-99999]",
        "n[0-999]n[0-999]n[0-999]",
        ",".join(["n[0-999999]"] * 6),
        f"n[0-{'9' * 5000}]",
    ):
        refused(lambda _, text=text: expand(text), tmp_path, "The host list .* has")  # type: ignore[misc]
    (tmp_path / "c.csv").write_text(",num\nvc1,9999999999999999999999\n")
    refused(lambda path: parse_cluster(str(path)), tmp_path / "c.csv", "is not a count from 1")
    (tmp_path / "c.csv").write_text(",num\n" + "vc1,4000\n" * 9)
    refused(lambda path: parse_cluster(str(path)), tmp_path / "c.csv", "36,000 nodes")


def test_tables_and_logs_have_a_most_of_rows_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text("job_id,submit_s,gpus,duration_s\n" + "a,0,1,5\n" * 50)
    (tmp_path / "log.txt").write_text("0,1\n" * 50)
    for read, name in ((read_jobs, "t.csv"), (read_log, "log.txt")):
        with monkeypatch.context() as patch:
            patch.setattr(inputs.bounded_rows, "__defaults__", (20,))
            refused(read, tmp_path / name, "more than 20 rows")
        with monkeypatch.context() as patch:
            patch.setattr(inputs.read_text, "__defaults__", ("utf-8", 100))
            refused(read, tmp_path / name, "MiB, which no such file has")


def test_no_cell_that_is_written_is_a_formula(tmp_path: Path, ask: Cli) -> None:
    names = ["=cmd()", "+1", "-1+cmd()", "@SUM(1)", "\t=1", "plain", '="a"']
    with (tmp_path / "t.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["job_id", "submit_s", "gpus", "duration_s"])
        rows.writerows([name, index * 10, 1, 60] for index, name in enumerate(names))
    out, jobs = tmp_path / "out.csv", tmp_path / "jobs.csv"
    words = ("--cluster", "racks=1,machines=1,gpus=8", "--policy", "fifo", "--csv", str(out), "--jobs-csv", str(jobs))
    ask("simulate", str(tmp_path / "t.csv"), *words)
    for path in (out, jobs):
        with path.open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "\t", "\r", "-1+"))]
    assert "'=cmd()" in jobs.read_text()


def test_lists_of_lists_of_lists_in_yaml(tmp_path: Path) -> None:
    """Of five billion words, in a file of 500 bytes."""
    levels = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    levels += [f"{one}: &{one} [{','.join(['*' + before] * 9)}]" for before, one in itertools.pairwise("abcdefghijk")]
    path = tmp_path / "terms.yaml"
    path.write_text("discounts:\n  " + "\n  ".join(levels) + "\n")
    refused(lambda path: terms_of(load_catalog(), file=path), path, "must hold `discounts:`")
    path.write_bytes(b"x" * (5 << 20))
    refused(lambda path: terms_of(load_catalog(), file=path), path, "more than 4 MiB")


@pytest.mark.parametrize("name", ["/etc/passwd", "../../x", "pipe"])
def test_a_manifest_names_only_files_of_its_checkpoint(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    manifest = CheckpointManifest(
        format=MANIFEST_FORMAT, step=1, saved_at=0.0, world=1, algorithm="blake2b", facts={},
        files={name: FileFact(bytes=0, checksum=hasher("blake2b").hexdigest())},
    )  # fmt: skip
    (tmp_path / "manifest.json").write_bytes(encode_manifest(manifest))
    with pytest.raises(ValueError, match="no part of it" if name != "pipe" else "pipe is no file"):
        check_checkpoint(tmp_path)


def test_bounds_are_sentences_with_the_name_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    with pytest.raises(InputError, match=r"a has more than 0 MiB, which no such file has"):
        inputs.read_bytes(tmp_path / "a", 10)
    assert inputs.read_bytes(tmp_path / "a", 100) == b"x" * 100
