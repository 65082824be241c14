"""What a study says and ships."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fitting.errors import Classes, Errors, coverage
from fitting.ridge import Vector
from stallwise.hardware.coefficients import FittedCoefficients

LOW = 0.9
"""Efficiency below which several GPUs are worth a model."""


@dataclass
class Study:
    """What is shipped, and what is said about it."""

    fitted: list[FittedCoefficients] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def say(
        self,
        what: str,
        found: Errors,
        splits: Sequence[Classes] = (),
        judged: Sequence[bool] | None = None,
    ) -> None:
        """One line: errors and, from other groups' errors, intervals; `judged`: of these rows alone."""
        c = coverage(found, splits, judged)
        e = found.relative if judged is None else found.relative[np.asarray(judged, dtype=bool)]
        self.lines.append(
            f"{what:<58} {len(e):>6} rows  median {np.median(e):6.1%}  mean {e.mean():6.1%}  "
            f"80 % interval covers {c.covered:4.0%}, high/low {c.width:.2f}, "
            f"≥ 60 % in {c.groups_above:.0%} of groups"
        )


def halved(study: Study, what: str, truth: Vector, held: Vector, low: Vector) -> None:
    """Errors of the model beside those of n times one GPU, where that is far off."""
    model = np.abs(np.exp(held - truth) - 1)[low]
    naive = np.abs(np.exp(-truth) - 1)[low]
    study.lines.append(
        f"{what + ', efficiency below 0.9':<58} {int(low.sum()):>6} rows  median {np.median(model):6.1%} against "
        f"{np.median(naive):6.1%} of n × one;  mean {model.mean():6.1%} against {naive.mean():6.1%}"
    )
