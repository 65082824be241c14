"""The parts that need no job: manifests, endpoints, pace, learning rate, augmentation, order, watch."""

import csv
import datetime as dt
import math
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import ProcessGroup
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from stallwise.elastic import manifest, order
from stallwise.elastic.augment import Augmented, seed_of
from stallwise.elastic.clouds import Endpoint, endpoints
from stallwise.elastic.leaving import peer_lost
from stallwise.elastic.manifest import Fault, FileFact, Manifest
from stallwise.elastic.notice import Watcher
from stallwise.elastic.order import Resumable
from stallwise.elastic.pace import Interval, Pace, interval_of
from stallwise.elastic.place import Bucket, Folder, Scratch
from stallwise.elastic.rescale import factor, rescale
from stallwise.elastic.restoring import newest_whole
from stallwise.elastic.state import packed, random_state, set_random_state, share, unpacked
from stallwise.elastic.watching import Watch, Window
from stallwise.errors import InputError, UnknownNameError
from tests.elastic.test_losses import metadata


@pytest.fixture(scope="module")
def alone() -> Iterator[ProcessGroup]:
    """A group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def _checkpoint(folder: Path, step: int, content: bytes) -> None:
    place = Folder(folder)
    draft = place.draft(manifest.step_name(step))
    draft.mkdir()
    (draft / "__0_0.distcp").write_bytes(content)
    place.commit(draft, _written(draft, step))


def _written(draft: Path, step: int) -> Manifest:
    kind = manifest.algorithm()
    files = {path.name: manifest.fact_of(path, kind) for path in draft.iterdir()}
    return Manifest(format=manifest.FORMAT, step=step, saved_at=0.0, world=1, algorithm=kind, files=files, facts={})


@given(place=st.integers(0, 999), damage=st.sampled_from(["cut", "flip", "manifest", "gone"]))
def test_a_damaged_checkpoint_is_passed_over(
    place: int, damage: str, tmp_path_factory: pytest.TempPathFactory, alone: ProcessGroup
) -> None:
    folder = tmp_path_factory.mktemp("place")
    _checkpoint(folder, 10, b"older" * 200)
    _checkpoint(folder, 20, b"newer" * 200)
    file = folder / manifest.step_name(20) / ("manifest.json" if damage == "manifest" else "__0_0.distcp")
    data = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(data[:place])
    else:
        data[place % len(data)] ^= 1
        file.write_bytes(data)
    faults: list[Fault] = []
    found = newest_whole(Folder(folder), alone, faults.append)
    assert found is not None
    assert found[2].step == 10
    assert [fault.name for fault in faults] == [manifest.step_name(20)]


def test_each_rank_checks_its_part_of_a_folder(tmp_path: Path) -> None:
    """Two files, two ranks: of a damaged one the rank whose it is says so."""
    place = Folder(tmp_path)
    draft = place.draft(manifest.step_name(7))
    draft.mkdir()
    for name in ("__0_0.distcp", "__1_0.distcp"):
        (draft / name).write_bytes(b"12345")
    place.commit(draft, _written(draft, 7))
    (folder,) = (place.fetch(name) for name in place.names())
    (folder / "__1_0.distcp").write_bytes(b"1x345")
    manifest.check(folder, lambda files: place.mine(files, 0, 2))
    with pytest.raises(ValueError, match=r"__1_0\.distcp has another content"):
        manifest.check(folder, lambda files: place.mine(files, 1, 2))


def test_a_folder_that_is_not_shared_is_said(tmp_path: Path) -> None:
    place = Folder(tmp_path)
    draft = place.draft(manifest.step_name(7))
    draft.mkdir()
    (draft / "__0_0.distcp").write_bytes(b"12345")
    elsewhere = {"__1_0.distcp": FileFact(bytes=5, checksum="x")}
    written = _written(draft, 7)
    with pytest.raises(OSError, match="do all machines share it"):
        place.commit(draft, msgspec.structs.replace(written, files={**written.files, **elsewhere}))
    assert not place.names()


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    """Checkpoints 10 and 20 and a damaged 30, one below another session's folder, and one without a manifest."""
    root = tmp_path / "store"
    made = Bucket(f"file://{root}", scratch=tmp_path)
    for step in (10, 20, 30):
        _checkpoint(root, step, b"content" * 50)
    _checkpoint(root / "other", 40, b"content")
    inner = root / manifest.step_name(50) / "parts"
    inner.mkdir(parents=True)
    (inner / "__0_0.distcp").write_bytes(b"x")
    yield made
    made.close()


