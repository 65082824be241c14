"""A run as a layer file: one GPU's step, layer by layer, in the schema of docs/trace.md."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from stallwise.errors import InputError
from stallwise.record.layer_run import layers_of
from stallwise.run.atomic import write_atomically
from stallwise.run.reader import Run


@dataclass(frozen=True, slots=True)
class WrittenLayers:
    """What was written."""

    path: Path
    layers: int
    gradient_bytes: int


def export_layers(run: Run, path: Path) -> WrittenLayers:
    """Write the layer file of a run."""
    document = layers_of(run)
    text = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    try:
        if not path.parent.is_dir():
            raise FileNotFoundError(2, "No such file or directory")
        write_atomically(path, text)
    except OSError as error:
        raise InputError(f"The layers cannot be written to {path} ({error.strerror}). Name another file.") from None
    return WrittenLayers(path, len(document.layers), sum(entry.gradient_bytes for entry in document.layers))
