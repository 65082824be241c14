import json
import shutil
from pathlib import Path

import pytest

from stallwise.errors import RunError
from stallwise.run import RankWriter, Run, join
from stallwise.run.schema import TABLES
from stallwise.sentences import Sentence
from tests.run.made import begin, make_run, step, write_rank


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_joining_again_changes_nothing(tmp_path: Path) -> None:
    first = make_run(tmp_path, [0.1, 0.2], ranks=2)
    files = _bytes(tmp_path)
    assert set(files) == {"manifest.json", *(f"{name}.npz" for name in TABLES)}
    assert join(tmp_path, exit_code=9, reason=Sentence("run.interrupted", "late")) == first
    assert _bytes(tmp_path) == files


def test_the_samples_of_an_epoch_are_those_that_any_rank_knows(tmp_path: Path) -> None:
    begin(tmp_path / "a", ranks=2)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    write_rank(tmp_path / "a", 0, [0.1])
    with RankWriter.open(tmp_path / "b", 1) as writer:
        writer.epoch(50_000)
    assert join(tmp_path / "b").counts.epoch_samples == 50_000
    assert join(tmp_path / "a").counts.epoch_samples is None
    assert join(tmp_path / "a", others=[tmp_path / "b"]).counts.epoch_samples == 50_000
    assert join(tmp_path / "a").counts.epoch_samples == 50_000


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    begin(tmp_path, ranks=3)
    for rank in (0, 2):
        write_rank(tmp_path, rank, [0.1])
    manifest = join(tmp_path)
    assert manifest.state == "partial"
    assert manifest.partial_reason == "Rank 1 of 3 left no record."
    assert (manifest.counts.ranks_seen, manifest.counts.ranks_expected) == (2, 3)
    assert Run.open(tmp_path).table("steps")["rank"].unique() == [0, 2]


def test_a_number_of_ranks_that_no_memory_holds(tmp_path: Path) -> None:
    begin(tmp_path, ranks=10**15)
    write_rank(tmp_path, 1, [0.1])
    said = join(tmp_path).partial_reason
    assert said == f"Ranks 0, 2, 3, 4, 5, 6, 7, 8 and {10**15 - 9} more of {10**15} left no record."


def test_no_rank_at_all(tmp_path: Path) -> None:
    begin(tmp_path, ranks=12)
    manifest = join(tmp_path, reason=Sentence("run.interrupted", "The launcher was interrupted."))
    assert manifest.state == "partial"
    assert manifest.partial_reason == (
        "The launcher was interrupted. Ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more of 12 left no record."
    )
    assert Run.open(tmp_path).table("steps").height == 0


@pytest.mark.parametrize("joined_there", [False, True])
def test_a_rank_from_another_disk_completes_the_run(tmp_path: Path, joined_there: bool) -> None:
    begin(tmp_path / "a", ranks=2)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    write_rank(tmp_path / "a", 0, [0.1, 0.1])
    write_rank(tmp_path / "b", 1, [0.2, 0.2])
    assert join(tmp_path / "a", exit_code=0).state == "partial"
    if joined_there:
        assert join(tmp_path / "b").state == "partial"
    there = _bytes(tmp_path / "b")
    for _ in range(2):
        manifest = join(tmp_path / "a", others=[tmp_path / "b"])
        assert (manifest.state, manifest.partial_reason) == ("complete", None)
        assert manifest.job.exit_code == 0
        assert Run.open(tmp_path / "a").table("steps")["rank"].to_list() == [0] * 9 + [1] * 9
    assert _bytes(tmp_path / "b") == there


def test_an_interrupted_run_stays_partial_when_completed_later(tmp_path: Path) -> None:
    begin(tmp_path / "a", ranks=2)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    write_rank(tmp_path / "a", 0, [0.1])
    write_rank(tmp_path / "b", 1, [0.2])
    join(tmp_path / "a", reason=Sentence("run.interrupted", "The launcher was interrupted."))
    manifest = join(tmp_path / "a", others=[tmp_path / "b"])
    assert (manifest.state, manifest.partial_reason) == ("partial", "The launcher was interrupted.")


def test_another_run_cannot_be_joined(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.1])
    make_run(tmp_path / "b", [0.1])
    with pytest.raises(RunError, match="Only copies of one run"):
        join(tmp_path / "a", others=[tmp_path / "b"])


@pytest.mark.parametrize("keep", [0, 3, 0.5, -1])
def test_a_torn_part_is_named_and_left_out(tmp_path: Path, keep: float) -> None:
    begin(tmp_path)
    write_rank(tmp_path, 0, [0.1, 0.2, 0.3, 0.4])
    part = tmp_path / "parts" / "rank-00000" / "steps-00001.json"
    data = part.read_bytes()
    part.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    read = Run.open(tmp_path).read("steps")
    assert len(read.damage) == 1
    assert read.damage[0].endswith("is cut off or damaged and was left out.")
    manifest = join(tmp_path)
    assert manifest.state == "partial"
    assert any("rank-00000/steps-00001.json" in note for note in manifest.notes)
    assert Run.open(tmp_path).table("steps")["step"].to_list() == [*range(8), 16]
    assert (tmp_path / "parts.damaged-0").is_dir()
    assert join(tmp_path) == manifest


