"""Import of price lists and tables into the user's folder, and download of SkyPilot's published lists.

Everything is checked before anything is written; only `download_lists` uses the network.

A killed import leaves old tables or new ones, never half a table: each is written beside its place and then
moved there, GPUs before the instance types and these before the offers that name them.
"""

import datetime as dt
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stallwise.errors import CatalogError, InputError, OfflineError, StallwiseError
from stallwise.hardware._skypilot import PriceList, find_lists, looks_like_skypilot, read_list
from stallwise.hardware._tables import (
    COLUMNS,
    GPU_COLUMNS,
    INSTANCE_COLUMNS,
    OFFER_COLUMNS,
    CatalogRow,
    check_columns,
    csv_rows,
    gpu_cells,
    gpu_from,
    header_of,
    instance_cells,
    instance_from,
    offer_cells,
    offer_from,
    read_text,
    to_csv,
)
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.gpu import Gpu
from stallwise.hardware.instance import Instance, Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogImport:
    """What an import did."""

    files: tuple[str, ...]
    gpus: int
    instances: int
    offers: int
    skipped: Mapping[str, int]
    folder: Path


@dataclass(slots=True)
class _Inputs:
    rows: dict[str, list[CatalogRow]] = field(default_factory=lambda: {kind: [] for kind in COLUMNS})
    lists: dict[str, Path] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


def import_paths(
    paths: Iterable[Path],
    catalog: Catalog,
    *,
    today: dt.date,
    cloud: str | None = None,
    as_of: dt.date | None = None,
) -> CatalogImport:
    """Import SkyPilot folders and CSV files, and plain CSV or YAML tables, into the catalog's folder.

    `cloud` names the cloud of a lone SkyPilot file, and picks one from a folder. A SkyPilot list is as old as
    its file unless `as_of` says otherwise; rows of the user without a date are of `today`.
    """
    inputs = _Inputs()
    for path in paths:
        _collect(path.expanduser(), cloud, inputs)
    gpus = {gpu.name: gpu for gpu in (gpu_from(row, today) for row in inputs.rows["gpus"])}
    all_gpus = {**catalog.gpus, **gpus}
    instances = {
        (instance.cloud, instance.name): instance
        for instance in (instance_from(row, all_gpus, catalog.boards, today) for row in inputs.rows["instances"])
    }
    all_instances = {**catalog.instances, **instances}
    offers = [offer_from(row, all_instances, today) for row in inputs.rows["offers"]]
    lists = [
        read_list(path, name, catalog, as_of or dt.date.fromtimestamp(path.stat().st_mtime))
        for name, path in inputs.lists.items()
    ]
    for price_list in lists:
        instances |= {(instance.cloud, instance.name): instance for instance in price_list.instances}
        if not price_list.offers:
            raise CatalogError(
                f"{inputs.lists[price_list.cloud]} offers no GPU this catalog knows; nothing was changed."
            )
    if not (gpus or instances or offers or lists):
        raise CatalogError(f"{', '.join(inputs.files) or 'The list of files'} holds no rows; nothing was changed.")
    _write(catalog, gpus, instances, offers, lists)
    return CatalogImport(
        files=tuple(inputs.files),
        gpus=len(gpus),
        instances=len(instances),
        offers=len(offers) + sum(len(price_list.offers) for price_list in lists),
        skipped=dict(sum((Counter(price_list.skipped) for price_list in lists), Counter())),
        folder=catalog.folder,
    )


def _collect(path: Path, cloud: str | None, inputs: _Inputs) -> None:
    if path.is_dir():
        lists = find_lists(path)
        if cloud is not None and cloud not in lists:
            raise CatalogError(f"{path} has no list of {cloud}; it has {', '.join(sorted(lists))}.")
        chosen = {cloud: lists[cloud]} if cloud else lists
        inputs.lists |= chosen
        inputs.files += map(str, chosen.values())
        return
    text = read_text(path)
    inputs.files.append(str(path))
    if path.suffix.lower() in (".yaml", ".yml"):
        _collect_yaml(text, str(path), inputs)
    elif looks_like_skypilot(text):
        inputs.lists[_cloud_of(path, cloud)] = path
    else:
        kind = _kind_of(header_of(text), str(path))
        inputs.rows[kind] += csv_rows(text, str(path))


def _cloud_of(path: Path, cloud: str | None) -> str:
    if cloud is not None:
        return cloud
    # In SkyPilot's own layout the folder is named after the cloud.
    if path.name == "vms.csv" and path.parent.name:
        return path.parent.name
    raise CatalogError(
        f"{path} is a SkyPilot list that does not say of which cloud it is. Name the cloud, for example aws.",
        fields=("cloud",),
    )


def _kind_of(header: Sequence[str], file: str) -> str:
    marks = {"usd_per_h": "offers", "region": "offers", "vcpus": "instances", "gpu_count": "instances"}
    kind = next((marks[column] for column in header if column in marks), "gpus" if "gpu" in header else None)
    if kind is None:
        shown = ", ".join(header)[:80] or "nothing"
        raise CatalogError(
            f"{file}, line 1: found the columns {shown!r}, neither those of SkyPilot nor of a table of "
            "offers (cloud, instance, region, market, usd_per_h), instances or gpus. Correct that line."
        )
    required, columns = COLUMNS[kind]
    check_columns(header, file, 1, required=required, allowed=columns)
    return kind


