"""Metrics for Prometheus: the text format line by line, the account's numbers, atomic replacement of the file."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from stallwise.data import BucketDataset, NodeCache
from stallwise.data.tools.metrics import gauges, write_gauges
from tests.conftest import Cli

LINE = re.compile(r'[a-z_]+\{[a-z]+="(?:[^"\\\n]|\\.)*"\} \d+(\.\d+)?(e[+-]\d+)?')


def test_the_account_and_the_cache_in_prometheus_words(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    for number in range(5):
        (tmp_path / "objects" / f"{number}.bin").write_bytes(b"x" * 100)
    cache = NodeCache(tmp_path / 'odd "name"', 10**6)
    dataset = BucketDataset(f"file://{tmp_path}/objects", cache=cache, index_folder=tmp_path / "index")
    for _ in range(2):
        dataset.__getitems__(range(5))
    text = gauges(dataset=dataset)
    lines = text.splitlines()
    assert text.endswith("\n")
    for words, head, line in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        assert LINE.fullmatch(line), line
        name = line.partition("{")[0]
        assert words.startswith(f"# HELP {name} ")
        assert head in (f"# TYPE {name} counter", f"# TYPE {name} gauge")
        assert (head.endswith("counter")) == name.endswith("_total")
    values = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines[2::3]}
    labels = {
        value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        for value in one.labels.values()
    }
    assert labels == {str(cache.folder), dataset.shown}
    assert values["stallwise_data_samples_total"] == 10
    assert values["stallwise_data_hits_total"] == 5
    assert values["stallwise_data_requests_total"] == 5
    assert values["stallwise_data_cache_entries"] == 5
    assert values["stallwise_data_network_seconds_total"] >= 0
    assert len(values) == len(lines) // 3, "no name twice"


def test_the_command_writes_them_for_a_cache(ask: Cli, tmp_path: Path) -> None:
    NodeCache(tmp_path / "cache", 10**6).stat()
    ask("data", "stat", "--cache", str(tmp_path / "cache"), "--gauges", str(tmp_path / "x.prom"))
    assert "stallwise_data_cache_limit_bytes{" in (tmp_path / "x.prom").read_text()


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    cache, path = NodeCache(tmp_path / "cache", 10**6), tmp_path / "stallwise.prom"
    write_gauges(path, cache=cache)
    write_gauges(path, cache=cache)
    assert path.read_text() == gauges(cache=cache)
    assert [entry.name for entry in tmp_path.glob("stallwise.prom*")] == [path.name]
