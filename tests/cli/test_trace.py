"""`stallwise trace export` on the command line."""

import json
from pathlib import Path

from tests.conftest import Cli
from tests.report import trace_format
from tests.report.made_runs import make_full_run


def test_export_names_the_file_and_what_opens_it(cli: Cli, tmp_path: Path) -> None:
    make_full_run(tmp_path / "run")
    said = cli("trace", "export", "run").stdout
    assert said.startswith("run/trace.json.gz: 664 events of 4 ranks.")
    assert "ui.perfetto.dev" in said
    trace_format.check(trace_format.read(tmp_path / "run" / "trace.json.gz"))


def test_one_rank_as_plain_json_with_an_answer_for_programs(cli: Cli, tmp_path: Path) -> None:
    make_full_run(tmp_path / "run")
    done = cli("trace", "export", "run", "-o", "t.json", "--rank", "2", "--json")
    answer = json.loads(done.stdout)
    assert done.stderr == ""
    assert answer["path"] == "t.json"
    assert answer["ranks"] == [2]
    assert [clock["node"] for clock in answer["clocks"]] == [0, 1]
    document = trace_format.read(tmp_path / "t.json")
    trace_format.check(document)
    assert answer["events"] == sum(event["ph"] != "M" for event in document["traceEvents"]) == 664 / 4


def test_what_cannot_be_done_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    assert "nothing" in cli("trace", "export", "nothing", code=2).stderr
    make_full_run(tmp_path / "run")
    assert "has no rank 7" in cli("trace", "export", "run", "--rank", "7", code=2).stderr
    assert "cannot be written" in cli("trace", "export", "run", "-o", "no/t.json", code=2).stderr
