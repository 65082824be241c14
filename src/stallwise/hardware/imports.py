"""Import of price lists and tables into the user's folder: all is checked before anything is written.

A killed import leaves old tables or new ones, never half a table: each is written beside its place and then
moved there, GPUs before the instance types and these before the offers that name them.
"""

import datetime as dt
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stallwise.errors import CatalogError, StallwiseError
from stallwise.hardware import skypilot, tables
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.gpu import Gpu
from stallwise.hardware.instance import Instance
from stallwise.hardware.offer import Offer
from stallwise.hardware.rows import Row, check_columns, csv_rows, header_of, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What an import did."""

    files: tuple[str, ...]
    gpus: int
    instances: int
    offers: int
    skipped: Mapping[str, int]
    folder: Path


@dataclass(slots=True)
class _Found:
    rows: dict[str, list[Row]] = field(default_factory=lambda: {kind: [] for kind in tables.COLUMNS})
    lists: dict[str, Path] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


def import_paths(
    paths: Iterable[Path],
    catalog: Catalog,
    *,
    today: dt.date,
    cloud: str | None = None,
    as_of: dt.date | None = None,
) -> Imported:
    """Import SkyPilot folders and CSV files, and plain CSV or YAML tables, into the catalog's folder.

    `cloud` names the cloud of a lone SkyPilot file, and picks one from a folder. A SkyPilot list is as old as
    its file unless `as_of` says otherwise; rows of the user without a date are of `today`.
    """
    found = _Found()
    for path in paths:
        _look_at(path.expanduser(), cloud, found)
    gpus = {gpu.name: gpu for gpu in (tables.gpu_from(row, today) for row in found.rows["gpus"])}
    all_gpus = {**catalog.gpus, **gpus}
    instances = {
        (made.cloud, made.name): made
        for made in (tables.instance_from(row, all_gpus, today) for row in found.rows["instances"])
    }
    known = {**catalog.instances, **instances}
    offers = [tables.offer_from(row, known, today) for row in found.rows["offers"]]
    lists = [
        skypilot.read_list(path, name, catalog, as_of or dt.date.fromtimestamp(path.stat().st_mtime))
        for name, path in found.lists.items()
    ]
    for price_list in lists:
        instances |= {(made.cloud, made.name): made for made in price_list.instances}
        if not price_list.offers:
            raise CatalogError(
                f"{found.lists[price_list.cloud]} offers no GPU this catalog knows; nothing was changed."
            )
    if not (gpus or instances or offers or lists):
        raise CatalogError(f"{', '.join(found.files) or 'The list of files'} holds no rows; nothing was changed.")
    _write(catalog, gpus, instances, offers, lists)
    return Imported(
        files=tuple(found.files),
        gpus=len(gpus),
        instances=len(instances),
        offers=len(offers) + sum(len(price_list.offers) for price_list in lists),
        skipped=dict(sum((Counter(price_list.skipped) for price_list in lists), Counter())),
        folder=catalog.folder,
    )


def _look_at(path: Path, cloud: str | None, found: _Found) -> None:
    if path.is_dir():
        lists = skypilot.find_lists(path)
        if cloud is not None and cloud not in lists:
            raise CatalogError(f"{path} has no list of {cloud}; it has {', '.join(sorted(lists))}.")
        chosen = {cloud: lists[cloud]} if cloud else lists
        found.lists |= chosen
        found.files += map(str, chosen.values())
        return
    text = read_text(path)
    found.files.append(str(path))
    if path.suffix.lower() in (".yaml", ".yml"):
        _look_at_yaml(text, str(path), found)
    elif skypilot.looks_like_skypilot(text):
        found.lists[_cloud_of(path, cloud)] = path
    else:
        kind = _kind_of(header_of(text), str(path))
        found.rows[kind] += csv_rows(text, str(path))


def _cloud_of(path: Path, cloud: str | None) -> str:
    if cloud is not None:
        return cloud
    # In SkyPilot's own layout the folder is named after the cloud.
    if path.name == "vms.csv" and path.parent.name:
        return path.parent.name
    raise CatalogError(f"{path} is a SkyPilot list, but of which cloud? Say so with --cloud aws.")


def _kind_of(header: Sequence[str], file: str) -> str:
    marks = {"usd_per_h": "offers", "region": "offers", "vcpus": "instances", "gpu_count": "instances"}
    kind = next((marks[column] for column in header if column in marks), "gpus" if "gpu" in header else None)
    if kind is None:
        shown = ", ".join(header)[:80] or "nothing"
        raise CatalogError(
            f"{file}, line 1: found the columns {shown!r}, neither those of SkyPilot nor of a table of "
            "offers (cloud, instance, region, market, usd_per_h), instances or gpus. Correct that line."
        )
    required, columns = tables.COLUMNS[kind]
    check_columns(header, file, 1, required=required, known=columns)
    return kind


def _look_at_yaml(text: str, file: str, found: _Found) -> None:
    import yaml

    try:
        # Nodes, not values: they keep the line, and 2026-08-22 or 1e3 stay the text that was written.
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise CatalogError(f"{file}{where}: not valid YAML. Correct it and try again; nothing was changed.") from None
    if not isinstance(document, yaml.MappingNode) or not document.value:
        raise CatalogError(f"{file}: expected the keys gpus, instances or offers, each with a list of entries.")
    for key, entries in document.value:
        if key.value not in tables.COLUMNS or not isinstance(entries, yaml.SequenceNode):
            raise CatalogError(
                f"{file}, line {key.start_mark.line + 1}: found {key.value!r}, expected gpus, instances or "
                "offers with a list of entries."
            )
        found.rows[key.value] += [_yaml_row(entry, key.value, file) for entry in entries.value]


def _yaml_row(entry: Any, kind: str, file: str) -> Row:
    import yaml

    line = entry.start_mark.line + 1
    if not isinstance(entry, yaml.MappingNode):
        raise CatalogError(f"{file}, line {line}: expected `column: value` pairs.")
    cells = {}
    for key, value in entry.value:
        if not isinstance(value, yaml.ScalarNode):
            raise CatalogError(f"{file}, line {value.start_mark.line + 1}: expected one value for {key.value!r}.")
        cells[key.value] = "" if value.tag == "tag:yaml.org,2002:null" else value.value
    required, columns = tables.COLUMNS[kind]
    check_columns(list(cells), file, line, required=required, known=columns)
    return Row(cells, file, line)


def _write(
    catalog: Catalog,
    gpus: Mapping[str, Gpu],
    instances: Mapping[tuple[str, str], Instance],
    offers: Sequence[Offer],
    lists: Sequence[skypilot.PriceList],
) -> None:
    texts: dict[Path, str] = {}
    folder = catalog.folder
    if gpus:
        merged = _merged(folder / "gpus.csv", ("gpu",), map(tables.gpu_cells, gpus.values()))
        texts[folder / "gpus.csv"] = tables.to_csv(tables.GPU_COLUMNS, merged)
    if instances:
        cells = map(tables.instance_cells, instances.values())
        merged = _merged(folder / "instances.csv", ("cloud", "instance"), cells)
        texts[folder / "instances.csv"] = tables.to_csv(tables.INSTANCE_COLUMNS, merged)
    for price_list in lists:
        rows = map(tables.offer_cells, price_list.offers)
        texts[folder / "offers" / f"{price_list.cloud}.csv"] = tables.to_csv(tables.OFFER_COLUMNS, rows)
    if offers:
        key = ("cloud", "instance", "region", "zone", "market")
        merged = _merged(folder / "offers.csv", key, map(tables.offer_cells, offers))
        texts[folder / "offers.csv"] = tables.to_csv(tables.OFFER_COLUMNS, merged)
    write_all(texts)


def _merged(path: Path, key: Sequence[str], new: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    old = [row.cells for row in csv_rows(read_text(path), str(path))] if path.exists() else []
    return list({tuple(cells.get(column, "") for column in key): cells for cells in [*old, *new]}.values())


def write_all(texts: Mapping[Path, str]) -> None:
    """Write files so that each is old or new at any moment; none is moved before all are on disk."""
    waiting: list[tuple[Path, Path]] = []
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            waiting.append((_beside(path, text), path))
        while waiting:
            # Moved ones leave the list, so that only what is left over is cleaned up.
            ready, path = waiting[0]
            ready.replace(path)
            waiting.pop(0)
    except OSError as error:
        place = next(iter(texts)).parent
        raise StallwiseError(
            f"{error.filename or place} cannot be written ({error.strerror}); your tables are as they were. "
            "Make the folder writable, or choose another with XDG_CONFIG_HOME."
        ) from None
    finally:
        for ready, _ in waiting:
            ready.unlink(missing_ok=True)


def _beside(path: Path, text: str) -> Path:
    with tempfile.NamedTemporaryFile(
        "w",
        encoding="utf-8",
        newline="",
        dir=path.parent,
        prefix=f".{path.name}.",
        suffix=".new",
        delete=False,
    ) as out:
        ready = Path(out.name)
        try:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        except BaseException:
            ready.unlink(missing_ok=True)
            raise
    return ready
