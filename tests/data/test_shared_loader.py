"""Several jobs of a node that prepare their batches together: real processes, killed, stopped and late."""

import hashlib
import json
import multiprocessing
import os
import resource
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from stallwise.data import BucketDataset, SharedLoader
from stallwise.data.shared._memory import pack_batch, read_batch, size_bytes, write_batch
from stallwise.data.shared._protocol import StagingHello, StatRequest, address_of
from stallwise.errors import InputError
from tests.data.cache_box import wait_until
from tests.waiting import PATIENCE_S

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
    patience_s: float = 0.5
    """How long it may hold up others."""
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
        patience_s=task.patience_s,
        gather_s=60,
    )
    digest, taken = hashlib.sha256(), 0
    for _ in range(task.epochs):
        for images, numbers in loader:
            digest.update(images.numpy().tobytes() + numbers.numpy().tobytes())
            images.zero_()  # its own: nobody else sees this
            taken += 1
            if taken == task.stop_after:
                back.send("there")
                time.sleep(100)
            time.sleep(task.step_s)
    back.send({"digest": digest.hexdigest(), "taken": taken, "stat": loader.stat()})
    loader.close()


@dataclass(frozen=True)
class Started:
    """A job that runs; forked, because importing torch anew would be most of its time."""

    process: BaseProcess
    line: Connection

    def says(self, within_s: float = 90) -> Any:
        assert self.line.poll(within_s), "the job stands still"
        return self.line.recv()

    def any_result(self) -> Any:
        report = self.says()
        self.process.join(PATIENCE_S)
        return report

    def result(self) -> dict[str, Any]:
        report: dict[str, Any] = self.says()
        self.process.join(PATIENCE_S)
        assert self.process.exitcode == 0
        return report

    def send(self, what: signal.Signals) -> None:
        assert self.process.pid
        os.killpg(self.process.pid, what)


_fork = multiprocessing.get_context("fork")


def start(task: Task) -> Started:
    receiver, back = _fork.Pipe(duplex=False)
    process = _fork.Process(target=job, args=(task, back))
    process.start()
    back.close()
    return Started(process, receiver)


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))  # noqa: PTH208, S108


def is_served(group: str) -> bool:
    return address_of(group)[1:] in Path("/proc/net/unix").read_text()


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    before = shared_memory()
    new_task = Task(f"test-{secrets.token_hex(6)}", str(tmp_path / "log"))
    yield new_task
    wait_until(lambda: not is_served(new_task.group))
    assert shared_memory() - before == set(), "nothing is left behind"


def with_(task: Task, **changes: Any) -> Task:
    return Task(**{**asdict(task), **changes})


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a job gets that is alone."""
    alone = Task(f"test-{secrets.token_hex(6)}", str(tmp_path_factory.mktemp("alone") / "log"))
    digest: str = start(alone).result()["digest"]
    return digest


def decoded(task: Task) -> Counter[str]:
    return Counter(Path(task.log).read_text().split())


def test_eight_jobs_decode_every_object_once_per_epoch(task: Task, reference: str) -> None:
    # Nobody is passed over because it had no core for a while: that decodes anew.
    jobs = [start(with_(task, jobs=8, patience_s=PATIENCE_S)) for _ in range(8)]
    results = [job.result() for job in jobs]
    assert {one["digest"] for one in results} == {reference}, "all the same, also with one job"
    compared = Counter({str(number): 2 * 8 for number in (0, SAMPLES // 2, SAMPLES - 1)})
    assert decoded(task) - compared == Counter({str(number): 2 for number in range(SAMPLES)})
    stat = results[-1]["stat"]
    assert stat["peak_bytes"] <= stat["limit_bytes"] == 200_000
    assert stat["dropped"] == 0


@pytest.mark.parametrize("signal_sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_job_that_is_killed_or_stopped_changes_nothing_for_the_others(
    task: Task, reference: str, signal_sent: signal.Signals
) -> None:
    """With all its workers, in the middle of an epoch; the first job too, which started the books."""
    first = start(with_(task, jobs=3, stop_after=5, epochs=2))
    others = [start(with_(task, jobs=3, step_s=0.01)) for _ in range(2)]
    assert first.says() == "there"
    first.send(signal_sent)
    results = [job.result() for job in others]
    first.send(signal.SIGKILL)
    first.process.join(PATIENCE_S)
    assert {one["digest"] for one in results} == {reference}
    stat = results[-1]["stat"]
    assert stat["peak_bytes"] <= stat["limit_bytes"]


def test_a_late_job_gets_the_same_and_holds_nobody_up(task: Task, reference: str) -> None:
    early = start(with_(task, step_s=0.02))
    wait_until(lambda: Path(task.log).exists() and len(Path(task.log).read_text().split()) > SAMPLES // 2)
    late = start(task)
    assert {job.result()["digest"] for job in (early, late)} == {reference}


@pytest.mark.soak
def test_the_books_themselves_may_die(task: Task, reference: str) -> None:
    jobs = [start(with_(task, jobs=2, step_s=0.02)) for _ in range(2)]
    wait_until(lambda: Path(task.log).exists() and len(Path(task.log).read_text().split()) > SAMPLES // 2)
    keeper = subprocess.run(["pgrep", "-f", f"data.shared.server {task.group}$"], capture_output=True, text=True)
    os.kill(int(keeper.stdout.split()[0]), signal.SIGKILL)
    assert {job.result()["digest"] for job in jobs} == {reference}


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
def make_loader(task: Task) -> Iterator[Any]:
    loaders: list[SharedLoader] = []

    def make(dataset: Dataset[Any], **options: Any) -> SharedLoader:
        loaders.append(SharedLoader(dataset, group=task.group, **{"batch_size": 4, **options}))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()


ANOTHER_ACCOUNT = """
import os, socket, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.settimeout(60)
line.connect(b"\\0" + sys.argv[1].encode())
try:
    line.send(bytes.fromhex(sys.argv[2]))
    sys.exit(len(line.recv(1000)))
