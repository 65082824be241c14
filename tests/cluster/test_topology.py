"""The tree of GPUs."""

import numpy as np
import pytest

from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError


def test_counts_are_per_parent() -> None:
    cluster = Cluster.counts(gpus=8, slots=2, machines=3, racks=2, blocks=2)
    assert cluster.levels == ("slot", "machine", "rack", "block")
    assert cluster.gpus == 96
    assert [cluster.size(level) for level in range(5)] == [24, 12, 4, 2, 1]
    assert [cluster.largest(level) for level in range(5)] == [4, 8, 24, 48, 96]
    assert cluster.spans(np.array([0, 7, 8, 95], dtype=np.int32)) == (4, 3, 2, 2)


def test_levels_with_one_domain_per_parent_are_left_out() -> None:
    assert Cluster.counts(gpus=4).levels == ("machine", "rack")
    assert Cluster.counts(gpus=4).level("machine") == 0
    assert Cluster.counts(gpus=4).level("core") == 2


def test_a_tree_numbers_gpus_along_itself_and_keeps_equal_names_apart() -> None:
    cluster = Cluster.tree(("machine", "rack"), [("m", "b"), ("m", "a"), ("m", "b"), ("n", "a")])
    assert cluster.names == (("m", "m", "n"), ("b", "a"))
    assert cluster.domain.tolist() == [[0, 0, 1, 2], [0, 0, 1, 1]]


def test_hosts_of_several_sizes() -> None:
    cluster = Cluster.hosts(("machine", "rack"), [(("h1", "r1"), 4), (("h2", "r1"), 2)])
    assert cluster.gpus == 6
    assert cluster.largest(0) == 4


@pytest.mark.parametrize("counts", [{"gpus": 0}, {"gpus": 4, "racks": 0}, {"gpus": 4, "slots": 3}])
def test_impossible_counts(counts: dict[str, int]) -> None:
    with pytest.raises(InputError):
        Cluster.counts(**counts)


def test_impossible_trees() -> None:
    with pytest.raises(InputError, match="at least one GPU"):
        Cluster.tree(("machine",), [])
    with pytest.raises(InputError, match="2 parts for 1 levels"):
        Cluster.tree(("machine",), [("a", "b")])
