"""The catalog: what ships with the package, with the user's own tables laid over it.

The user's folder holds the same tables as `catalog_data/`:

    gpus.csv, boards.csv, instances.csv, offers.csv     rows replace the row with the same key, or add one
    offers/<cloud>.csv                      a whole price list, instead of the shipped one of that cloud
"""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from stallwise.errors import InputError, UnknownNameError
from stallwise.hardware._tables import (
    TABLES,
    CatalogRow,
    board_from,
    check_columns,
    csv_rows,
    gpu_from,
    header_of,
    instance_from,
    offer_from,
    read_text,
)
from stallwise.hardware.board import Board
from stallwise.hardware.gpu import Gpu, plain_name
from stallwise.hardware.instance import Instance, Market, Offer, Query, matches

SHIPPED = Path(__file__).parent / "catalog_data"

_T = TypeVar("_T")
_K = TypeVar("_K")


def user_folder() -> Path:
    """Where the user's own tables are kept."""
    import platformdirs

    return Path(platformdirs.user_config_dir("stallwise")) / "catalog"


class Catalog:
    """GPUs, instance types and offers, by name. Offers are read on first use.

    Args:
        folder: The user's own prices, which go before the shipped ones.

    Examples:
        >>> import pathlib, stallwise
        >>> catalog = stallwise.Catalog(pathlib.Path("no-prices-of-ones-own"))
        >>> gpu = catalog.gpu("H100-SXM")
        >>> gpu.memory_bytes, gpu.memory_bytes_per_s
        (85899345920, 3350000000000.0)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gpus: Mapping[str, Gpu] = self._overlaid("gpus.csv", gpu_from, lambda gpu: gpu.name)
        self.boards: Mapping[str, Board] = self._overlaid("boards.csv", board_from, lambda board: board.name)
        self.instances: Mapping[tuple[str, str], Instance] = self._overlaid(
            "instances.csv",
            lambda row, day: instance_from(row, self.gpus, self.boards, day),
            lambda instance: (instance.cloud, instance.name),
        )

    def __repr__(self) -> str:
        return f"<Catalog: {len(self.gpus)} GPUs, {len(self.instances)} instance types>"

    @cached_property
    def offers(self) -> tuple[Offer, ...]:
        """Every offer, retired ones included."""
        lists = {path.stem: path for path in (SHIPPED / "offers").glob("*.csv")}
        lists |= {path.stem: path for path in (self.folder / "offers").glob("*.csv")}
        paths = [*(lists[cloud] for cloud in sorted(lists)), self.folder / "offers.csv"]
        merged: dict[tuple[str, ...], Offer] = {}
        for path in paths:
            for offer in _read(path, self._offer_from):
                merged[offer.key] = offer
        return tuple(merged.values())

    @cached_property
    def sources(self) -> Mapping[str, str]:
        """What the source keys mean."""
        rows = _rows(SHIPPED / "sources.csv")
        return {row.name("source"): row.text("description") for row in rows}

    @property
    def clouds(self) -> tuple[str, ...]:
        """Every cloud with an instance type."""
        return tuple(dict.fromkeys(cloud for cloud, _ in self.instances))

    def regions(self, cloud: str | None = None) -> tuple[str, ...]:
        """Every region with an offer, of one cloud or of all."""
        return tuple(sorted({o.region for o in self.offers if cloud in (None, o.instance.cloud)}))

    def gpu(self, name: str) -> Gpu:
        """The GPU of that name (label in SkyPilot, family of one); case, `-`, `_` and spaces do not matter."""
        gpu = self._gpu_by_plain.get(plain_name(name)) or self.gpu_of_label(name) or self.gpu_of_driver_name(name)
        if gpu is not None:
            return gpu
        family = self._families.get(plain_name(name), ())
        if len(family) == 1:
            return family[0]
        if family:
            names = " or ".join(one.name for one in family)
            raise InputError(f"{name} is a family of several GPUs. Name one: {names}.")
        raise UnknownNameError("GPU", name, self.gpus, listing="`stallwise catalog gpus` lists all.")

    def gpu_names(self, name: str) -> frozenset[str]:
        """What a name stands for: one GPU, else a family, else all that begin with it, else a SkyPilot label.

        `H100` is a family of three, `H100-PCIe` one of them, `A100-80GB` the beginning of two names.
        """
        plain = plain_name(name)
        if plain in self._gpu_by_plain:
            return frozenset({self._gpu_by_plain[plain].name})
        if plain in self._families:
            return frozenset(gpu.name for gpu in self._families[plain])
        begins = frozenset(g for g in self.gpus if plain and plain_name(g).startswith(plain) and "-" in g)
        return begins or frozenset({self.gpu(name).name})

    def gpu_of_label(self, label: str, cloud: str | None = None) -> Gpu | None:
        """The GPU a SkyPilot accelerator label means, `None` for a label nobody knows."""
        plain = plain_name(label)
        name = self._aliases.get((plain, cloud or "")) or self._aliases.get((plain, ""))
        return self.gpus.get(name) if name else self._gpu_by_plain.get(plain)

    def gpu_of_driver_name(self, name: str) -> Gpu | None:
        """The GPU that a driver calls `NVIDIA A100-SXM4-80GB`; `None` for one that is not listed."""
        words = [word for word in name.split() if word not in ("NVIDIA", "Tesla", "GeForce")]
        return self.gpu_of_label(" ".join(words), "driver")

    def instance(self, name: str, cloud: str | None = None) -> Instance:
        """The instance type of that name, of one cloud or of any."""
        for (its_cloud, its_name), instance in self.instances.items():
            if its_name.lower() == name.lower() and cloud in (None, its_cloud):
                return instance
        raise UnknownNameError("instance type", name, (n for c, n in self.instances if cloud in (None, c)))

    def query(
        self,
        *,
        gpu: str | None = None,
        cloud: str | None = None,
        region: str | None = None,
        instance: str | None = None,
        market: Market | None = None,
        max_usd_per_h: float | None = None,
        min_gpu_count: int | None = None,
        min_gpu_memory_bytes: float | None = None,
        retired: bool = False,
    ) -> Query:
        """A `Query` with every name looked up; an unknown one is an `UnknownNameError` with the nearest."""
        cloud = _resolve_name("cloud", cloud, self.clouds)
        return Query(
            gpus=None if gpu is None else self.gpu_names(gpu),
            cloud=cloud,
            region=_resolve_name("region", region, self.regions()) if region else None,
            instance=None if instance is None else self.instance(instance).name,
            market=market,
            max_usd_per_h=max_usd_per_h,
            min_gpu_count=min_gpu_count,
            min_gpu_memory_bytes=min_gpu_memory_bytes,
            retired=retired,
        )

    def find(self, query: Query) -> list[Offer]:
        """The offers that match."""
        return [offer for offer in self.offers if matches(offer, query)]

    @cached_property
    def _gpu_by_plain(self) -> Mapping[str, Gpu]:
        return {plain_name(name): gpu for name, gpu in self.gpus.items()}

    @cached_property
    def _families(self) -> Mapping[str, Sequence[Gpu]]:
        families: dict[str, list[Gpu]] = {}
        for gpu in self.gpus.values():
            families.setdefault(plain_name(gpu.family), []).append(gpu)
        return families

    @cached_property
    def _aliases(self) -> Mapping[tuple[str, str], str]:
        rows = _rows(SHIPPED / "aliases.csv")
        return {(plain_name(row.name("label")), row.text("cloud")): row.name("gpu") for row in rows}

    def _offer_from(self, row: CatalogRow, day: dt.date) -> Offer:
        return offer_from(row, self.instances, day)

    def _overlaid(
        self, file: str, parse: Callable[[CatalogRow, dt.date], _T], key: Callable[[_T], _K]
    ) -> Mapping[_K, _T]:
        merged: dict[_K, _T] = {}
        for folder in (SHIPPED, self.folder):
            merged |= {key(item): item for item in _read(folder / file, parse)}
        return merged


def load_catalog(folder: Path | None = None) -> Catalog:
    """The shipped catalog with the user's tables (of `folder`, or of their config folder) laid over it."""
    return Catalog(user_folder() if folder is None else folder)


def _read(path: Path, parse: Callable[[CatalogRow, dt.date], _T]) -> Iterator[_T]:
    if not path.exists():
        return
    day = dt.date.fromtimestamp(path.stat().st_mtime)
    for row in _rows(path):
        yield parse(row, day)


def _rows(path: Path) -> Iterator[CatalogRow]:
    text = read_text(path)
    kind = "offers" if path.parent.name == "offers" else path.stem
    if kind in TABLES:
        required, allowed = TABLES[kind]
        check_columns(header_of(text), str(path), 1, required=required, allowed=allowed)
    yield from csv_rows(text, str(path))


def _resolve_name(kind: str, name: str | None, names: Sequence[str]) -> str | None:
    if name is None:
        return None
    for candidate in names:
        if candidate.lower() == name.lower():
            return candidate
    raise UnknownNameError(kind, name, names)
