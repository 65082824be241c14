"""`stallwise data stat` and `plan` on runs, the bucket on card and page, and one sentence for what cannot be done."""

import json
from pathlib import Path
from typing import Any

import pytest

from stallwise.analysis.analysis import open_run
from stallwise.model.data.object_store import EpochReads, ObjectStoreLink, epoch_wait
from stallwise.report.views.profile import document
from tests.conftest import Cli
from tests.data.made_loads import BATCH, SAMPLE_BYTES, STEP_S, STEPS, WAIT_S, make_bucket_run
from tests.run.made import make_run
from tests.sentences import coded

RANKS = 2
SAMPLES = RANKS * STEPS * BATCH
DATASET = 10_000


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bucket_run(tmp_path_factory.mktemp("bucket") / "run", ranks=RANKS)


def _json(ask: Cli, *arguments: object) -> Any:
    done = ask("data", *map(str, arguments), "--json")
    assert done.stderr == ""
    return coded(done.stdout)


def _no(ask: Cli, *arguments: object) -> str:
    done = ask("data", *map(str, arguments), code=2)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_stat_adds_up_and_prices(ask: Cli, run: Path) -> None:
    found = _json(ask, "stat", run, "--store-prices", "s3", "--egress", "0.09", "--epoch-samples", DATASET)
    total, requests = found["use"]["total"], SAMPLES * 3 // 4 + RANKS
    assert (total["samples"], total["hits"], total["retries"]) == (SAMPLES, SAMPLES // 4, RANKS)
    assert total["requests"] == requests
    assert total["fetched_bytes"] == SAMPLES * 3 // 4 * SAMPLE_BYTES
    usd = requests * 0.4e-6 + total["fetched_bytes"] * 0.09e-9
    assert found["use"]["usd"] == pytest.approx(usd)
    assert found["epoch_usd"] == pytest.approx(usd * DATASET / SAMPLES, rel=1e-3)
    assert found["use"]["data_wait_s"] / found["use"]["step_s"] == pytest.approx(WAIT_S / STEP_S)


def test_stat_of_every_loader_and_of_waits(ask: Cli, run: Path) -> None:
    found = _json(ask, "stat", run)
    assert [(one["rank"], one["worker"]) for one in found["loaders"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert sum(one["samples"] for one in found["loaders"]) == SAMPLES
    assert found["use"]["usd"] is None
    # 0 to 39 ms, each twice.
    network = found["use"]["total"]["network"]
    assert network["mean_s"] == pytest.approx(0.0195)
    assert network["p50_s"] == pytest.approx(0.0195, abs=0.001)
    assert network["p95_s"] == pytest.approx(0.037, abs=0.001)
    text = ask("data", "stat", str(run)).stdout
    for expected in ("25 %", "step waits", "20 % of the step", "unknown for this run", "19.5 ms", "decode function"):
        assert expected in text


def test_card_page_and_document_say_it(ask: Cli, run: Path, tmp_path: Path) -> None:
    done = ask("report", str(run), "--html", "page.html")
    row = done.stdout.partition("\nbucket ")[2].partition("\nbeside")[0]
    assert "25 % of samples from the node's cache" in row
    assert "19.5 ms for the store" in " ".join(row.split())
    page = (tmp_path / "page.html").read_text()
    assert "a batch waits for" in page
    assert "25 % of samples" in page
    assert document(open_run(run).profile)["bucket"]["total"]["samples"] == SAMPLES


def test_a_run_without_a_bucket_says_so(ask: Cli, tmp_path: Path) -> None:
    make_run(tmp_path / "plain", [0.1, 0.1])
    assert "loaded nothing from a bucket" in _no(ask, "stat", tmp_path / "plain")
    assert open_run(tmp_path / "plain").profile.bucket is None


def test_plan_is_the_model_of_the_run(ask: Cli, run: Path) -> None:
    cache = DATASET * SAMPLE_BYTES * 0.4
    found = _json(
        *(
            ask,
            "plan",
            run,
            "--cache-size",
            f"{cache}B",
            "--store-link",
            "200mbit",
            "--latency",
            "30ms",
            "--epoch-samples",
            DATASET,
        ),
        *("--epochs", "3", "--store-prices", "gs", "--concurrency", "32"),
    )
    facts = found["facts"]
    assert facts["sample_bytes"] == SAMPLE_BYTES
    # What both ranks of the node take in a step without its wait for data.
    pace = RANKS * BATCH / (STEP_S - WAIT_S)
    assert facts["ingest_samples_per_s"] == pytest.approx(pace)
    rows = {(one["name"], one["sticky"]): one for one in found["alternatives"]}
    assert set(rows) == {("no cache", False), ("this cache", False), ("half the data", False), ("all the data", False)}
    epoch = EpochReads(
        samples=DATASET, sample_bytes=SAMPLE_BYTES, ready_samples_per_s=pace, first_samples=RANKS * BATCH
    )
    link = ObjectStoreLink(latency_s=0.03, bytes_per_s=25e6, concurrency=32)
    this = rows["this cache", False]
    assert this["misses"] == pytest.approx([1, 0.6, 0.6])
    assert this["last"]["wait_s"] == pytest.approx(epoch_wait(epoch, link, 0.6).wait_s)
    assert this["wait_s"] == pytest.approx(sum(epoch_wait(epoch, link, miss).wait_s for miss in (1, 0.6, 0.6)))
    assert this["usd"] == pytest.approx(2.2 * DATASET * 0.4e-6 + 10 * 5e-6)
    assert rows["all the data", False]["last"]["wait_s"] == 0
    assert rows["no cache", False]["usd_last"] == pytest.approx(DATASET * 0.4e-6)
    measured = found["measured"]
    assert measured["miss"] == pytest.approx(0.75)
    assert measured["wait_s"] == pytest.approx(DATASET / (RANKS * BATCH) * WAIT_S)


def test_more_nodes_miss_more_unless_partitions_are_sticky(ask: Cli, run: Path) -> None:
    options = (
        "--cache-size",
        "250MB",
        "--store-link",
        "1gbit",
        "--epoch-samples",
        DATASET,
        "--nodes",
        "4",
        "--policy",
        "no-evict",
    )
    rows = {(r["name"], r["sticky"]): r for r in _json(ask, "plan", run, *options)["alternatives"]}
    assert rows["this cache", False]["misses"][-1] == pytest.approx(0.75)
    assert rows["this cache", True]["misses"][-1] == pytest.approx(0)
    assert rows["its share", True]["misses"][-1] == pytest.approx(0, abs=1e-9)
    text = ask("data", "plan", str(run), *map(str, options)).stdout
    assert "…" not in text, "nothing is cut at 100 columns"
    for expected in ("measured, 1 node", "this cache, sticky", "weaker shuffle", "its latency assumed", "10 epochs"):
        assert expected in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100


def test_plan_takes_the_link_from_a_bench(ask: Cli, run: Path, tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text(json.dumps({"link_bytes_per_s": 5e7, "latency_s": 0.02}))
    found = _json(ask, "plan", run, "--cache-size", "1GB", "--bench", "bench.json", "--epoch-samples", DATASET)
    assert (found["link"]["bytes_per_s"], found["link"]["latency_s"]) == (5e7, 0.02)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("stat",), "Name one of the two"),
        (("stat", "RUN", "--cache", "somewhere"), "Name one of the two"),
        (("stat", "--cache", "nowhere"), "There is no cache in"),
        (("stat", "RUN", "--store-prices", "az"), "'az' is not one of 's3', 'gs'"),
        (("stat", "RUN", "--egress", "0.1"), "Option: --egress."),
        (("plan", "RUN", "--cache-size", "1GB", "--store-link", "1gbit"), "Option: --epoch-samples."),
        (("plan", "RUN", "--cache-size", "1GB", "--epoch-samples", "100"), "--store-link 10gbit"),
        (("plan", "RUN", "--cache-size", "1GB", "--store-link", "fast", "--epoch-samples", "100"), "is not a rate"),
        (("plan", "RUN", "--cache-size", "big", "--store-link", "1gbit", "--epoch-samples", "100"), "is not a size"),
        (
            ("plan", "RUN", "--cache-size", "1GB", "--store-link", "1gbit", "--epoch-samples", "0"),
            "--epoch-samples takes",
        ),
        (("plan", "RUN", "--cache-size", "1GB", "--bench", "no.json", "--epoch-samples", "9"), "bench --json"),
        (
            ("plan", "PLAIN", "--cache-size", "1GB", "--store-link", "1gbit", "--epoch-samples", "9"),
            "Option: --sample-size.",
        ),
        (("warm", "s3://bucket/", "--cache", "folder"), "--cache-size 200GB"),
        (("warm", "bucket", "--cache", "folder", "--cache-size", "1GB"), "is not the address of a bucket"),
        (("warm", "s3://b/", "--cache", "folder", "--cache-size", "1GB", "--option", "x"), "--option takes KEY=VALUE"),
        (("warm", "file:///no/such", "--cache", "folder", "--cache-size", "1GB"), "is not a folder on this machine"),
        (("warm", "file:///", "--cache", ".", "--cache-size", "1GB", "--keys", "no.txt"), "cannot be read"),
        (("verify", "--cache", "nowhere"), "There is no cache in"),
        (("bench", "file:///", "--max-time", "0s"), "--max-time takes a time above 0"),
        (("bench", "az://container/", "--budget", "1"), "a budget cannot be kept. Option: --budget."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)  # fmt: skip
def test_one_sentence_for_what_cannot_be_done(
    ask: Cli, run: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    make_run(tmp_path / "plain", [0.1, 0.1])
    places = {"RUN": str(run), "PLAIN": str(tmp_path / "plain")}
    sentence = _no(ask, *(places.get(word, word) for word in arguments))
    assert said in sentence
    assert sentence.startswith("stallwise: ")