@pytest.mark.parametrize("damage", ["gone", "manifest", "flip"])
def test_a_damaged_bucket_is_passed_over(bucket: Bucket, damage: str, tmp_path: Path, alone: ProcessGroup) -> None:
    """And nothing that was fetched stays."""
    file = tmp_path / "store" / manifest.step_name(30) / (manifest.NAME if damage == "manifest" else "__0_0.distcp")
    data = file.read_bytes()
    file.unlink()
    if damage != "gone":
        file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    faults: list[Fault] = []
    found = newest_whole(bucket, alone, faults.append)
    assert found is not None
    assert found[2].step == 20
    assert [fault.name for fault in faults] == [manifest.step_name(30)]
    (scratch,) = tmp_path.glob("stallwise-scratch-*")
    assert {path.name for path in scratch.iterdir()} == {"lock", manifest.step_name(20)}
    bucket.release(found[0])
    assert {path.name for path in scratch.iterdir()} == {"lock"}
    bucket.close()
    assert not scratch.exists()


def test_tidying_a_bucket_leaves_other_sessions_alone(bucket: Bucket, tmp_path: Path) -> None:
    bucket.tidy()
    bucket.prune(2)
    bucket.make_room()
    assert bucket.names() == [manifest.step_name(step) for step in (30, 20)]
    left = {str(path.relative_to(tmp_path / "store")) for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert left == {
        f"{folder}{manifest.step_name(step)}/{name}"
        for folder, steps in (("", (20, 30)), ("other/", (40,)))
        for step in steps
        for name in (manifest.NAME, "__0_0.distcp")
    }


def test_scratch_of_the_dead_is_removed_and_of_the_living_is_not(tmp_path: Path) -> None:
    living = Scratch(tmp_path)
    code = "from stallwise.elastic.place import Scratch; from pathlib import Path; import os\n"
    code += f"print(Scratch(Path({str(tmp_path)!r})).path, flush=True); os.kill(os.getpid(), 9)"
    dead = Path(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
    assert dead.exists()
    other = Scratch(tmp_path)
    assert not dead.exists()
    assert living.path.exists()
    assert len({living.path, other.path}) == 2
    living.close()
    other.close()


def test_drafts_are_invisible_and_old_ones_go(tmp_path: Path) -> None:
    place = Folder(tmp_path)
    for step in (1, 2, 3):
        _checkpoint(tmp_path, step, b"x")
    place.draft("step-000000000009@0.1").mkdir()
    assert manifest.names(tmp_path) == [manifest.step_name(step) for step in (1, 2, 3)]
    place.prune(2)
    place.tidy()
    assert sorted(path.name for path in tmp_path.iterdir()) == [manifest.step_name(step) for step in (2, 3)]


def test_a_newer_format_says_so() -> None:
    new = Manifest(format=99, step=1, saved_at=0, world=1, algorithm="blake2b", files={}, facts={})
    with pytest.raises(ValueError, match="newer Stallwise"):
        manifest.decode(manifest.encode(new))
    assert FileFact(bytes=1, checksum="x") == FileFact(bytes=1, checksum="x")


NOW = dt.datetime(2026, 11, 15, 12, 0, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("said", "grace_s"),
    [
        ('{"action": "terminate", "time": "2026-11-15T12:01:30Z"}', 90.0),
        ('{"action": "terminate", "time": "1970-01-01T00:00:00Z"}', 0.0),
        ('{"action": "terminate", "time": "9999-12-31T23:59:59Z"}', 120.0),
        ('{"action": "stop", "time": "soon"}', 120.0),
        ('{"action": "terminate"}', 120.0),
        ("[]", None),
        ('{"action": "dance"}', None),
        ("<html>", None),
        ("\0" * 100_000, None),
        (None, None),
    ],
)
def test_aws_is_believed_as_far_as_it_can_be(said: str | None, grace_s: float | None) -> None:
    with metadata(lambda: said) as where:
        told = endpoints(where)[0].ask(NOW)
    assert (None if told is None else told.grace_s) == grace_s


def test_gcp_and_azure() -> None:
    events = '{"Events": [{"EventId": "a", "EventType": "Freeze"}, %s]}'
    preempt = '{"EventId": "b", "EventType": "Preempt", "NotBefore": "Sun, 15 Nov 2026 12:00:20 GMT"}'
    with metadata(lambda: "TRUE") as where:
        told = Endpoint("gcp", where.removeprefix("aws=")).ask(NOW)
        assert told is not None
        assert told.grace_s == 30
    with metadata(lambda: events % preempt) as where:
        told = Endpoint("azure", where.removeprefix("aws=")).ask(NOW)
        assert told is not None
        assert (told.mark, told.grace_s) == ("b", 20.0)
    with metadata(lambda: "FALSE") as where:
        assert Endpoint("gcp", where.removeprefix("aws=")).ask(NOW) is None
    with pytest.raises(UnknownNameError):
        endpoints("asw")
    assert endpoints("none") == ()


def test_an_endpoint_that_hangs_costs_nothing() -> None:
    """It accepts and never answers; the watcher's thread waits, nobody else."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []
        threading.Thread(target=lambda: held.append(server.accept()[0]), daemon=True).start()
        begin_s = time.monotonic()
        watcher = Watcher([Endpoint("aws", f"http://127.0.0.1:{server.getsockname()[1]}", 0.3)], every_s=0.05)
        assert watcher.notice is None
        assert time.monotonic() - begin_s < 0.2
        time.sleep(0.6)
        assert watcher.notice is None
        watcher.close()
        held[0].close()


@given(
    interval=st.integers(3, 60),
    write_s=st.floats(0.0, 5.0),
    step_s=st.floats(0.01, 1.0),
)
def test_no_more_than_an_interval_is_ever_unsaved(interval: int, write_s: float, step_s: float) -> None:
    """The session's own rule, with saves that take their time: where it would be passed, training waits."""
    now_s, step, flagged = 0.0, 0, False
    pace = Pace(Interval(steps=interval), 0, 0.0)
    visible, under_way = 0, None
    for _ in range(300):
        now_s, step = now_s + step_s, step + 1
        assert step - visible <= interval
        pace.stepped(step, now_s)
        if under_way is not None and now_s >= under_way[1]:
            visible, under_way = under_way[0], None
            pace.saved(visible, write_s)
        if flagged and under_way is None:
            pace.began(step, now_s, 0.01)
            under_way = step, now_s + write_s
        if under_way is not None and pace.overdue(step, now_s):
            now_s = max(now_s, under_way[1])
            visible, under_way = under_way[0], None
            pace.saved(visible, write_s)
        flagged = under_way is None and pace.due(step, now_s)


def test_interval_from_mean_life_and_plan(tmp_path: Path) -> None:
    pace = Pace(interval_of(None, None, 4 * 3600.0, None, 4), 0, 0.0)
    pace.began(1, 1.0, 0.5)
    assert pace.seconds == pytest.approx(math.sqrt(2 * 0.5 * 3600))
    plan = tmp_path / "plan.json"
    plan.write_text('{"interval": {"used_s": 312.5}}')
    assert interval_of(None, None, None, plan, 1).seconds == 312.5
    plan.write_text("{}")
    with pytest.raises(InputError, match="stallwise spot plan"):
        interval_of(None, None, None, plan, 1)
    with pytest.raises(InputError, match="said once"):
        interval_of(5, 5.0, None, None, 1)


def test_learning_rate_follows_the_workers() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    rescale(optimizer, scheduler, factor(4, 3, "linear"))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.3)
    weight.grad = torch.zeros(1)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.15)
    assert factor(4, 1, "sqrt") == 0.5
    assert factor(4, 1, "none") == 1.0


