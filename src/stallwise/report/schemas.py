"""JSON Schemas of the documents, generated from the types of the result or of `report/_documents.py`.

`python -m stallwise.report.schemas` prints them; `docs/json-schemas.json` is that text.
"""

import ast
import sys
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import msgspec

import stallwise
from stallwise.analysis.compare import Comparison, RunSummary
from stallwise.analysis.profile import Profile
from stallwise.analysis.traces.view import TraceView
from stallwise.cloud.instances import InstanceStudy
from stallwise.cloud.study import MachineStudy
from stallwise.data.cache.cache import CacheStat
from stallwise.data.cache.verify import CacheCheck
from stallwise.data.tools.bench import BenchResult
from stallwise.data.tools.plan import DataPlan
from stallwise.deflate.act import DeflationResult
from stallwise.deflate.journal import DeflationRecord
from stallwise.deflate.response import Outlook
from stallwise.hardware.imports import CatalogImport
from stallwise.hardware.machine import MachineRecord
from stallwise.machine.doctor import Diagnosis
from stallwise.report._documents import DOCUMENTS
from stallwise.report.json import document_name
from stallwise.sentences import RECORDED, Sentence
from stallwise.slurm.snapshot import QueueSnapshot

RESULTS: tuple[type, ...] = (
    BenchResult,
    CacheCheck,
    CacheStat,
    CatalogImport,
    Comparison,
    DataPlan,
    DeflationRecord,
    DeflationResult,
    Diagnosis,
    InstanceStudy,
    MachineRecord,
    MachineStudy,
    Outlook,
    Profile,
    QueueSnapshot,
    RunSummary,
    TraceView,
)


@cache  # reading the whole source takes seconds
def sentence_codes() -> tuple[str, ...]:
    """The code of every sentence that the package makes, from its source: the first argument of each `Sentence`."""
    package = Path(stallwise.__file__).parent
    texts = (path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    calls = (
        node
        for text in texts
        if "Sentence(" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Sentence"
    )
    codes = {RECORDED, *(str(call.args[0].value) for call in calls if isinstance(call.args[0], ast.Constant))}
    return tuple(sorted(codes))


def _sentence() -> dict[str, Any]:
    """The schema of a sentence; its other keys are the quantities that it names."""
    return {
        "title": "Sentence",
        "type": "object",
        "properties": {"code": {"type": "string", "enum": [*sentence_codes()]}, "text": {"type": "string"}},
        "required": ["code", "text"],
        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    }


def json_schemas() -> dict[str, Any]:
    """The schema of each document by its name, and the definitions that they share."""
    types = {document_name(result): result for result in RESULTS} | DOCUMENTS
    schemas, definitions = msgspec.json.schema_components(
        types.values(), schema_hook=_custom, ref_template="#/$defs/{name}"
    )
    definitions["Sentence"] = _sentence()
    documents = dict(zip(types, schemas, strict=True))
    described: dict[str, Any] = _nullable({"documents": documents, "$defs": definitions})
    return described


def _custom(custom: type) -> dict[str, Any]:
    if issubclass(custom, Sentence):
        return {"$ref": "#/$defs/Sentence"}
    if issubclass(custom, PurePath):
        return {"type": "string"}
    raise NotImplementedError(custom)


def _nullable(schema: Any) -> Any:
    """The schema with null wherever a number may be: what is not finite or not known is written as null."""
    if isinstance(schema, list):
        return [_nullable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    nullable = {key: _nullable(value) for key, value in schema.items()}
    return nullable | {"type": ["number", "null"]} if nullable.get("type") == "number" else nullable


def schemas_text() -> str:
    """The schemas as JSON text."""
    return msgspec.json.format(msgspec.json.encode(json_schemas(), order="sorted"), indent=1).decode() + "\n"


if __name__ == "__main__":
    sys.stdout.write(schemas_text())