def test_a_part_that_lacks_a_nullable_column_is_filled(tmp_path: Path) -> None:
    begin(tmp_path)
    write_rank(tmp_path, 0, [0.1] * 4)
    part = tmp_path / "parts" / "rank-00000" / "steps-00000.json"
    document = json.loads(part.read_text())
    at = document["columns"].index("samples")
    document["columns"][at] = "colour"
    for row in document["rows"]:
        row[at] = "red"
    part.write_text(json.dumps(document))
    steps = Run.open(tmp_path).table("steps")
    assert steps["samples"].null_count == 8
    assert steps["colour"].valid.tolist() == ["red"] * 8


def test_a_table_of_a_newer_writer_survives_joining(tmp_path: Path) -> None:
    begin(tmp_path)
    write_rank(tmp_path, 0, [0.1])
    part = tmp_path / "parts" / "rank-00000" / "links-00000.json"
    part.write_text('{"columns": ["rank", "link"], "rows": [[0, "nvlink"]]}')
    for _ in range(2):
        assert list(Run.open(tmp_path).table("links").rows()) == [(0, "nvlink")]
        assert join(tmp_path).tables["links"] == 1


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"columns": ["rank"], "rows": [[0, 1]]}', '{"columns": ["rank"], "rows": [[0]]}']
)
def test_a_part_of_another_shape_is_left_out(tmp_path: Path, text: str) -> None:
    begin(tmp_path)
    write_rank(tmp_path, 0, [0.1])
    (tmp_path / "parts" / "rank-00000" / "steps-00007.json").write_text(text)
    read = Run.open(tmp_path).read("steps")
    assert read.table.height == 5
    assert len(read.damage) == 1


def test_a_torn_joined_table_is_an_error(tmp_path: Path) -> None:
    make_run(tmp_path, [0.1])
    (tmp_path / "steps.npz").write_bytes(b"PK garbage")
    with pytest.raises(RunError, match=r"steps\.npz is cut off or damaged"):
        Run.open(tmp_path).table("steps")


def test_a_column_that_no_file_can_name_is_left_out_with_its_part(tmp_path: Path) -> None:
    begin(tmp_path)
    write_rank(tmp_path, 0, [0.1])
    for number, name in enumerate(("file", "a.null", "../x", "")):
        part = tmp_path / "parts" / "rank-00000" / f"links-0000{number}.json"
        part.write_text(json.dumps({"columns": ["rank", name], "rows": [[0, 1]]}))
    assert len(Run.open(tmp_path).manifest.ranks) == 1
    with pytest.raises(RunError, match="no table 'links'"):
        Run.open(tmp_path).table("links")


def test_pieces_that_do_not_go_together_are_a_sentence(tmp_path: Path) -> None:
    begin(tmp_path)
    write_rank(tmp_path, 0, [0.1])
    for number, value in enumerate((1, "one")):
        part = tmp_path / "parts" / "rank-00000" / f"links-0000{number}.json"
        part.write_text(json.dumps({"columns": ["rank", "link"], "rows": [[0, value]]}))
    with pytest.raises(RunError, match="do not go together"):
        Run.open(tmp_path).table("links")


def test_a_table_is_read_once(tmp_path: Path) -> None:
    make_run(tmp_path, [0.1])
    run = Run.open(tmp_path)
    steps = run.table("steps")
    (tmp_path / "steps.npz").unlink()
    assert run.table("steps") is steps


def test_an_unreadable_rank_report_does_not_lose_the_rows(tmp_path: Path) -> None:
    begin(tmp_path)
    write_rank(tmp_path, 0, [0.1])
    (tmp_path / "parts" / "rank-00000" / "rank.json").write_text('{"rec')
    manifest = join(tmp_path)
    assert manifest.state == "partial"
    assert manifest.counts.steps == 5


def test_what_ranks_know_reaches_the_manifest(tmp_path: Path) -> None:
    begin(tmp_path, ranks=2)
    for rank in range(2):
        with RankWriter.open(tmp_path, rank, backend="gloo", software={"cuda": "13.0"}) as writer:
            writer.phase("no exchange", "no gradient exchange")
            writer.note("The gradient norm is not ablated.")
            writer.append("steps", step(rank, 0, 0.1, phase="no exchange"))
    for manifest in (Run.open(tmp_path).manifest, join(tmp_path)):
        assert manifest.world.backend == "gloo"
        assert manifest.software["cuda"] == "13.0"
        assert [phase.name for phase in manifest.phases] == ["as is", "no exchange"]
        assert manifest.phases[1].differs == "no gradient exchange"
        assert manifest.notes == ("SyncBatchNorm is not ablated.", "The gradient norm is not ablated.")


def test_unknown_table_is_a_sentence(tmp_path: Path) -> None:
    make_run(tmp_path, [0.1])
    with pytest.raises(RunError, match="no table 'stepz'"):
        Run.open(tmp_path).table("stepz")
