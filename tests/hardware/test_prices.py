"""What moving and keeping data costs."""

import pytest

from stallwise.hardware.prices import storage_usd_per_h, transfer_usd

HOME = ("aws", "us-east-1")


def test_inside_a_region_is_free_and_leaving_the_cloud_is_dearest() -> None:
    inside, region, away = (transfer_usd(1e12, HOME, to) for to in (HOME, ("aws", "us-west-2"), ("gcp", "us-central1")))
    assert inside == 0.0
    assert region == pytest.approx(20.0)
    assert away == pytest.approx(90.0)
    assert transfer_usd(1e12, ("lambda", "us-east-1"), HOME) == 0.0


def test_what_no_source_gives_is_unknown() -> None:
    assert transfer_usd(1e12, ("nowhere", "x"), HOME) is None
    assert storage_usd_per_h(1e12, "nowhere") is None
    assert storage_usd_per_h(1e12, "aws") == pytest.approx(23.0 / 730)
