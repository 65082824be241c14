"""What the GPUs of a machine share: boards, the narrowest hop of a ring, copies that share an up-link."""

from dataclasses import replace
from pathlib import Path

import pytest

from stallwise.errors import CatalogError
from stallwise.hardware.board import Board, board_of_gpu, copy_bytes_per_s, is_consumer, narrowest_hop, usual_board
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.gpu import pcie
from stallwise.hardware.instance import board_of
from stallwise.units import GB


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return Catalog(tmp_path_factory.mktemp("no-prices"))


X16 = pcie(3, 16)
RATE = X16.bytes_per_s
assert RATE is not None


def test_a_mesh_has_fewer_links_among_fewer_gpus(catalog: Catalog) -> None:
    board = board_of(catalog.instance("p3.16xlarge"))
    assert board is not None
    rates = [hop.bytes_per_s / GB for gpus in (2, 4, 8) if (hop := narrowest_hop(board, X16, gpus)) is not None]
    assert rates == [50, 100, 150]


def test_a_slice_of_a_mesh_keeps_the_links_within_it(catalog: Catalog) -> None:
    """Four of the six NVLinks of each GPU of p3.16xlarge stay within its half, and those are all p3.8xlarge has."""
    part, whole = catalog.instance("p3.8xlarge"), catalog.instance("p3.16xlarge")
    assert part.gpu_link is not None
    assert whole.gpu_link is not None
    assert part.gpu_link.bytes_per_s == 100 * GB
    assert whole.gpu_link.bytes_per_s == 150 * GB
    board = board_of(part)
    assert board is not None
    hop = narrowest_hop(board, part.host_link, 4)
    assert hop is not None
    assert (hop.link, hop.bytes_per_s) == ("nvlink", 100 * GB)


def test_a_ring_beyond_the_peers_passes_the_host_once_per_group(catalog: Catalog) -> None:
    sixteen = catalog.instance("p2.16xlarge")
    board = board_of(sixteen)
    assert board is not None
    inside, across = narrowest_hop(board, sixteen.host_link, 8), narrowest_hop(board, sixteen.host_link, 16)
    assert inside is not None
    assert across is not None
    assert (inside.link, across.link, across.streams) == ("peer", "host", 2)


@pytest.mark.parametrize(("gpus", "sharers"), [(2, 2), (4, 4), (8, 4)])
def test_without_peer_access_gpus_share_their_uplink(gpus: int, sharers: int) -> None:
    board = Board(name="made", switch_gpus=4, uplink=X16)
    hop = narrowest_hop(board, X16, gpus)
    assert hop is not None
    assert hop.link == "host"
    assert hop.bytes_per_s == pytest.approx(RATE / sharers)
    assert hop.streams == gpus
    assert copy_bytes_per_s(board, X16, gpus) == pytest.approx(RATE / sharers)
    assert copy_bytes_per_s(replace(board, switch_gpus=1), X16, gpus) == RATE


def test_what_is_not_listed_is_unknown(catalog: Catalog) -> None:
    assert narrowest_hop(Board(name="made"), None, 2) is None
    assert copy_bytes_per_s(Board(name="made"), None, 2) is None
    assert board_of(catalog.instance("gpu_2x_a6000")) is None


def test_a_bridge_joins_two_cards_and_pcie_the_rest(catalog: Catalog) -> None:
    gpu = catalog.gpu("A100-80GB-PCIe")
    board = usual_board("nvlink-bridge", gpu, gpu.nvlink_bytes_per_s, 4)
    links = [hop.link for gpus in (2, 4) if (hop := narrowest_hop(board, gpu.host_link, gpus)) is not None]
    assert links == ["bridge", "peer"]


def test_consumer_cards_have_no_peer_access(catalog: Catalog) -> None:
    for name, link in (("RTX4090", "host"), ("RTXA6000", "peer"), ("H100-SXM", "nvlink")):
        gpu = catalog.gpu(name)
        hop = narrowest_hop(board_of_gpu(gpu, 4), gpu.host_link, 4)
        assert hop is not None
        assert hop.link == link
    assert is_consumer(catalog.gpu("RTX4090"))
    assert not is_consumer(catalog.gpu("RTXA6000"))


def test_a_board_of_ones_own_is_read_and_a_damaged_one_named(tmp_path: Path) -> None:
    (tmp_path / "boards.csv").write_text("board,nvlink_gb_per_s,switch_gpus\nmine,4:100 2:50,2\n")
    mine = Catalog(tmp_path).boards["mine"]
    assert mine.nvlink == ((2, 50 * GB), (4, 100 * GB))
    assert mine.switch_gpus == 2
    (tmp_path / "boards.csv").write_text("board,nvlink_gb_per_s\nmine,fast\n")
    with pytest.raises(CatalogError, match="nvlink_gb_per_s"):
        Catalog(tmp_path)


def test_every_board_of_the_catalog_is_used_and_fits_its_machines(catalog: Catalog) -> None:
    used = {instance.board.name for instance in catalog.instances.values() if instance.board}
    assert used == set(catalog.boards)
    for instance in catalog.instances.values():
        board = board_of(instance)
        if board is None or instance.gpu_count == 1:
            continue
        assert [count for count, _ in board.nvlink] == sorted(count for count, _ in board.nvlink)
        for gpus in range(2, instance.gpu_count + 1):
            hop = narrowest_hop(board, instance.host_link, gpus)
            listed = instance.gpu.nvlink_bytes_per_s or instance.gpu.infinity_fabric_bytes_per_s or 0.0
            rates = [rate for rate in (listed, instance.host_link.bytes_per_s if instance.host_link else 0.0) if rate]
            if hop is not None:
                assert hop.bytes_per_s <= max(rates) * (1 + 1e-9), instance.name