def test_augmentation_does_not_depend_on_what_was_drawn_before() -> None:
    data = Augmented(list(range(10)), lambda x: (x, torch.rand(1).item(), np.random.rand(), random.random()), seed=3)
    data.set_epoch(2)
    first = data[4]
    torch.rand(17)
    np.random.rand(17)
    random.random()
    before = random_state()
    assert data[4] == first
    assert packed(random_state()) == packed(before)
    data.set_epoch(3)
    assert data[4] != first
    assert len({seed_of(s, e, i) for s in range(9) for e in range(9) for i in range(9)}) == 9**3


def test_random_states_are_restored() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(1).item()

    kept = unpacked(packed(random_state()))
    first = draw()
    assert draw() != first
    set_random_state(kept)
    assert draw() == first


def test_the_epoch_reaches_augmentation_inside_other_datasets() -> None:
    parts = [Augmented(list(range(4)), lambda x: x + torch.rand(1).item(), seed=seed) for seed in range(3)]
    inside = ConcatDataset([Subset(parts[0], [1, 2]), StackDataset(parts[1], parts[2])])
    order.begin_epoch(DataLoader(inside), 5, None)
    assert [int(part._epoch[0]) for part in parts] == [5, 5, 5]


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[../gloo/transport/tcp/pair.cc:535] Connection closed by peer [127.0.0.1]:1"), True),
        (dist.DistStoreError("Timed out after 61 seconds waiting for clients. 1/2 clients joined."), True),
        (dist.DistNetworkError("The client socket has failed to connect"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("gloo"), False),
    ],
)
def test_what_says_that_a_peer_is_gone(error: Exception, lost: bool) -> None:
    assert peer_lost(error) == lost


