"""The communication stall from macro features: numbers of tensors and layers of a network, and bytes.

**Closed form.** The graph's exposed exchange is max over messages g of ready_g + Σ_{j≥g} t_j, less backward: from the
message on which the link does not pause again. Of an even network (L equal layers, backward Bk, one message per layer,
C seconds of messages in all) that is linear in g, so its maximum is at an end:

    stall = max(C / L,  C - Bk (L-1)/L)

the last message where backward hides the others, or all of the exchange less what backward hides. With t(M) = a + b M
and k messages of M bytes in all, C = k a + b M: start-up times count by messages, so by tensors (WFBP) or buckets
(DDP), the link's rate by bytes, and layers by what they give backward to do.

**Regression.** Of each link the same closed form is fitted to a measured sweep, with what exchanging costs the host:
every tensor gathered before bucket g leaves costs c_t, every layer launched before c_l. With r_g the part of backward
after which bucket g is complete, n_g the tensors and l_g the layers until then,

    stall = c0 + max over g of ( c_t n_g + c_l l_g + a (k-g+1) + b Σ_{j≥g} bytes_j - (1 - r_g) Bk ),   all ≥ 0.

Which g binds is found by turns (assign, fit, assign again); given that, the form is linear in the coefficients and
fitted by non-negative least squares on *relative* errors. Where only counts are known (`MacroFeatures.even`), buckets,
tensors and layers are taken to be equal and at equal distances. That stalls follow macro features is the observation of
Sharma et al., *Stash* (ICDCS 2023).
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError

_TURNS = 30
FEWEST = 4
"""Number of networks with a stall that a fit needs."""
Rows = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MacroFeatures:
    """Macro features of a network: counts, gradient buckets and the time of backward."""

    tensors: int
    """Number of gradient tensors."""
    layers: int
    """Number of convolutions and matrix products."""
    bucket_bytes: tuple[int, ...]
    """In the order they are sent."""
    bucket_ready: tuple[float, ...]
    """Fraction of backward after which each is complete."""
    bucket_tensors: tuple[int, ...]
    """Tensors gathered by then, those of earlier buckets included."""
    bucket_layers: tuple[int, ...]
    """Layers done by then."""
    backward_s: float
    """Seconds without exchange."""

    @property
    def bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(self.bucket_bytes)

    def even(self) -> "MacroFeatures":
        """The same counts, with equal buckets that become ready at equal distances."""
        count = len(self.bucket_bytes)
        sizes = tuple(self.bytes // count + (1 if place < self.bytes % count else 0) for place in range(count))
        ready = tuple((place + 1) / count for place in range(count))
        return replace(
            self,
            bucket_bytes=sizes,
            bucket_ready=ready,
            bucket_tensors=tuple(round(part * self.tensors) for part in ready),
            bucket_layers=tuple(round(part * self.layers) for part in ready),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStall:
    """A network's measured stall on one link."""

    network: str
    family: str
    features: MacroFeatures
    stall_s: float
    step_s: float
    """Without exchange; with it the step is `step_s` + `stall_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MacroFit:
    """The coefficients of one link, in seconds per unit of each feature."""

    constant_s: float
    per_tensor_s: float
    """Gathered before the bucket that binds is complete."""
    per_layer_s: float
    """Done by then."""
    per_bucket_s: float
    per_byte_s: float

    def stall_s(self, of: MacroFeatures) -> float:
        """Predicted stall of a network with these features."""
        return float(self._each(of).max())

    def binding(self, of: MacroFeatures) -> int:
        """Index of the bucket from which on the link does not pause; the last: only that one is exposed."""
        return int(self._each(of).argmax())

    def _each(self, of: MacroFeatures) -> Rows:
        rows, offset = _rows(of)
        coefficients = (self.constant_s, self.per_tensor_s, self.per_layer_s, self.per_bucket_s, self.per_byte_s)
        stalls: Rows = rows @ np.array(coefficients) + offset
        return stalls


@lru_cache(maxsize=1024)
def _rows(of: MacroFeatures) -> tuple[Rows, Rows]:
    """For every bucket the factors of the coefficients, and the offset: the backward still to come."""
    ready, sizes = np.array(of.bucket_ready), np.array(of.bucket_bytes, dtype=np.float64)
    count = len(sizes)
    after, messages = np.cumsum(sizes[::-1])[::-1], np.arange(count, 0, -1.0)
    rows = np.column_stack([np.ones(count), np.array(of.bucket_tensors), np.array(of.bucket_layers), messages, after])
    return rows, -(1 - ready) * of.backward_s


def fit_macro(stalls: Sequence[MeasuredStall]) -> MacroFit:
    """Coefficients with the smallest squared relative errors.

    Turns can end in a poor fit, so they begin several times: with the first bucket, the last, and each network's guess.
    """
    usable = [one for one in stalls if one.stall_s > 0]
    if len(usable) < FEWEST:
        raise InputError(
            f"{len(usable)} networks with a stall are too few to fit it to their features. Measure at least {FEWEST}."
        )
    begins = {(0,) * len(usable), tuple(len(one.features.bucket_bytes) - 1 for one in usable)}
    begins |= {tuple(guess.binding(one.features) for one in usable) for guess in map(_guess, usable)}
    fits = [fit for begin in sorted(begins) for fit in _by_turns(usable, begin)]
    return min(fits, key=lambda fit: _squares(usable, fit))


def _guess(one: MeasuredStall) -> MacroFit:
    """The fit to one network alone: a link that is always busy and costs time per byte only."""
    busy_s = one.stall_s + one.features.backward_s
    return MacroFit(
        constant_s=0.0, per_tensor_s=0.0, per_layer_s=0.0, per_bucket_s=0.0, per_byte_s=busy_s / one.features.bytes
    )


def _by_turns(stalls: Sequence[MeasuredStall], binding: tuple[int, ...]) -> Iterator[MacroFit]:
    for _ in range(_TURNS):
        fit = _fit(stalls, binding)
        yield fit
        again = tuple(fit.binding(one.features) for one in stalls)
        if again == binding:
            return
        binding = again


def _fit(stalls: Sequence[MeasuredStall], binding: Sequence[int]) -> MacroFit:
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    factors = [_rows(one.features) for one in stalls]
    rows = np.array([of[0][g] / one.stall_s for one, of, g in zip(stalls, factors, binding, strict=True)])
    target = np.array([1 - of[1][g] / one.stall_s for one, of, g in zip(stalls, factors, binding, strict=True)])
    # Columns span ten decades (bytes, tensors): each is brought to 1 before solving; one may hold nothing.
    size = np.maximum(rows.max(axis=0), np.finfo(float).tiny)
    solution, _ = nnls(rows / size, target)
    constant, tensor, layer, bucket, byte = (float(value) for value in solution / size)
    return MacroFit(constant_s=constant, per_tensor_s=tensor, per_layer_s=layer, per_bucket_s=bucket, per_byte_s=byte)


def _squares(stalls: Sequence[MeasuredStall], fit: MacroFit) -> float:
    return sum((fit.stall_s(one.features) / one.stall_s - 1) ** 2 for one in stalls)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutPrediction:
    """A network predicted by a fit without networks of its family."""

    measured: MeasuredStall
    predicted_s: float

    @property
    def error(self) -> float:
        """Relative error of the stall; positive where too much was predicted."""
        return self.predicted_s / self.measured.stall_s - 1

    @property
    def step_error(self) -> float:
        """Error relative to the whole step."""
        return (self.predicted_s - self.measured.stall_s) / (self.measured.step_s + self.measured.stall_s)


def held_out(stalls: Sequence[MeasuredStall]) -> tuple[HeldOutPrediction, ...]:
    """Every family predicted by a fit to all the others; families whose absence leaves too few are left out."""
    predictions: list[HeldOutPrediction] = []
    usable = [one for one in stalls if one.stall_s > 0]
    for family in dict.fromkeys(one.family for one in usable):
        others = [one for one in usable if one.family != family]
        if len(others) < FEWEST:
            continue
        fit = fit_macro(others)
        predictions += [
            HeldOutPrediction(measured=one, predicted_s=fit.stall_s(one.features))
            for one in usable
            if one.family == family
        ]
    return tuple(predictions)


def evenly(stalls: Sequence[MeasuredStall]) -> tuple[MeasuredStall, ...]:
    """Return the same networks, described by their counts alone."""
    return tuple(replace(one, features=one.features.even()) for one in stalls)


def family_errors(predictions: Sequence[HeldOutPrediction]) -> dict[str, float]:
    """Mean absolute relative error of the stall, by held-out family."""
    families = dict.fromkeys(one.measured.family for one in predictions)
    return {
        family: statistics.mean(abs(one.error) for one in predictions if one.measured.family == family)
        for family in families
    }
