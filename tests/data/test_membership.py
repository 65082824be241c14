"""Ranks that hold different indexes of one bucket are told so; ranks that hold the same go on. Real processes."""

import subprocess
import sys
from pathlib import Path

from tests.data.test_lookahead import bucket

RANK = """
import sys, torch.distributed as dist
from torch.utils.data import RandomSampler
from torch.utils.data.distributed import DistributedSampler
from stallwise.data import BucketDataset, Lookahead
from stallwise.errors import InputError

rank, meeting, url, folder = int(sys.argv[1]), *sys.argv[2:]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
dataset = BucketDataset(url, index_folder=folder)
if rank == 0:
    Lookahead(RandomSampler(dataset))  # a loader of rank 0 alone holds nobody up
try:
    for _ in range(2):
        Lookahead(DistributedSampler(dataset))
    print("same")
except InputError as error:
    print(error)
dist.barrier()
"""


def ranks(folder: Path, first: Path, second: Path) -> list[str]:
    folder.mkdir()
    command = [sys.executable, "-c", RANK]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(folder / "meeting"), f"file://{folder.parent}/objects", str(indexes)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, indexes in enumerate((first, second))
    ]
    return [process.communicate(timeout=250)[0].strip() for process in running]


def test_ranks_with_different_indexes_are_told(tmp_path: Path) -> None:
    bucket(tmp_path, 8)
    (tmp_path / "objects" / "9999.txt").write_text("9999")
    later = tmp_path / "later"
    outputs = ranks(tmp_path / "differ", tmp_path / "indexes", later)
    assert sorted(text == "same" for text in outputs) == [False, True], "the first to come sets the measure"
    complaint = next(text for text in outputs if text != "same")
    assert "hold different indexes of file://" in complaint
    assert "index_folder" in complaint
    assert ranks(tmp_path / "agree", later, later) == ["same", "same"]