def _collect_yaml(text: str, file: str, inputs: _Inputs) -> None:
    import yaml

    try:
        # Nodes, not values: they keep the line, and 2026-08-22 or 1e3 stay the text that was written.
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        raise CatalogError(f"{file} is nested too deeply to be a table. Nothing was changed.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise CatalogError(f"{file}{where}: not valid YAML. Correct it and try again; nothing was changed.") from None
    if not isinstance(document, yaml.MappingNode) or not document.value:
        raise CatalogError(f"{file}: expected the keys gpus, instances or offers, each with a list of entries.")
    for key, entries in document.value:
        if (
            not isinstance(key, yaml.ScalarNode)
            or key.value not in COLUMNS
            or not isinstance(entries, yaml.SequenceNode)
        ):
            raise CatalogError(
                f"{file}, line {key.start_mark.line + 1}: found {key.value!r}, expected gpus, instances or "
                "offers with a list of entries."
            )
        inputs.rows[key.value] += [_yaml_row(entry, key.value, file) for entry in entries.value]


def _yaml_row(entry: Any, kind: str, file: str) -> CatalogRow:
    import yaml

    line = entry.start_mark.line + 1
    if not isinstance(entry, yaml.MappingNode):
        raise CatalogError(f"{file}, line {line}: expected `column: value` pairs.")
    cells = {}
    for key, value in entry.value:
        if not isinstance(key, yaml.ScalarNode):
            raise CatalogError(f"{file}, line {key.start_mark.line + 1}: expected the name of a column.")
        if not isinstance(value, yaml.ScalarNode):
            raise CatalogError(f"{file}, line {value.start_mark.line + 1}: expected one value for {key.value!r}.")
        cells[key.value] = "" if value.tag == "tag:yaml.org,2002:null" else value.value
    required, columns = COLUMNS[kind]
    check_columns(list(cells), file, line, required=required, allowed=columns)
    return CatalogRow(cells, file, line)


def _write(
    catalog: Catalog,
    gpus: Mapping[str, Gpu],
    instances: Mapping[tuple[str, str], Instance],
    offers: Sequence[Offer],
    lists: Sequence[PriceList],
) -> None:
    texts: dict[Path, str] = {}
    folder = catalog.folder
    if gpus:
        merged = _merged(folder / "gpus.csv", ("gpu",), map(gpu_cells, gpus.values()))
        texts[folder / "gpus.csv"] = to_csv(GPU_COLUMNS, merged)
    if instances:
        cells = map(instance_cells, instances.values())
        merged = _merged(folder / "instances.csv", ("cloud", "instance"), cells)
        texts[folder / "instances.csv"] = to_csv(INSTANCE_COLUMNS, merged)
    for price_list in lists:
        rows = map(offer_cells, price_list.offers)
        texts[folder / "offers" / f"{price_list.cloud}.csv"] = to_csv(OFFER_COLUMNS, rows)
    if offers:
        key = ("cloud", "instance", "region", "zone", "market")
        merged = _merged(folder / "offers.csv", key, map(offer_cells, offers))
        texts[folder / "offers.csv"] = to_csv(OFFER_COLUMNS, merged)
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


BASE_URL = "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs"
CLOUDS = ("aws", "gcp", "azure", "lambda")
SCHEMAS = ("v8", "v7", "v6", "v5")
_TIMEOUT_S = 20
_NOT_THERE = 404


_CLOUD_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


def download_lists(folder: Path, clouds: Iterable[str] = CLOUDS, base_url: str = BASE_URL) -> Path:
    """Fetch `vms.csv` of each cloud from the newest schema that has it; `folder` gets SkyPilot's layout."""
    if not base_url.startswith(("http://", "https://")):
        raise InputError(f"{base_url!r} is no web address. Give one that starts with https:// or http://.")
    for cloud in clouds:
        if not _CLOUD_NAME.fullmatch(cloud):
            raise InputError(f"{cloud!r} is no name of a cloud, like aws.", fields=("cloud",))
        target = folder / "v0" / cloud / "vms.csv"
        target.parent.mkdir(parents=True)
        target.write_bytes(_fetch_newest(base_url.rstrip("/"), cloud))
    return folder


def _fetch_newest(base_url: str, cloud: str) -> bytes:
    for schema in SCHEMAS:
        body = _fetch(f"{base_url}/{schema}/{cloud}/vms.csv")
        if body is not None:
            return body
    raise InputError(
        f"{base_url} publishes no price list of {cloud} (looked for schemas {', '.join(SCHEMAS)}). Name other clouds.",
        fields=("cloud",),
    )


def _fetch(url: str) -> bytes | None:
    import http.client
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310 (http(s) was checked)
            body: bytes = response.read()
            return body
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == _NOT_THERE:
            return None
        reason: object = f"HTTP {error.code}"
    except urllib.error.URLError as error:
        reason = error.reason
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = error
    raise OfflineError(
        f"{url} could not be fetched ({reason}). Try again when online, or read a catalog you already have: "
        "`stallwise catalog import ~/.sky/catalogs`. Your prices are as they were."
    )
