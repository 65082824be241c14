"""The step with another loader: what beginning an epoch costs."""

from dataclasses import replace

import pytest

from stallwise.analysis.loading import LoaderSetting, LoadingFacts, best_workers, step_model
from stallwise.model.data.datapath import LoaderWork

IMAGES = LoadingFacts(
    step_s=0.286,
    consume_s=0.127,
    consume_factors=(1.0, 1.0),
    work=LoaderWork(prepare_s=0.86, blocked_s=0.0, workers=4),
    work_factors=(1.0, 1.0),
    batches_s=(0.86,) * 64,
    fetches=1.0,
    cores=16,
    threads=1,
    crowding=1.0,
    on_gpu=True,
    worker_start_s=0.015,
    first_batch_s=0.6,
    setting=LoaderSetting(num_workers=4, prefetch_factor=2),
    epoch_batches=20,
)
"""ResNet-50 on JPEGs with epochs of 20 steps, as it was measured on an H200."""


@pytest.mark.parametrize("workers", [4, 7, 10, 14])
def test_workers_are_started_one_by_one_but_prepare_their_first_batches_at_once(workers: int) -> None:
    setting = LoaderSetting(num_workers=workers, prefetch_factor=2)
    short, persistent = (
        step_model(IMAGES, replace(setting, persistent_workers=persistent))(1.0, 1.0) for persistent in (False, True)
    )
    assert 20 * (short - persistent) == pytest.approx(0.6 + 0.015 * workers)


def test_short_epochs_do_not_cost_a_worker() -> None:
    """Six were proposed where seven are best: their common first wait had been counted once for each of them."""
    crowded = replace(IMAGES, crowding=1.2)
    assert best_workers(crowded) == best_workers(replace(crowded, epoch_batches=2000)) == 7
