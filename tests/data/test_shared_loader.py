"""Several jobs of a node that prepare their batches together: real processes, killed, stopped and late."""

import hashlib
import json
import multiprocessing
import os
import resource
import secrets
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from stallwise.data import BucketDataset, SharedLoader, batch_file
from stallwise.data.staging_wire import address_of
from stallwise.errors import InputError
from tests.data.cache_box import wait_until

SAMPLES, BATCH = 96, 4


@dataclass(frozen=True)
class Task:
    """What one job does."""

    group: str
    log: str
    jobs: int = 1
    epochs: int = 2
    step_s: float = 0.0
    make_s: float = 0.001
    staging_bytes: int = 200_000
    stop_after: int = -1
    """Batches after which the job says so and waits for ever."""


class Noisy(Dataset[Any]):
    """Notes every sample it makes, and makes it with random numbers."""

    def __init__(self, log: str, make_s: float) -> None:
        self._log, self._make_s = log, make_s

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        handle = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, f"{number}\n".encode())
        os.close(handle)
        time.sleep(self._make_s)
        return torch.full((16, 16), float(number)) + torch.rand(1), number


def job(task: Task, back: Connection) -> None:
    """A job's whole life, in a process group of its own with its workers."""
    os.setsid()
    torch.set_num_threads(1)
    loader = SharedLoader(
        Noisy(task.log, task.make_s),
        BATCH,
        group=task.group,
        jobs=task.jobs,
        staging_bytes=task.staging_bytes,
        patience_s=0.5,
        gather_s=60,
    )
    seen, taken = hashlib.sha256(), 0
    for _ in range(task.epochs):
        for images, numbers in loader:
            seen.update(images.numpy().tobytes() + numbers.numpy().tobytes())
            images.zero_()  # its own: nobody else sees this
            taken += 1
            if taken == task.stop_after:
                back.send("there")
                time.sleep(100)
            time.sleep(task.step_s)
    back.send({"digest": seen.hexdigest(), "taken": taken, "stat": loader.stat()})
    loader.close()


@dataclass(frozen=True)
class Started:
    """A job that runs; forked, because importing torch anew would be most of its time."""

    process: BaseProcess
    line: Connection

    def says(self, within_s: float = 90) -> Any:
        assert self.line.poll(within_s), "the job stands still"
        return self.line.recv()

    def told_any(self) -> Any:
        found = self.says()
        self.process.join(30)
        return found

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = self.says()
        self.process.join(30)
        assert self.process.exitcode == 0
        return found

    def send(self, what: signal.Signals) -> None:
        assert self.process.pid
        os.killpg(self.process.pid, what)


_fork = multiprocessing.get_context("fork")


def start(task: Task) -> Started:
    here, back = _fork.Pipe(duplex=False)
    process = _fork.Process(target=job, args=(task, back))
    process.start()
    back.close()
    return Started(process, here)


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))  # noqa: PTH208, S108


def is_served(group: str) -> bool:
    return address_of(group)[1:] in Path("/proc/net/unix").read_text()


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    before = shared_memory()
    made = Task(f"test-{secrets.token_hex(6)}", str(tmp_path / "log"))
    yield made
    wait_until(lambda: not is_served(made.group), 15)
    assert shared_memory() - before == set(), "nothing is left behind"


