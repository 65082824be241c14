"""Macro features: the communication stall by how many tensors and layers a network has, and how many bytes.

**Closed form.** The graph's exposed exchange is max over messages g of ready_g + Σ_{j≥g} t_j, less backward: from the
message on which the link does not pause again. Of an even network (L equal layers, backward Bk, one message per layer,
C seconds of messages in all) that is linear in g, so its maximum is at an end:

    stall = max(C / L,  C - Bk (L-1)/L)                 `even_stall_s`

the last message where backward hides the others, or all of the exchange less what backward hides. With t(M) = a + b M
and k messages of M bytes in all, C = k a + b M: start-up times count by messages, so by tensors (WFBP) or buckets
(DDP), the link's rate by bytes, and layers by what they give backward to do.

**Regression.** Of each link the same closed form is fitted to a measured sweep, with what exchanging costs the host:
every tensor gathered before bucket g leaves costs c_t, every layer launched before c_l. With r_g the part of backward
after which bucket g is complete, n_g the tensors and l_g the layers until then,

    stall = c0 + max over g of ( c_t n_g + c_l l_g + a (k-g+1) + b Σ_{j≥g} bytes_j - (1 - r_g) Bk ),   all ≥ 0.

Which g binds is found by turns (assign, fit, assign again); given that, the form is linear in the coefficients and
fitted by non-negative least squares on *relative* errors. Where only counts are known (`Features.even`), buckets,
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
"""Networks with a stall that a fit needs."""
Rows = npt.NDArray[np.float64]


def even_stall_s(layers: int, backward_s: float, exchange_s: float) -> float:
    """Exposed exchange of an even network, in closed form; `exchange_s` is the sum of its `layers` messages."""
    if layers < 1:
        raise InputError(f"A network of {layers} layers exchanges nothing; give at least 1.")
    return max(exchange_s / layers, exchange_s - backward_s * (layers - 1) / layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a network is, seen from far."""

    tensors: int
    """Gradient tensors."""
    layers: int
    """Convolutions and products."""
    bucket_bytes: tuple[int, ...]
    """In the order they are sent."""
    bucket_ready: tuple[float, ...]
    """The part of backward after which each is complete."""
    bucket_tensors: tuple[int, ...]
    """Tensors gathered by then, those of earlier buckets included."""
    bucket_layers: tuple[int, ...]
    """Layers done by then."""
    backward_s: float
    """Without exchange."""

    @property
    def bytes(self) -> int:
        """Of all gradients."""
        return sum(self.bucket_bytes)

    def even(self) -> "Features":
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
class Seen:
    """A network's measured stall on one link."""

    network: str
    family: str
    features: Features
    stall_s: float
    step_s: float
    """Without exchange; with it the step is `step_s` + `stall_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MacroFit:
    """The coefficients of one link, in seconds per what they are of."""

    constant_s: float
    per_tensor_s: float
    """Gathered before the bucket that binds is complete."""
    per_layer_s: float
    """Done by then."""
    per_bucket_s: float
    per_byte_s: float

    def stall_s(self, of: Features) -> float:
        """The stall that these features make."""
        return float(self._each(of).max())

    def binding(self, of: Features) -> int:
        """The bucket, from 0, from which on the link does not pause; the last: only that one shows."""
        return int(self._each(of).argmax())

    def _each(self, of: Features) -> Rows:
        rows, known = _rows(of)
        coefficients = (self.constant_s, self.per_tensor_s, self.per_layer_s, self.per_bucket_s, self.per_byte_s)
        found: Rows = rows @ np.array(coefficients) + known
        return found


@lru_cache(maxsize=1024)
def _rows(of: Features) -> tuple[Rows, Rows]:
    """For every bucket what the coefficients are multiplied by, and what is known: the backward still to come."""
    ready, sizes = np.array(of.bucket_ready), np.array(of.bucket_bytes, dtype=np.float64)
    count = len(sizes)
    after, messages = np.cumsum(sizes[::-1])[::-1], np.arange(count, 0, -1.0)
    rows = np.column_stack([np.ones(count), np.array(of.bucket_tensors), np.array(of.bucket_layers), messages, after])
    return rows, -(1 - ready) * of.backward_s


def fit_macro(seen: Sequence[Seen]) -> MacroFit:
    """Coefficients with the smallest squared relative errors.

    Turns can end in a poor fit, so they begin several times: with the first bucket, the last, and each network's guess.
    """
    usable = [one for one in seen if one.stall_s > 0]
    if len(usable) < FEWEST:
        raise InputError(
            f"{len(usable)} networks with a stall are too few to fit it to their features. Measure at least {FEWEST}."
        )
    begins = {(0,) * len(usable), tuple(len(one.features.bucket_bytes) - 1 for one in usable)}
    begins |= {tuple(guess.binding(one.features) for one in usable) for guess in map(_guess, usable)}
    fits = [fit for begin in sorted(begins) for fit in _by_turns(usable, begin)]
    return min(fits, key=lambda fit: _squares(usable, fit))


def _guess(one: Seen) -> MacroFit:
    """The link as one network alone would have it: busy all the time, with nothing but bytes."""
    busy_s = one.stall_s + one.features.backward_s
    return MacroFit(
        constant_s=0.0, per_tensor_s=0.0, per_layer_s=0.0, per_bucket_s=0.0, per_byte_s=busy_s / one.features.bytes
    )


def _by_turns(seen: Sequence[Seen], binding: tuple[int, ...]) -> Iterator[MacroFit]:
    for _ in range(_TURNS):
        fit = _fit(seen, binding)
        yield fit
        again = tuple(fit.binding(one.features) for one in seen)
        if again == binding:
            return
        binding = again


def _fit(seen: Sequence[Seen], binding: Sequence[int]) -> MacroFit:
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    made = [_rows(one.features) for one in seen]
    rows = np.array([of[0][g] / one.stall_s for one, of, g in zip(seen, made, binding, strict=True)])
    wanted = np.array([1 - of[1][g] / one.stall_s for one, of, g in zip(seen, made, binding, strict=True)])
    # Columns span ten decades (bytes, tensors): each is brought to 1 before solving; one may hold nothing.
    size = np.maximum(rows.max(axis=0), np.finfo(float).tiny)
    found, _ = nnls(rows / size, wanted)
    constant, tensor, layer, bucket, byte = (float(value) for value in found / size)
    return MacroFit(constant_s=constant, per_tensor_s=tensor, per_layer_s=layer, per_bucket_s=bucket, per_byte_s=byte)


def _squares(seen: Sequence[Seen], fit: MacroFit) -> float:
    return sum((fit.stall_s(one.features) / one.stall_s - 1) ** 2 for one in seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """A network predicted by a fit that saw no network of its family."""

    seen: Seen
    predicted_s: float

    @property
    def error(self) -> float:
        """Of the stall, relative; positive where too much was predicted."""
        return self.predicted_s / self.seen.stall_s - 1

    @property
    def step_error(self) -> float:
        """Of the whole step."""
        return (self.predicted_s - self.seen.stall_s) / (self.seen.step_s + self.seen.stall_s)


def held_out(seen: Sequence[Seen]) -> tuple[HeldOut, ...]:
    """Every family predicted by a fit to all the others; families whose absence leaves too few are left out."""
    found: list[HeldOut] = []
    usable = [one for one in seen if one.stall_s > 0]
    for family in dict.fromkeys(one.family for one in usable):
        others = [one for one in usable if one.family != family]
        if len(others) < FEWEST:
            continue
        fit = fit_macro(others)
        found += [HeldOut(seen=one, predicted_s=fit.stall_s(one.features)) for one in usable if one.family == family]
    return tuple(found)


def evenly(seen: Sequence[Seen]) -> tuple[Seen, ...]:
    """The same networks, known by their counts alone."""
    return tuple(replace(one, features=one.features.even()) for one in seen)


def family_errors(found: Sequence[HeldOut]) -> dict[str, float]:
    """Mean absolute relative error of the stall, by held-out family."""
    families = dict.fromkeys(one.seen.family for one in found)
    return {
        family: statistics.mean(abs(one.error) for one in found if one.seen.family == family) for family in families
    }
