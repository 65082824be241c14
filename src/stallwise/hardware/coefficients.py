"""Fitted coefficients that the package ships (`fitted_data/`), with where they come from; written by `make fit`."""

from functools import cache
from pathlib import Path

import msgspec

from stallwise.errors import CatalogError

SHIPPED = Path(__file__).parent / "fitted_data"


class FittedCoefficients(msgspec.Struct, frozen=True, kw_only=True):
    """The coefficients of one model."""

    name: str
    source: str
    """The measurements they were fitted on."""
    method: str
    constants: dict[str, float] = {}
    """Physical constants by name."""
    coefficients: dict[str, dict[str, float]] = {}
    """Of the sum over kinds of work, by variant."""
    weights: dict[str, float] = {}
    """Of the linear correction, by feature."""
    spreads: dict[str, tuple[float, float, int]] = {}
    """By case: quantiles of log(truth / prediction) on rows not fitted that hold 80 %, and the number of rows."""
    known: dict[str, frozenset[str]] = {}
    """Names that were in the measurements: `gpu`, `network` …"""
    units: dict[str, str] = {}


@cache
def load_fitted(name: str, folder: Path = SHIPPED) -> FittedCoefficients:
    """The coefficients called `name`."""
    path = folder / f"{name}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=FittedCoefficients)
    except OSError as error:
        raise CatalogError(f"{path} cannot be read ({error.strerror}). Reinstall Stallwise, or run make fit.") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CatalogError(f"{path} is damaged ({error}). Reinstall Stallwise, or run make fit.") from None


def encode_fitted(fitted: FittedCoefficients) -> bytes:
    """As it lies on disk: indented, weights rounded to what matters."""
    rounded = msgspec.structs.replace(
        fitted,
        weights={name: _rounded(value) for name, value in sorted(fitted.weights.items()) if abs(value) >= _NOTHING},
        constants={name: float(f"{value:.5g}") for name, value in fitted.constants.items()},
        coefficients={k: {n: _short(v) for n, v in terms.items()} for k, terms in fitted.coefficients.items()},
        spreads={k: (_short(low), _short(high), n) for k, (low, high, n) in sorted(fitted.spreads.items())},
    )
    return msgspec.json.format(msgspec.json.encode(rounded, order="deterministic"), indent=1) + b"\n"


_NOTHING = 1e-3


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def _rounded(value: float) -> float:
    return round(value, 4)


def known_names(fitted: FittedCoefficients, kind: str) -> frozenset[str]:
    """Names of that kind (`gpu`, `network`) that the measurements contain."""
    return fitted.known.get(kind, frozenset())