def with_(task: Task, **changes: Any) -> Task:
    return Task(**{**asdict(task), **changes})


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a job gets that is alone."""
    alone = Task(f"test-{secrets.token_hex(6)}", str(tmp_path_factory.mktemp("alone") / "log"))
    digest: str = start(alone).told()["digest"]
    return digest


def made(task: Task) -> Counter[str]:
    return Counter(Path(task.log).read_text().split())


def test_eight_jobs_decode_every_object_once_per_epoch(task: Task, reference: str) -> None:
    jobs = [start(with_(task, jobs=8)) for _ in range(8)]
    found = [job.told() for job in jobs]
    assert {one["digest"] for one in found} == {reference}, "all the same, also with one job"
    assert made(task) == Counter({str(number): 2 for number in range(SAMPLES)})
    stat = found[-1]["stat"]
    assert stat["peak_bytes"] <= stat["limit_bytes"] == 200_000
    assert stat["dropped"] == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_job_that_is_killed_or_stopped_changes_nothing_for_the_others(
    task: Task, reference: str, how: signal.Signals
) -> None:
    """With all its workers, in the middle of an epoch; the first job too, which started the books."""
    first = start(with_(task, jobs=3, stop_after=5, epochs=2))
    others = [start(with_(task, jobs=3, step_s=0.01)) for _ in range(2)]
    assert first.says() == "there"
    first.send(how)
    found = [job.told() for job in others]
    first.send(signal.SIGKILL)
    first.process.join(10)
    assert {one["digest"] for one in found} == {reference}
    stat = found[-1]["stat"]
    assert stat["peak_bytes"] <= stat["limit_bytes"]


def test_a_late_job_gets_the_same_and_holds_nobody_up(task: Task, reference: str) -> None:
    early = start(with_(task, step_s=0.02))
    wait_until(lambda: Path(task.log).exists() and len(Path(task.log).read_text().split()) > SAMPLES // 2, 60)
    late = start(task)
    assert {job.told()["digest"] for job in (early, late)} == {reference}


@pytest.mark.soak
def test_the_books_themselves_may_die(task: Task, reference: str) -> None:
    jobs = [start(with_(task, jobs=2, step_s=0.02)) for _ in range(2)]
    wait_until(lambda: Path(task.log).exists() and len(Path(task.log).read_text().split()) > SAMPLES // 2, 60)
    keeper = subprocess.run(["pgrep", "-f", f"staging_server {task.group}$"], capture_output=True, text=True)
    os.kill(int(keeper.stdout.split()[0]), signal.SIGKILL)
    assert {job.told()["digest"] for job in jobs} == {reference}


class Scaled(Dataset[int]):
    """Like torchvision's datasets: it has a `transform`."""

    def __init__(self, transform: Any, samples: int = 8) -> None:
        self.transform, self._samples = transform, samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> int:
        return int(self.transform(number))


def doubled(number: int) -> int:
    return 2 * number


def tripled(number: int) -> int:
    return 3 * number


def broken(number: int) -> int:
    raise ValueError(f"sample {number} is broken")


@pytest.fixture
def here(task: Task) -> Iterator[Any]:
    loaders: list[SharedLoader] = []

    def make(dataset: Dataset[Any], **options: Any) -> SharedLoader:
        loaders.append(SharedLoader(dataset, group=task.group, **{"batch_size": 4, **options}))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()


def test_what_differs_is_refused_by_name(here: Any) -> None:
    loader = here(Scaled(doubled))
    for dataset, options, said in (
        (Scaled(tripled), {}, r"its transform is .*\.tripled, that of the jobs already there is .*\.doubled"),
        (Scaled(doubled, 9), {}, "its dataset is .* of 9 samples"),
        (Scaled(doubled), {"batch_size": 2}, "its batch_size is 2"),
        (Scaled(doubled), {"seed": 1}, "its seed is 1"),
        (Scaled(doubled), {"collate_fn": list}, "its collate_fn is builtins.list"),
    ):
        with pytest.raises(InputError, match=said):
            here(dataset, **options)
    next(iter(loader))
    in_order = here(Scaled(doubled), sampler=list(range(8)))
    with pytest.raises(InputError, match="not that of the jobs already there"):
        next(iter(in_order))
    assert sum(int(batch.sum()) for batch in loader) == 2 * sum(range(8))


@pytest.mark.soak
class Drawn(Dataset[Any]):
    """Random numbers beside the sample's own."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, number: int) -> tuple[float, int]:
        return float(torch.rand(1)), number


class Many(Drawn):
    """More batches than there are descriptors."""

    def __len__(self) -> int:
        return 200


def _told(batches: Any) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in batches]


def test_a_job_goes_on_in_the_middle_of_an_epoch(here: Any, task: Task) -> None:
    whole = here(Drawn())
    epochs = [_told(whole) for _ in range(3)]
    whole.close()
    wait_until(lambda: not is_served(task.group), 15)
    first = here(Drawn())
    assert _told(first) == epochs[0]
    for number, batch in enumerate(first, 1):
        assert _told([batch]) == [epochs[1][number - 1]]
        if number == 3:
            break
    saved = json.loads(json.dumps(first.state_dict()))
    first.close()
    wait_until(lambda: not is_served(task.group), 15)
    again = here(Drawn())
    again.load_state_dict(saved)
    assert again.state_dict() == saved, "it stands where it stood"
    again.set_epoch(1)
    assert _told(again) == epochs[1][3:], "bit for bit, random numbers and all"
    assert again.state_dict()["batch"] == 0
    assert _told(again) == epochs[2]
    with pytest.raises(InputError, match="seed"):
        again.load_state_dict({**saved, "seed": 5})
    again.load_state_dict({**saved, "order": "another"})
    for _ in range(2):  # said again, and not begun at the front instead
        with pytest.raises(InputError, match="order of epoch 1"):
            next(iter(again))
    again.load_state_dict(saved)
    assert _told(again) == epochs[1][3:]


def _few_descriptors(group: str, back: Connection) -> None:
    """A job that takes nothing for a while, so that much is staged, where the books may have 64 descriptors."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    loader = SharedLoader(Many(), 1, group=group, staging_bytes=1 << 30, multiprocessing_context="fork")
    taken = 0
    for _ in loader:
        time.sleep(0.0 if taken else 1.0)
        taken += 1
    back.send((taken, loader.stat()))
    loader.close()


