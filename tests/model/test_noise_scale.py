"""The gradient noise scale from squared norms: known noise is found, its interval covers it, bounds stay open."""

import math

import numpy as np
import pytest

from stallwise.model.statistics.noise_scale import NoiseRatio, noise_ratio, samples_factor

_DIMENSIONS, _SMALL_BATCH = 1000, 8


def _ratio(mean_square: float, parts: int, steps: int, seed: int) -> NoiseRatio | None:
    """Gradients of a quadratic: a mean of known length, and noise of variance 1 in every dimension and sample."""
    generator = np.random.default_rng(seed)
    mean = np.full(_DIMENSIONS, math.sqrt(mean_square / _DIMENSIONS))
    noise = generator.normal(size=(steps, parts, _DIMENSIONS)) / math.sqrt(_SMALL_BATCH)
    small = ((mean + noise) ** 2).sum(axis=2).mean(axis=1)
    large = ((mean + noise).mean(axis=1) ** 2).sum(axis=1)
    return noise_ratio(small.tolist(), large.tolist(), [parts] * steps)


@pytest.mark.parametrize("parts", [2, 4, 16])
@pytest.mark.parametrize("mean_square", [20.0, 1000.0])
def test_known_noise_is_found(mean_square: float, parts: int) -> None:
    truth = _DIMENSIONS / mean_square / (_SMALL_BATCH * parts)
    ratios = [_ratio(mean_square, parts, 12, seed) for seed in range(100)]
    known = [ratio for ratio in ratios if ratio is not None]
    assert len(known) == 100
    assert np.median([ratio.value for ratio in known]) == pytest.approx(truth, rel=0.1)
    # 95 %, and what 100 draws may deviate from it.
    assert sum(ratio.low <= truth <= ratio.high for ratio in known) >= 88


def test_a_mean_gradient_that_may_be_zero_leaves_a_lower_bound() -> None:
    ratio = _ratio(0.01, 2, 8, 3)
    assert ratio is not None
    assert ratio.high == math.inf
    assert 0 < ratio.low < _DIMENSIONS / 0.01 / (2 * _SMALL_BATCH)


def test_few_steps_or_one_batch_say_nothing() -> None:
    assert noise_ratio([2.0] * 3, [1.5] * 3, [2] * 3) is None
    assert noise_ratio([2.0] * 9, [1.5] * 9, [1] * 9) is None
    assert noise_ratio([math.inf] * 9, [1.5] * 9, [2] * 9) is None


def test_at_the_noise_scale_twice_the_samples_are_needed() -> None:
    batch = np.array([1e-9, 100.0, 300.0])
    assert samples_factor(batch, 100.0) == pytest.approx([1.0, 2.0, 4.0])
