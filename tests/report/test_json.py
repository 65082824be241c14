"""JSON documents: schemas, errors, and text that cannot move a terminal's cursor."""

import json
import pickle
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallwise.fleet.plan import FleetPlan
from stallwise.hardware.machine import MachineRecord, encode_machine, read_machine
from stallwise.report._documents import DOCUMENTS
from stallwise.report.json import document_name, to_json
from stallwise.report.schemas import RESULTS, json_schemas, schemas_text, sentence_codes
from stallwise.sentences import Sentence, read_sentence, sentence_document
from tests.conftest import ROOT, Cli, needs
from tests.sentences import coded

RUN = str(ROOT / "examples" / "runs" / "images")
TRACES = str(ROOT / "examples" / "runs" / "traces")


def test_the_published_schemas_are_current() -> None:
    published = (ROOT / "docs" / "json-schemas.json").read_text()
    assert published == schemas_text(), "python -m stallwise.report.schemas > docs/json-schemas.json"


def test_every_result_has_a_schema_by_its_name() -> None:
    schemas = json_schemas()
    assert set(schemas["documents"]) == {document_name(result) for result in RESULTS} | set(DOCUMENTS)
    assert schemas["$defs"]["RunSummary"]["properties"]["run_id"] == {"type": "string"}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("report", RUN, "--detail"), "run-summary"),
        (("compare", RUN, RUN), "comparison"),
        (("report", RUN, "--html", "report.html"), "profile"),
        (("doctor",), "diagnosis"),
        (("deflate", RUN), "outlook"),
        (("whatif", RUN), "whatif"),
        (("whatif", RUN, "--gpu", "H100", "--gpus", "16", "--nodes", "2", "--network", "100gbit"), "whatif"),
        (("predict", RUN, "--instance", "p5.48xlarge", "--epochs", "3", "--price", "30usd"), "predict"),
        (("predict", RUN, "--gpu", "H100", "--batch", "100000x"), "predict"),
        (("recommend", RUN, "--samples", "1e6", "--gpu", "T4", "--deadline", "12h"), "recommend"),
        (("recommend", RUN, "--samples", "1e6", "--gpu", "T4", "--spot", "--mean-life", "9h"), "recommend"),
        (("recommend", RUN, "--samples", "1e9", "--gpu", "T4", "--budget", "1usd"), "recommend"),
        (("simulate", "jobs.csv", "--cluster", "machines=2,gpus=4", "--policy", "fifo,las"), "simulate"),
    ],
)
def test_documents_have_the_keys_of_their_schema(
    arguments: tuple[str, ...], name: str, ask: Cli, tmp_path: Path
) -> None:
    if name == "simulate":
        needs("numba")
        (tmp_path / "jobs.csv").write_text("job_id,submit_s,gpus,duration_s\n1,0,2,60\n2,5,4,90\n")
        arguments = ("simulate", str(tmp_path / "jobs.csv"), *arguments[2:])
    document = json.loads(ask(*arguments, "--json").stdout)
    assert document.pop("schema") == {"name": f"stallwise/{name}", "version": 1}
    schemas = json_schemas()
    _check(document, schemas["documents"][name], schemas["$defs"], name)


SPOT = ("--price", "3", "--spot-price", "1", "--checkpoint-time", "5s", "--replays", "50", "--mean-life", "9h")
ANSWERS = (
    ("report", RUN),
    ("report", RUN, "--detail"),
    ("report", RUN, "--as", "stash"),
    ("compare", RUN, RUN),
    ("doctor",),
    ("whatif", RUN, "--gpu", "H100", "--gpus", "16", "--nodes", "2", "--network", "100gbit"),
    ("predict", RUN, "--gpu", "H100"),
    ("recommend", RUN, "--samples", "1e6", "--gpu", "T4", "--deadline", "12h"),
    ("recommend", RUN, "--samples", "1e9", "--gpu", "T4", "--budget", "1usd"),
    ("recommend", RUN, "--samples", "2e7", "--gpu", "T4", "--deadline", "1min"),
    ("catalog", "gpus"),
    ("catalog", "instances", "--gpu", "T4"),
    ("catalog", "offers", "--gpu", "T4"),
    ("catalog", "show", "T4"),
    ("data", "plan", RUN, "--cache-size=1GB", "--store-link=1gbit", "--latency=9ms", "--sample-size=1MB"),
    ("trace", "show", TRACES),
    ("spot", "fit", "K80/us-east1"),
    ("spot", "plan", RUN, "--steps", "1000", *SPOT),
    ("deflate", RUN),
    ("fleet", "rehearse", "--machines=2", "--work=1h"),
    ("simulate", "jobs.csv", "--cluster", "machines=2,gpus=4", "--policy", "fifo,las"),
    ("overcommit", "machines.csv"),
    ("instances", "--networks=vgg11", "--cloud=aws", "--include-retired"),
)


@pytest.mark.parametrize("arguments", ANSWERS, ids=lambda words: " ".join(words[:1] + words[2:]))
def test_every_sentence_of_a_document_has_a_code(arguments: tuple[str, ...], ask: Cli, tmp_path: Path) -> None:
    if arguments[0] == "simulate":
        needs("numba")
        (tmp_path / "jobs.csv").write_text("job_id,submit_s,gpus,duration_s\n1,0,2,60\n2,5,4,90\n")
    if arguments[0] == "overcommit":
        needs("numba")
        (tmp_path / "machines.csv").write_text("machine_id,start_s,end_s,cpu\na,0,900,1\nb,100,1800,1\n")
    arguments = tuple(str(tmp_path / one) if one in ("jobs.csv", "machines.csv") else one for one in arguments)
    code = 1 if arguments[-1] == "1min" else 0
    coded(ask(*arguments, "--json", code=code).stdout)


