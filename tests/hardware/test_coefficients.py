"""The shipped coefficients: complete, finite, with their source, and small."""

import math
from pathlib import Path

import pytest

from stallwise.errors import CatalogError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.coefficients import SHIPPED, encode_fitted, known_names, load_fitted

NAMES = ("gavel", "image_infer", "image_train", "layout", "llm", "network", "scaling", "transfer")


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


@pytest.mark.parametrize(
    ("name", "without", "given"),
    [
        ("image_infer", "known gpu|new", "known gpu|new|ref"),
        ("image_infer", "known gpu|family", "known gpu|family|ref"),
        ("network", "new gpu|several|high", "new gpu|several|high|one"),
        ("network", "new gpu|several|low", "new gpu|several|low|one"),
        ("gavel", "several|network", "several|network|one"),
    ],
)
def test_a_measurement_of_ones_own_narrows_the_interval(name: str, without: str, given: str) -> None:
    spreads = load_fitted(name).spreads
    assert spreads[given][1] - spreads[given][0] < spreads[without][1] - spreads[without][0]


@pytest.mark.parametrize(
    ("name", "known_one", "new_one"),
    [
        ("network", "known gpu|network", "new generation|network"),
        ("image_infer", "known gpu|network", "known gpu|new"),
        ("image_infer", "known gpu|new", "new gpu|new"),
        ("image_train", "known gpu|family", "known gpu|new"),
        ("llm", "known gpu|network", "new gpu|network"),
        ("gavel", "several|pair", "several|network"),
        ("transfer", "measured|known gpu|near", "measured|new gpu|far"),
    ],
)
def test_what_is_further_from_what_was_measured_is_less_certain(name: str, known_one: str, new_one: str) -> None:
    spreads = load_fitted(name).spreads
    assert spreads[known_one][1] - spreads[known_one][0] < spreads[new_one][1] - spreads[new_one][0]


@pytest.mark.parametrize("name", NAMES)
def test_known_gpus_are_in_the_catalog(name: str, tmp_path: Path) -> None:
    assert known_names(load_fitted(name), "gpu") <= set(Catalog(tmp_path).gpus)


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
