"""Macro features: the communication stall by how many tensors and layers a network has, and how many bytes.

**Closed form.** The graph's exposed exchange is max over messages g of ready_g + Σ_{j≥g} t_j, less backward: from the
message on which the link does not pause again. Of an even network (L equal layers, backward Bk, one message per layer,
C seconds of messages in all) that is linear in g, so its maximum is at an end:

    stall = max(C / L,  C - Bk (L-1)/L)                 `even_stall_s`

the last message where backward hides the others, or all of the exchange less what backward hides. With t(M) = a + b M
and k messages of M bytes in all, C = k a + b M: start-up times count by messages, so by tensors (WFBP) or buckets
(DDP), the link's rate by bytes, and layers by what they give backward to do.

**Regression.** Of each link the same closed form is fitted to a measured sweep, with what exchanging costs the host.
It delays the moment bucket g leaves in two ways. Every tensor gathered before costs its hook and its copy, c_t. And
while an earlier bucket is on the link, its threads and the kernel's take cores from the process that launches layers:
every layer whose backward runs *then* costs c_l. Layers that run while the link rests cost nothing more. With r_g the
part of backward after which bucket g is complete, n_g the tensors gathered until then and x_g the layers that ran until
then beside an exchange,

    stall = c0 + max over g of ( c_t n_g + c_l x_g + a (k-g+1) + b Σ_{j≥g} bytes_j - (1 - r_g) Bk ),   all ≥ 0.

x_g follows from b: bucket j is on the link from max(its ready time, the end of j-1) for b bytes_j. Which g binds, and
x_g, are found by turns (assign, fit, assign again); given them, the form is linear in the coefficients and fitted by
non-negative least squares on *relative* errors. Where only counts are known (`Features.even`), buckets, tensors and
layers are taken to be equal and at equal distances. That stalls follow macro features is the observation of Sharma et
al., *Stash* (ICDCS 2023).
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError

_TURNS = 30
# Turns end where the rate changes by no more than this part, which moves no layer.
_SAME = 1e-4
# The column of layers beside an exchange.
_BESIDE = 2
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
    layer_ends: tuple[float, ...]
    """The part of backward after which each layer is done, in the order of backward; the last is 1."""
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
        return replace(
            self,
            bucket_bytes=sizes,
            bucket_ready=_evenly(count),
            bucket_tensors=tuple(round(part * self.tensors) for part in _evenly(count)),
            layer_ends=_evenly(self.layers),
        )


def _evenly(count: int) -> tuple[float, ...]:
    return tuple((place + 1) / count for place in range(count))


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
    """Computed beside an exchange, before that."""
    per_bucket_s: float
    per_byte_s: float

    def stall_s(self, of: Features) -> float:
        """The stall that these features make."""
        return float(self._each(of).max())

    def binding(self, of: Features) -> int:
        """The bucket, from 0, from which on the link does not pause; the last: only that one shows."""
        return int(self._each(of).argmax())

    def _each(self, of: Features) -> Rows:
        rows, known = _rows(of, self.per_byte_s)
        coefficients = (self.constant_s, self.per_tensor_s, self.per_layer_s, self.per_bucket_s, self.per_byte_s)
        found: Rows = rows @ np.array(coefficients) + known
        return found


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What of a network's rows does not depend on the link, as arrays."""

    rows: Rows
    """With nothing in the column of layers beside an exchange."""
    to_come_s: Rows
    ready_s: Rows
    sizes: Rows
    moments_s: Rows
    """When so many layers are done, from none on."""


@lru_cache(maxsize=1024)
def _fixed(of: Features) -> _Fixed:
    ready, sizes = np.array(of.bucket_ready), np.array(of.bucket_bytes, dtype=np.float64)
    count = len(sizes)
    after, messages = np.cumsum(sizes[::-1])[::-1], np.arange(count, 0, -1.0)
    return _Fixed(
        rows=np.column_stack([np.ones(count), np.array(of.bucket_tensors), np.zeros(count), messages, after]),
        to_come_s=-(1 - ready) * of.backward_s,
        ready_s=ready * of.backward_s,
        sizes=sizes,
        moments_s=np.array((0.0, *of.layer_ends)) * of.backward_s,
    )


def _rows(of: Features, per_byte_s: float) -> tuple[Rows, Rows]:
    """For every bucket what the coefficients are multiplied by, and what is known: the backward still to come."""
    fixed = _fixed(of)
    rows = fixed.rows.copy()
    rows[:, _BESIDE] = _beside(fixed, per_byte_s)
    return rows, fixed.to_come_s


def _beside(fixed: _Fixed, per_byte_s: float) -> Rows:
    """For every bucket the layers (and parts of them) that ran before it was complete, beside an exchange."""
    begins, ends, free_s = [], [], 0.0
    for ready_s, size in zip(fixed.ready_s.tolist(), fixed.sizes.tolist(), strict=True):
        begins.append(max(free_s, ready_s))
        free_s = begins[-1] + per_byte_s * size
        ends.append(free_s)
    # Row g, column j: what bucket j covers of the time before bucket g is complete; nothing for j ≥ g.
    spans = np.minimum(np.array([begins, ends]), fixed.ready_s[:, None, None])
    done = np.interp(spans, fixed.moments_s, np.arange(len(fixed.moments_s), dtype=np.float64))
    found: Rows = (done[:, 1] - done[:, 0]).sum(axis=1)
    return found


def fit_macro(seen: Sequence[Seen]) -> MacroFit:
    """Coefficients with the smallest squared relative errors.

    Turns can end in a poor fit, so they begin several times: with the first bucket, the last, and each network's guess.
    """
    usable = [one for one in seen if one.stall_s > 0]
    if len(usable) < FEWEST:
        raise InputError(
            f"{len(usable)} networks with a stall are too few to fit it to their features. Measure at least {FEWEST}."
        )
    guesses = [_guess(one) for one in usable]
    middle_s = statistics.median(guess.per_byte_s for guess in guesses)
    begins = {(0,) * len(usable): middle_s, tuple(len(one.features.bucket_bytes) - 1 for one in usable): middle_s}
    begins |= {tuple(guess.binding(one.features) for one in usable): guess.per_byte_s for guess in guesses}
    fits = [fit for binding, per_byte_s in begins.items() for fit in _by_turns(usable, binding, per_byte_s)]
    return min(fits, key=lambda fit: _squares(usable, fit))


def _guess(one: Seen) -> MacroFit:
    """The link as one network alone would have it: busy all the time, with nothing but bytes."""
    busy_s = one.stall_s + one.features.backward_s
    return MacroFit(
        constant_s=0.0, per_tensor_s=0.0, per_layer_s=0.0, per_bucket_s=0.0, per_byte_s=busy_s / one.features.bytes
    )


def _by_turns(seen: Sequence[Seen], binding: tuple[int, ...], per_byte_s: float) -> Iterator[MacroFit]:
    for _ in range(_TURNS):
        fit = _fit(seen, binding, per_byte_s)
        yield fit
        again = tuple(fit.binding(one.features) for one in seen)
        if again == binding and abs(fit.per_byte_s - per_byte_s) <= _SAME * per_byte_s:
            return
        binding, per_byte_s = again, fit.per_byte_s


def _fit(seen: Sequence[Seen], binding: Sequence[int], per_byte_s: float) -> MacroFit:
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    made = [_rows(one.features, per_byte_s) for one in seen]
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
