"""CM-DARE's regressions on models never seen, where `spot_regression` has no figure.

Rows V1 to V7 themselves are in `spot_regression` and `spot_cluster`. Here: the GPU-agnostic models with whole models
left out (V2), and the RBF kernel that does best then (V1b). Tolerance: 0.06 points on figures given with one digit.
"""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from validation.harness import Case, data_file

_SOURCE = "Li, Walls & Guo, ICDCS 2020, cake-lab/CM-DARE"
_METHOD = "One whole model left out at a time, on all GPUs; scikit-learn."
_TARGET = "Step Time (s)"
_AGNOSTIC = "speed_data/0latency_norm_computation"
_FILES = {"K80": "speed_data/0latency_k80_new", "P100": "speed_data/0latency_p100_new2"}


def _made(kind: str, gamma: float) -> Any:
    from sklearn.linear_model import LinearRegression
    from sklearn.svm import SVR

    return LinearRegression() if kind == "linear" else SVR(kernel="rbf", C=100, epsilon=0.01, gamma=gamma)


def _left_out(folder: Path, file: str, column: str, kind: str, gamma: float) -> float:
    """Mean relative error in %."""
    with data_file(folder, f"transient/cmdare/{file}.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    x, y = (np.array([float(row[name]) for row in rows]) for name in (column, _TARGET))
    x = x[:, None]
    models = np.array([row["Model (temp)"] for row in rows])
    found = np.empty(len(y))
    for name in sorted(set(models.tolist())):
        out = models == name
        found[out] = _made(kind, gamma).fit(x[~out], y[~out]).predict(x[out])
    return float(np.abs(found / y - 1).mean() * 100)


def _case(row: str, case: str, published: float, file: str, column: str, kind: str, gamma: float = 1.0) -> Case:
    return Case(
        id=f"spot-{row}",
        case=f"{case}: relative error on a model never seen",
        source=_SOURCE,
        method=_METHOD,
        published=published,
        unit="%",
        tolerance=0.06,
        compute=lambda folder: _left_out(folder, file, column, kind, gamma),
    )


CASES = (
    _case("V2", "step time on any GPU, linear on FLOPs over TFLOPS", 34.7, _AGNOSTIC, "Model/GPU", "linear"),
    _case("V2", "step time on any GPU, SVR RBF on FLOPs over TFLOPS", 21.0, _AGNOSTIC, "Model/GPU", "SVR RBF"),
    _case("V1b", "step time on K80, SVR RBF with gamma 3", 11.6, _FILES["K80"], "Normalized Model", "SVR RBF", 3.0),
    _case("V1b", "step time on P100, SVR RBF with gamma 3", 12.2, _FILES["P100"], "Normalized Model", "SVR RBF", 3.0),
)