@given(
    count=st.integers(1, 97),
    batch=st.integers(1, 5),
    worlds=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=4),
)
def test_every_sample_once_however_many_ranks(count: int, batch: int, worlds: list[tuple[int, int]]) -> None:
    """Each world trains a few steps and hands its position to the next; the last trains to the end."""
    data = TensorDataset(torch.arange(count))
    saved, seen, repeated = None, Counter[int](), 0
    for turn, (world, steps) in enumerate(worlds):
        rest = []
        for rank in range(world):
            sampler = Resumable(DistributedSampler(data, world, rank, seed=3))
            loader = DataLoader(data, batch_size=batch, sampler=sampler)
            order.begin_epoch(loader, 5, saved)
            batches = [[int(x) for x in one[0]] for one in loader]
            last = turn == len(worlds) - 1
            made = batches if last else batches[:steps]
            seen.update(x for one in made for x in one)
            rest.append(order.position(loader, 5, len(made), 0))
            repeated += sampler.padding if rank == 0 and len(made) == len(batches) else 0
        saved = rest[0]
    assert set(seen) == set(range(count))
    assert sum(seen.values()) <= count + repeated


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=30),
    world=st.integers(1, 6),
)
def test_each_tensor_is_one_ranks_to_write(sizes: list[int], world: int) -> None:
    whole = {f"model.{i}": torch.zeros(size) for i, size in enumerate(sizes)}
    parts = [share(whole, frozenset({"model.0"}), rank, world) for rank in range(world)]
    assert Counter(name for part in parts for name in part) == Counter(whole.keys())
    assert "model.0" in parts[0]
    loads = [sum(value.numel() for name, value in part.items() if name != "model.0") for part in parts]
    assert max(loads) - min(loads) <= max(sizes) + sizes[0]


