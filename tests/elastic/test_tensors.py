"""Tensors in files: what is written is read, anything else is refused."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stallwise.elastic._manifest import decode_manifest
from stallwise.elastic._ownership import decode_owner
from stallwise.elastic._tensors import TensorPart, fill_local, read_parts, write_tensors
from stallwise.errors import InputError


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64])
def test_tensors_are_read_as_they_were_written(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"scalar": torch.tensor(1).to(dtype), "empty": torch.zeros(0, 3).to(dtype)}
    tensors["matrix"] = torch.arange(12).reshape(3, 4).to(dtype).t()
    write_tensors(tmp_path / "file", tensors, "xxh3_128")
    parts = read_parts([tmp_path / "file"])
    for name, tensor in tensors.items():
        assert torch.equal(parts[name][0].read(), tensor)


def test_safetensors_reads_what_is_written(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5)}
    write_tensors(tmp_path / "file.safetensors", tensors, "blake2b")
    read = load_file(tmp_path / "file.safetensors")
    assert {name: torch.equal(read[name], tensor) for name, tensor in tensors.items()} == {"a": True, "b": True}


def test_shards_are_put_together_for_any_number_of_ranks(tmp_path: Path) -> None:
    whole = torch.arange(35.0).reshape(7, 5)
    parts = []
    for begin, end in ((0, 3), (3, 6), (6, 7), (0, 3)):  # the last is a replica
        path = tmp_path / f"{begin}-{len(parts)}"
        write_tensors(path, {"w": whole[begin:end]}, "blake2b")
        part = read_parts([path])["w"][0]
        parts.append(TensorPart(part.path, part.dtype, part.shape, part.begin, (begin, 0), (7, 5)))
    for begin, end in ((0, 7), (0, 4), (4, 7), (2, 2)):
        local = torch.full((end - begin, 5), -1.0)
        fill_local("w", local, (begin, 0), (7, 5), parts)
        assert torch.equal(local, whole[begin:end])
    with pytest.raises(InputError, match="only a part of it"):
        fill_local("w", torch.zeros(7, 5), (0, 0), (7, 5), parts[:2])
    with pytest.raises(InputError, match=r"has the shape \[7, 6\] here"):
        fill_local("w", torch.zeros(7, 6), (0, 0), (7, 6), parts)


@pytest.mark.parametrize("cut", [3, 20, -8])
def test_a_file_of_tensors_that_is_cut_is_refused(cut: int, tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {"a": torch.randn(3, 4)}, "blake2b")
    data = (tmp_path / "file").read_bytes()
    (tmp_path / "file").write_bytes(data[:cut])
    with pytest.raises(InputError, match="is no file of tensors"):
        read_parts([tmp_path / "file"])


@given(place=st.integers(0, 400), value=st.integers(0, 255), data=st.binary(max_size=200))
def test_hostile_files_are_refused_or_read(
    place: int, value: int, data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A byte of a file is changed, or all of them are others: a sentence, or tensors within the file."""
    path = tmp_path_factory.mktemp("hostile") / "file"
    write_tensors(path, {"a": torch.ones(3, 4), "b": torch.arange(5)}, "blake2b")
    whole = bytearray(path.read_bytes())
    whole[place % len(whole)] = value
    for content in (bytes(whole), data, whole[:8] + data):
        path.write_bytes(content)
        try:
            for parts in read_parts([path]).values():
                for part in parts:
                    part.read()
        except InputError:
            pass


@given(data=st.binary(max_size=200))
def test_hostile_records_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="its manifest"):
        decode_manifest(data)
    with pytest.raises(InputError, match="is damaged"):
        decode_owner(data, "here")