def test_batches_without_number_do_not_exhaust_descriptors(task: Task) -> None:
    fresh = multiprocessing.get_context("spawn")  # one that inherits no descriptors of other tests
    here, back = fresh.Pipe(duplex=False)
    process = fresh.Process(target=_few_descriptors, args=(task.group, back))
    process.start()
    back.close()
    count, stat = Started(process, here).told_any()
    assert count == 200
    assert 20 <= stat["peak"] <= 32, "half of the 64 are for batches"


def test_workers_may_be_spawned(here: Any) -> None:
    loader = here(Scaled(doubled), multiprocessing_context="spawn")
    for _ in range(2):
        assert sorted(number for batch in loader for number in batch.tolist()) == [2 * n for n in range(8)]


def test_a_bucket_read_by_two_jobs_is_read_once(here: Any, tmp_path: Path) -> None:
    """Its workers fetch the next batch while they decode one; a second job in this process takes all the same."""
    (tmp_path / "objects").mkdir()
    for number in range(24):
        (tmp_path / "objects" / f"{number:02d}.bin").write_bytes(bytes([number]) * 100)
    made = [BucketDataset(f"file://{tmp_path}/objects", first_byte, index_folder=tmp_path / "index") for _ in range(2)]
    loaders = [here(dataset, jobs=2) for dataset in made]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda loader: [n for batch in loader for n in batch.tolist()], loaders)
    assert first == second
    assert sorted(first) == list(range(24))
    assert sum(dataset.account().requests for dataset in made) == 24
    with pytest.raises(InputError, match=r"its decode is .*other_byte, that of the jobs already there is .*first_byte"):
        here(BucketDataset(f"file://{tmp_path}/objects", other_byte, index_folder=tmp_path / "index"))


def first_byte(data: bytes, name: str) -> int:
    return data[0]


def other_byte(data: bytes, name: str) -> int:
    return data[1]


def test_an_error_in_a_transform_is_raised_where_the_batch_is_asked_for(here: Any) -> None:
    with pytest.raises(Exception, match=r"ValueError: sample \d is broken"):
        next(iter(here(Scaled(broken))))
    with pytest.raises(Exception, match="does not fit into staging_bytes=1"):
        next(_tiny())


def _tiny() -> Iterator[Any]:
    loader = SharedLoader(Scaled(doubled), 4, group=f"tiny-{secrets.token_hex(4)}", staging_bytes=1)
    try:
        yield from loader
    finally:
        loader.close()


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(6).reshape(2, 3),
        torch.zeros(0, 3),
        torch.ones(2, 2, dtype=torch.bfloat16).T,
        {"image": torch.rand(2, 3), "name": ["a", "b"], "mask": np.ones((2, 2), dtype=bool)},
        [torch.tensor(1.5), None, (1, "x")],
    ],
)
def test_a_batch_comes_back_as_it_was(batch: Any) -> None:
    parts = batch_file.packed(batch)
    file = batch_file.written(parts)
    assert os.fstat(file).st_size == batch_file.size_bytes(parts)
    back = batch_file.read(file)
    os.close(file)
    torch.testing.assert_close(_leaves(back), _leaves(batch))
    for tensor in _leaves(back):
        if isinstance(tensor, torch.Tensor):
            tensor.zero_()  # writable, and its own


def _leaves(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return [leaf for value in batch.values() for leaf in _leaves(value)]
    if isinstance(batch, (list, tuple)):
        return [leaf for value in batch for leaf in _leaves(value)]
    return [torch.as_tensor(batch)] if isinstance(batch, (torch.Tensor, np.ndarray, int, float)) else []
