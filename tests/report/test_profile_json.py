"""The document: stable keys, no number that JSON lacks, every key explained."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from stallwise.record.profile import Profile
from stallwise.report.json import to_json
from stallwise.report.profile_json import document
from stallwise.report.stash import stash_document
from tests.conftest import ROOT
from tests.report.made import ALL, FULL, PARTIAL, PLAIN


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


@pytest.mark.parametrize("profile", ALL.values(), ids=ALL)
def test_every_profile_is_strict_json(profile: Profile) -> None:
    for made in (document(profile), stash_document(profile)):
        assert json.loads(json.dumps(made, allow_nan=False)) == made
        assert json.loads(to_json(made)) == made


def test_the_promised_keys() -> None:
    made = document(FULL)
    assert list(made) == [field.name for field in fields(Profile)]
    assert made["step_s"] == 0.4
    assert list(made["split"]) == ["compute", "copy", "interconnect", "network", "prep", "fetch"]
    assert made["split"]["network"] == {"s": 0.1, "low_s": 0.09, "high_s": 0.11}
    assert list(made["rates"]) == ["G", "P", "P_per_core", "F", "C"]
    assert made["rates"]["C"] == {"samples_per_s": 90000.0, "low": 80000.0, "high": None}
    assert made["verdict"]["binds"] == "network"


def test_what_is_absent_is_null_and_unbounded_too() -> None:
    assert document(PLAIN)["split"]["network"] is None
    assert document(PLAIN)["samples_per_s"] is None
    assert document(PARTIAL)["split"]["prep"] == {"s": 0.0339, "low_s": 0.0, "high_s": None}
    assert document(PARTIAL)["step_low_s"] is None


def test_the_stash_document() -> None:
    made = stash_document(FULL)
    assert made["times"] == pytest.approx({"t0_s": 0.21, "t1_s": 0.23, "tn_s": 0.33, "t3_s": 0.4, "t2_s": 0.5})
    assert made["stalls"]["network"]["of"] == "t1"
    assert made["stalls"]["network"]["percent"] == pytest.approx(100 * 0.1 / 0.23)
    assert stash_document(PLAIN)["stalls"] == dict.fromkeys(("interconnect", "network", "prep", "fetch"))


def test_the_manual_lists_every_key() -> None:
    manual = (ROOT / "docs/report.md").read_text()
    listed = set(re.findall(r"`(\w+)`", manual))
    assert set(keys_of(document(FULL))) | set(keys_of(stash_document(FULL))) <= listed