except ConnectionError:
    sys.exit(0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another account")
def test_another_account_is_not_answered(make_loader: Any, task: Task) -> None:
    loader = make_loader(Scaled(doubled))
    for message in (StagingHello("other", False, [("dataset", "1", "x")], 1000), StatRequest()):
        word = msgspec.msgpack.encode(message).hex()
        command = [sys.executable, "-c", ANOTHER_ACCOUNT, address_of(task.group)[1:], word]
        assert subprocess.run(command, timeout=250).returncode == 0
    assert sum(int(batch.sum()) for batch in loader) == 2 * sum(range(8))


def test_what_differs_is_refused_by_name(make_loader: Any) -> None:
    loader = make_loader(Scaled(doubled))
    for dataset, options, message in (
        (Scaled(tripled), {}, r"its dataset\.transform is .*\.tripled, that of the jobs already there is .*\.doubled"),
        (Scaled(doubled, 9), {}, "its dataset is .* of 9 samples"),
        (Scaled(doubled), {"batch_size": 2}, "its batch_size is 2"),
        (Scaled(doubled), {"seed": 1}, "its seed is 1"),
        (Scaled(doubled), {"collate_fn": list}, "its collate_fn is builtins.list"),
    ):
        with pytest.raises(InputError, match=message):
            make_loader(dataset, **options)
    next(iter(loader))
    in_order = make_loader(Scaled(doubled), sampler=list(range(8)))
    with pytest.raises(InputError, match="not that of the jobs already there"):
        next(iter(in_order))
    assert sum(int(batch.sum()) for batch in loader) == 2 * sum(range(8))


class Holding(Scaled):
    """Opens a file as many do: at the first sample, which must not be in the process that forks workers."""

    def __getitem__(self, number: int) -> int:
        self.transform.__dict__["pid"] = os.getpid()
        return int(self.transform(number))


class Counted(Scaled):
    """What it gives depends on the environment."""

    def __getitem__(self, number: int) -> int:
        return number + int(os.environ.get("STALLWISE_TEST_SHIFT", "0"))


def tensors(values: list[float]) -> TensorDataset:
    return TensorDataset(torch.tensor(values))


def test_jobs_with_other_data_of_the_same_length_are_refused(make_loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train and test files of equal number were taken for alike, and each job got samples of the other."""
    parts = Subset(tensors([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]), [0, 2, 4, 6])
    loader = make_loader(parts)
    again = make_loader(Subset(tensors([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]), [0, 2, 4, 6]))
    assert sorted(float(each) for (batch,) in loader for each in batch) == [1, 3, 5, 7], "identical jobs are accepted"
    again.close()
    for other, where in (
        (Subset(parts.dataset, [1, 3, 5, 7]), "dataset.indices"),
        (Subset(tensors([-1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]), [0, 2, 4, 6]), "dataset.dataset.tensors"),
    ):
        with pytest.raises(InputError, match=rf"its {where} \(.*\) has other contents.*identity"):
            make_loader(other)
    with pytest.raises(InputError, match="its identity is 'mine'"):
        make_loader(parts, identity="mine")


def test_samples_that_differ_are_refused(make_loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_loader(Counted(doubled))
    make_loader(Counted(doubled))
    monkeypatch.setenv("STALLWISE_TEST_SHIFT", "1")
    with pytest.raises(InputError, match="its samples"):
        make_loader(Counted(doubled))


def test_no_sample_is_read_in_the_process_that_forks(make_loader: Any) -> None:
    loader = make_loader(Holding(doubled))
    next(iter(loader))
    assert "pid" not in vars(doubled)


class Unnameable(Scaled):
    """Holds what no other process can have."""

    def __init__(self) -> None:
        super().__init__(doubled)
        self._open = threading.local()


def test_data_that_cannot_be_compared_need_an_identity(make_loader: Any) -> None:
    with pytest.raises(InputError, match=r"dataset\._open \(_thread._local\) cannot be compared.*identity"):
        make_loader(Unnameable())
    loader = make_loader(Unnameable(), identity="v1")
    make_loader(Unnameable(), identity="v1").close()
    with pytest.raises(InputError, match="its identity is 'v2', that of the jobs already there is 'v1'"):
        make_loader(Unnameable(), identity="v2")
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


def _values(batches: Any) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in batches]


def test_a_job_goes_on_in_the_middle_of_an_epoch(make_loader: Any, task: Task) -> None:
    whole = make_loader(Drawn())
    epochs = [_values(whole) for _ in range(3)]
    whole.close()
    wait_until(lambda: not is_served(task.group))
    first = make_loader(Drawn())
    assert _values(first) == epochs[0]
    for number, batch in enumerate(first, 1):
        assert _values([batch]) == [epochs[1][number - 1]]
        if number == 3:
            break
    saved = json.loads(json.dumps(first.state_dict()))
    first.close()
    wait_until(lambda: not is_served(task.group))
    again = make_loader(Drawn())
    again.load_state_dict(saved)
    assert again.state_dict() == saved, "it stands where it stood"
    again.set_epoch(1)
    assert _values(again) == epochs[1][3:], "bit for bit, random numbers and all"
    assert again.state_dict()["batch"] == 0
    assert _values(again) == epochs[2]
    with pytest.raises(InputError, match="seed"):
        again.load_state_dict({**saved, "seed": 5})
    again.load_state_dict({**saved, "order": "another"})
    for _ in range(2):  # said again, and not begun at the front instead
        with pytest.raises(InputError, match="order of epoch 1"):
            next(iter(again))
    again.load_state_dict(saved)
    assert _values(again) == epochs[1][3:]


def _few_descriptors(group: str, back: Connection) -> None:
    """A job that takes nothing for a while, so that much is staged, where the books may have 64 descriptors."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    loader = SharedLoader(Many(), 1, group=group, staging_bytes=1 << 30, multiprocessing_context="fork")
    taken = 0
    for _ in loader:
        if not taken:
            wait_until(lambda: loader.stat()["peak"] >= 20)
            time.sleep(0.5)  # for more than there may be
        taken += 1
    back.send((taken, loader.stat()))
    loader.close()


def test_batches_without_number_do_not_exhaust_descriptors(task: Task) -> None:
    fresh = multiprocessing.get_context("spawn")  # one that inherits no descriptors of other tests
    receiver, back = fresh.Pipe(duplex=False)
    process = fresh.Process(target=_few_descriptors, args=(task.group, back))
    process.start()
    back.close()
    count, stat = Started(process, receiver).any_result()
    assert count == 200
    assert 20 <= stat["peak"] <= 32, "half of the 64 are for batches"


def test_workers_may_be_spawned(make_loader: Any) -> None:
    loader = make_loader(Scaled(doubled), multiprocessing_context="spawn")
    for _ in range(2):
        assert sorted(number for batch in loader for number in batch.tolist()) == [2 * n for n in range(8)]


def test_a_bucket_read_by_two_jobs_is_read_once(make_loader: Any, tmp_path: Path) -> None:
    """Its workers fetch the next batch while they decode one; a second job in this process takes all the same."""
    (tmp_path / "objects").mkdir()
    for number in range(24):
        (tmp_path / "objects" / f"{number:02d}.bin").write_bytes(bytes([number]) * 100)
    datasets = [
        BucketDataset(f"file://{tmp_path}/objects", first_byte, index_folder=tmp_path / "index", hedge=False)
        for _ in range(2)
    ]
    loaders = [make_loader(dataset, jobs=2) for dataset in datasets]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda loader: [n for batch in loader for n in batch.tolist()], loaders)
    assert first == second
    assert sorted(first) == list(range(24))
    assert sum(dataset.account().requests for dataset in datasets) == 24
    with pytest.raises(
        InputError, match=r"its dataset\.decode is .*other_byte, that of the jobs already there is .*first_byte"
    ):
        make_loader(BucketDataset(f"file://{tmp_path}/objects", other_byte, index_folder=tmp_path / "index"))


def first_byte(data: bytes, name: str) -> int:
    return data[0]


def other_byte(data: bytes, name: str) -> int:
    return data[1]


def test_an_error_in_a_transform_is_raised_where_the_batch_is_asked_for(make_loader: Any) -> None:
    with pytest.raises(Exception, match=r"ValueError: sample \d is broken"):
        next(iter(make_loader(Scaled(broken))))
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
    parts = pack_batch(batch)
    file = write_batch(parts)
    assert os.fstat(file).st_size == size_bytes(parts)
    back = read_batch(file)
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
