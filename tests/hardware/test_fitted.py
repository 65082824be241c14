"""The shipped coefficients: complete, finite, with their source, and small."""

import math
from pathlib import Path

import pytest

from stallwise.errors import CatalogError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.fitted import SHIPPED, encode_fitted, known, load_fitted

NAMES = ("gavel", "image_infer", "image_train", "llm", "network", "scaling", "transfer")


def test_every_model_is_there() -> None:
    assert {path.stem for path in SHIPPED.glob("*.json")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_coefficients_are_finite_and_say_where_they_come_from(name: str) -> None:
    fitted = load_fitted(name)
    assert fitted.name == name
    assert "rows" in fitted.source or "set-ups" in fitted.source
    assert fitted.method
    values = [*fitted.constants.values(), *fitted.weights.values()]
    values += [value for found in fitted.coefficients.values() for value in found.values()]
    assert values
    assert all(math.isfinite(value) for value in values)
    assert all(value >= 0 for found in fitted.coefficients.values() for value in found.values())


@pytest.mark.parametrize("name", NAMES)
def test_spreads_hold_their_order_and_there_is_one_for_any_case(name: str) -> None:
    fitted = load_fitted(name)
    assert "" in fitted.spreads
    for case, (low, high, rows) in fitted.spreads.items():
        assert low < 0 < high, case
        assert rows >= 12
        assert math.exp(high - low) < 40


@pytest.mark.parametrize("name", NAMES)
def test_known_gpus_are_in_the_catalog(name: str, tmp_path: Path) -> None:
    assert known(load_fitted(name), "gpu") <= set(Catalog(tmp_path).gpus)


def test_files_are_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.glob("*.json")) < 500_000


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    fitted = load_fitted("llm")
    (tmp_path / "llm.json").write_bytes(encode_fitted(fitted))
    again = load_fitted("llm", tmp_path)
    assert again.constants["backward"] == pytest.approx(fitted.constants["backward"], rel=1e-3)
    assert again.spreads.keys() == fitted.spreads.keys()


def test_a_missing_or_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="cannot be read"):
        load_fitted("nothing", tmp_path)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(CatalogError, match="is damaged"):
        load_fitted("bad", tmp_path)