def _windows(speeds: dict[int, float], repeats: int = 5) -> list[Window]:
    return [
        Window(at_s=0.0, workers=n, per_s=speed, step_s=n / speed)
        for n, speed in speeds.items()
        for _ in range(repeats)
    ]


def test_cm_dares_clusters(shared_data: Path) -> None:
    """spot-V8 with hysteresis, calibrated on the session itself: every saturated cluster, none of the near misses."""
    table: dict[tuple[str, str], dict[int, float]] = {}
    with (shared_data / "transient/cmdare/cluster_speed_by_workers.csv").open() as file:
        for row in csv.DictReader(file):
            if row["num_ps"] == "1":
                table.setdefault((row["gpu"], row["model"]), {})[int(row["workers"])] = float(row["steps_per_sec_mean"])
    alarms = {}
    for key, speeds in table.items():
        watch = Watch(warm_up=0)
        verdicts = [watch.judge(window) for window in _windows(dict(sorted(speeds.items())))]
        alarms[key] = {verdict.window.workers for verdict in verdicts if verdict.alarm}
    for (gpu, model), found in alarms.items():
        if gpu == "K80" and "ResNet" in model:
            assert not found, (gpu, model, found)
        if gpu == "P100":
            assert {6, 7, 8} <= found, (model, found)
    near_misses = {"ResNet-32": {1, 2}, "ShakeShake-small": {3}}
    assert not any(alarms["P100", model] & few for model, few in near_misses.items())


def test_an_alarm_needs_a_few_windows_and_ends_lower() -> None:
    watch = Watch(each=100.0, warm_up=0)

    def alarm(*speeds: float) -> bool:
        return [watch.judge(Window(at_s=0, workers=1, per_s=speed)).alarm for speed in speeds][-1]

    assert not alarm(100, 80, 80, 100, 80, 80)
    assert alarm(80)
    assert alarm(92, 92, 92, 92)  # under the upper threshold, above the lower
    assert not alarm(95, 95, 95)


@pytest.mark.parametrize(
    ("times", "expected", "gain"),
    [
        (((1.0, 20.0, 40.0, 5.0), (1.0, 40.0, 80.0, 1.0)), "slow worker", 2.0),
        (((60.0, 20.0, 40.0, 1.0), (55.0, 20.0, 40.0, 1.0)), "data", 2.0),
        (((1.0, 20.0, 40.0, 55.0), (1.0, 20.0, 40.0, 55.0)), "exchange", 2.0),
    ],
)
def test_the_bottleneck_by_the_ranks_times(times: tuple[tuple[float, ...], ...], expected: str, gain: float) -> None:
    watch = Watch(each=100.0, warm_up=0)
    window = Window(at_s=0, workers=2, per_s=100.0, step_s=0.12, times_ms=times)
    first, *_, last = [watch.judge(window) for _ in range(5)][-3:]
    assert first.alarm
    assert (first.advice is None) == (expected == "exchange")  # which is what is left when nothing else explains it
    advice = last.advice
    assert advice is not None
    assert advice.bottleneck == expected, advice
    assert advice.gain == pytest.approx(gain, rel=0.05)


def test_ranks_that_all_compute_slower_are_not_the_networks_fault() -> None:
    watch = Watch(warm_up=0)
    before = Window(at_s=0, workers=2, per_s=100.0, step_s=0.1, times_ms=((1.0, 30.0, 60.0, 5.0),) * 2)
    after = Window(at_s=0, workers=2, per_s=50.0, step_s=0.2, times_ms=((1.0, 60.0, 120.0, 5.0),) * 2)
    advice = [watch.judge(window) for window in [before] * 6 + [after] * 6][-1].advice
    assert advice is not None
    assert advice.bottleneck == "compute", advice
