"""Stash's own recommender: what was measured, nothing else."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.cloud.measured import Configuration, choose_measured, read_configurations
from stallwise.errors import InputError
from tests.cloud.made import catalog

SOME = (
    Configuration(name="small", usd_per_h=1.0, machines=1, epoch_s=3600.0, first_epoch_s=4000.0),
    Configuration(name="large", usd_per_h=4.0, machines=1, epoch_s=1000.0, first_epoch_s=1000.0),
    Configuration(name="waste", usd_per_h=9.0, machines=1, epoch_s=1200.0, first_epoch_s=1300.0),
)


def test_the_cheapest_in_time_is_picked() -> None:
    loose = choose_measured(SOME, 10, deadline_s=100 * 3600.0)
    assert loose.pick == "small"
    assert loose.front == ("large", "small")
    tight = choose_measured(SOME, 10, deadline_s=3 * 3600.0)
    assert tight.pick == "large"
    none = choose_measured(SOME, 10, deadline_s=3600.0)
    assert none.infeasible
    assert none.pick is None
    assert choose_measured(SOME, 10, budget_usd=1000.0).pick == "large"


@given(st.integers(1, 100))
def test_the_formula(epochs: int) -> None:
    one = SOME[0]
    assert one.time_s(epochs) == pytest.approx(4000.0 + (epochs - 1) * 3600.0)
    assert one.usd(epochs) == pytest.approx(one.time_s(epochs) / 3600.0)


def test_a_table_of_instances(tmp_path: Path) -> None:
    path = tmp_path / "measured.csv"
    path.write_text("instance,machines,epoch_s,first_epoch_s\np3.8xlarge,2,600,700\np3.16xlarge,1,400,\n")
    found = read_configurations(path, catalog())
    assert [one.name for one in found] == ["2 × p3.8xlarge", "1 × p3.16xlarge"]
    assert 2 * found[0].usd_per_h == pytest.approx(found[1].usd_per_h, rel=0.001)
    path.write_text("instance,speed\np3.8xlarge,2\n")
    with pytest.raises(InputError, match="no column 'speed'"):
        read_configurations(path, catalog())
    path.write_text("configuration,epoch_s\nmine,2\n")
    with pytest.raises(InputError, match="neither usd_per_h nor an instance"):
        read_configurations(path, catalog())