def test_a_sentence_is_text_with_a_code_and_facts() -> None:
    sentence = Sentence("batch.passes", "A step takes 2 passes.", passes=2)
    copy = pickle.loads(pickle.dumps(sentence))  # noqa: S301 - made here
    assert (copy, copy.code, copy.facts) == ("A step takes 2 passes.", "batch.passes", {"passes": 2})
    written = {"code": "batch.passes", "text": "A step takes 2 passes.", "passes": 2}
    assert json.loads(to_json({"notes": [sentence]})) == {"notes": [written]}
    back = msgspec.convert([written, "An old note."], tuple[Sentence, ...], dec_hook=read_sentence)
    assert [(one, one.code, one.facts) for one in back] == [
        ("A step takes 2 passes.", "batch.passes", {"passes": 2}),
        ("An old note.", "recorded", {}),
    ]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert([{"text": 3}], tuple[Sentence, ...], dec_hook=read_sentence)


def test_records_and_plans_keep_the_codes_of_their_notes(tmp_path: Path) -> None:
    note = Sentence("plan.corrected", "The planned time is multiplied by 2.", factor=2.0)
    record = MachineRecord(
        created=datetime(2026, 11, 1, tzinfo=UTC), stallwise_version="0.1.0", ranks=1, nodes=1, notes=(note,)
    )
    (tmp_path / "machine.json").write_bytes(encode_machine(record))
    plan = FleetPlan(name="job", machines=1, notes=(note,))
    kept = [*read_machine(tmp_path / "machine.json").notes]
    text = json.dumps(msgspec.to_builtins(plan, enc_hook=sentence_document))
    kept += msgspec.convert(json.loads(text), FleetPlan, dec_hook=read_sentence).notes
    assert [(one, one.code, one.facts) for one in kept] == 2 * [(note, note.code, note.facts)]


def test_codes_have_one_form() -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*(\.[a-z0-9]+(-[a-z0-9]+)*)?", code) for code in sentence_codes())


_KINDS: dict[str, type] = {"string": str, "integer": int, "boolean": bool}


def _check(value: Any, schema: dict[str, Any], definitions: dict[str, Any], where: str) -> None:
    """The little of JSON Schema that these documents need."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        if value is None:
            assert any(one.get("type") == "null" for one in schema["anyOf"]), where
        else:
            _check(value, next(one for one in schema["anyOf"] if one.get("type") != "null"), definitions, where)
    elif "properties" in schema:
        assert "additionalProperties" in schema or set(value) <= set(schema["properties"]), where
        assert set(schema.get("required", ())) <= set(value), where
        for key, inner in value.items():
            _check(inner, schema["properties"].get(key, {}), definitions, f"{where}.{key}")
    elif schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        for inner in value:
            _check(inner, schema["items"], definitions, f"{where}[]")
    elif schema.get("type") == ["number", "null"]:
        assert value is None or isinstance(value, int | float), where
    elif isinstance(schema.get("additionalProperties"), dict):
        for key, inner in value.items():
            _check(inner, schema["additionalProperties"], definitions, f"{where}.{key}")
    elif schema.get("type") in _KINDS and "enum" not in schema:
        assert isinstance(value, _KINDS[schema["type"]]), where


@pytest.mark.parametrize("arguments", [("whatif", RUN), ("recommend", RUN, "--samples", "1e6", "--gpu", "T4")])
def test_answers_name_their_schema_first(arguments: tuple[str, ...], ask: Cli) -> None:
    document = json.loads(ask(*arguments, "--json").stdout)
    assert next(iter(document)) == "schema"
    assert document["schema"] == {"name": f"stallwise/{arguments[0]}", "version": 1}


def test_an_error_is_json_where_the_answer_was_to_be(ask: Cli, tmp_path: Path) -> None:
    done = ask(
        "predict", RUN, "--gpu", "H100", "--samples", "9", "--epoch-samples", "3", "--epochs", "3", "--json", code=2
    )
    assert done.stderr.startswith("stallwise: ")
    document = json.loads(done.stdout)
    assert document["schema"]["name"] == "stallwise/error"
    assert "not both" in document["error"]["message"]
    assert document["error"]["options"] == ["--samples", "--epochs", "--epoch-samples"]
    assert (document["error"]["code"], document["error"]["exit_code"]) == ("input", 2)
    assert ask("whatif", str(tmp_path / "nowhere"), code=2).stdout == "", "not without --json"


def test_a_no_has_one_document(ask: Cli) -> None:
    done = ask("recommend", RUN, "--samples", "2e7", "--gpu", "T4", "--deadline", "1min", "--json", code=1)
    document = json.loads(done.stdout)
    assert (document["code"], document["pick"]) == ("impossible", None)
    assert "error" not in document


def test_json_shows_control_characters_as_escapes() -> None:
    text = to_json({"name": "a\x1b[2J\x9b31m\u202eb"})
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert json.loads(text)["name"] == "a\x1b[2J\x9b31m\u202eb"
