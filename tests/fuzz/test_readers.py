"""Whatever a file holds, its reader gives a result or one sentence: never a traceback, never all memory.

`make test` draws the same mutations of whole samples every time. `make soak` runs the long one; its seed and the number
of executions are printed, and a crash names reader and content.
"""

import os
import random
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.fuzz.mutations import mutated
from tests.fuzz.readers import Reader, readers

_MEMORY_BYTES = 3 << 30
_EXECUTIONS = 40
"""Of each reader in `make test`."""
_LONG_S = float(os.environ.get("STALLWISE_FUZZ_S", "3600"))


def contents(reader: Reader, seed: int) -> Iterator[bytes]:
    """The samples, a few files that are none, then mutations without end."""
    yield from reader.samples
    yield from (b"", b"\0", b"{}", b"[]", b"[" * 100_000, b"\xff\xfe", b"\x1f\x8b", b"PK\x03\x04", b"PAR1", b"\n" * 50)
    draw = random.Random(f"{seed} {reader.name}")
    while True:
        yield mutated(draw.choice(reader.samples), draw.choice(reader.samples), draw)


def crash_of(reader: Reader, folder: Path, content: bytes) -> str | None:
    """What went wrong, by name; None where the reader holds."""
    try:
        reader.attempt(folder, content)
    except Exception as error:  # the point of it
        trace, last = error.__traceback__, ""
        while trace is not None:
            if "stallwise" in trace.tb_frame.f_code.co_filename:
                last = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
            trace = trace.tb_next
        return f"{reader.name}: {type(error).__name__} at {last}: {str(error)[:100]}"
    return None


@pytest.fixture(scope="module")
def all_readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, tuple[Reader, ...]]]:
    """Readers, and no more memory than a sample could need: a bomb is a crash."""
    folder = tmp_path_factory.mktemp("fuzz")
    every = tuple(readers(folder))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + _MEMORY_BYTES, hard))
    yield folder, every
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_samples_are_read(all_readers: tuple[Path, tuple[Reader, ...]]) -> None:
    """Else mutations of them would only meet the first check of a reader."""
    folder, every = all_readers
    refused = {
        (reader.name, number): sentence
        for reader in every
        for number, sample in enumerate(reader.samples)
        if (sentence := reader.attempt(folder, sample))
    }
    assert not refused


def test_mutations_of_samples_are_read_or_refused_in_a_sentence(all_readers: tuple[Path, tuple[Reader, ...]]) -> None:
    folder, every = all_readers
    crashes = Counter(
        crash
        for reader in every
        for content, _ in zip(contents(reader, 0), range(_EXECUTIONS), strict=False)
        if (crash := crash_of(reader, folder, content)) is not None
    )
    assert not crashes


@pytest.mark.soak
@pytest.mark.timeout(_LONG_S + 600)
def test_mutations_for_a_long_time(all_readers: tuple[Path, tuple[Reader, ...]]) -> None:
    folder, every = all_readers
    seed, began_s = time.time_ns(), time.monotonic()
    streams = [(reader, contents(reader, seed)) for reader in every]
    crashes: Counter[str] = Counter()
    executions = 0
    while time.monotonic() - began_s < _LONG_S:
        for reader, stream in streams:
            content = next(stream)
            executions += 1
            crash = crash_of(reader, folder, content)
            if crash is not None:
                crashes[crash] += 1
                (folder / f"crash-{len(crashes)}").write_bytes(content)
    print(f"\nfuzz: {executions:,} executions of {len(every)} readers, seed {seed}, {len(crashes)} crashes")
    assert not crashes, f"contents are in {folder}"
