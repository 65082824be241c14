"""Where the time of a DDP step goes beyond compute and exchange: `python -m validation.exchange_parts`.

Every host of `make reality`'s network takes turns of a few steps: without DDP (all hosts at once, so that they share
the machine's cores alike), with DDP, and all-reduces of the buckets' sizes as a probe sends them. CPU time of the
training thread tells DDP's own work; the moments at which buckets leave tell how long the first rank waits for the last
one; from the last one's to the end is the exchange itself. Needs root; a minute each.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.record.truth.hosts import Host, hosts_at_a_switch, shape
from tests.record.truth.job import Accelerated
from validation.reality import everywhere, world

SETTINGS = ("2000:2:8", "1000:2:32", "2000:4:32")
LAYERS, COMPUTE_S = 16, 0.240
_TURNS, _STEPS = 4, 5


def main() -> None:
    """Make the hosts, run every setting, print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="validation.exchange_parts", description=__doc__)
    parser.add_argument("settings", nargs="*", default=SETTINGS, metavar="RATE:HOSTS:MB", help="Mb/s, hosts, gradients")
    parser.add_argument("--rank", type=int, metavar="PARAMETERS", help="be one host's process")
    options = parser.parse_args()
    if options.rank:
        run_rank(options.rank)
        return
    rows = [tuple(int(part) for part in setting.split(":")) for setting in options.settings]
    print(f"Milliseconds, medians; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start.\n")
    with hosts_at_a_switch(max(count for _, count, _ in rows)) as hosts:
        for number, (rate, count, megabytes) in enumerate(rows):
            shape(hosts, rate)
            found = launch(hosts[:count], megabytes)
            if not number:
                print(f"| Mb/s | hosts | MB | {' | '.join(found)} |\n|{' --- |' * (3 + len(found))}")
            print(
                f"| {rate} | {count} | {megabytes} | {' | '.join(f'{ms:.1f}' for ms in found.values())} |", flush=True
            )


def launch(hosts: Sequence[Host], megabytes: int) -> dict[str, float]:
    """Run the ranks; what the first one found, in milliseconds."""
    rank = ("-m", "validation.exchange_parts", "--rank", str(megabytes * 250_000))
    words = ("-m", "torch.distributed.run", *world(hosts), *rank)
    found: dict[str, float] = json.loads(everywhere(hosts, *words).strip().splitlines()[-1])
    return found


class Rank:
    """One host's job, with DDP and without."""

    def __init__(self, parameters: int) -> None:
        self.moments: dict[str, float] = {}
        self.sizes: dict[int, int] = {}
        made = (Accelerated(LAYERS, parameters, COMPUTE_S) for _ in range(2))
        plain, model = next(made), DistributedDataParallel(next(made))
        model.register_comm_hook(None, self._exchange)
        self.models: dict[str, nn.Module] = {"plain": plain, "ddp": model}
        self.optimizers = {name: torch.optim.SGD(one.parameters(), lr=1e-6) for name, one in self.models.items()}

    def _exchange(self, _: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        number, gradients = bucket.index(), bucket.buffer()
        self.sizes[number] = gradients.numel() * gradients.element_size()
        began_s = time.thread_time()
        gradients.div_(dist.get_world_size())  # without a hook, a part of the copy
        self.moments["hook_cpu"] = self.moments.get("hook_cpu", 0.0) + time.thread_time() - began_s
        if self.sizes[number] == max(self.sizes.values()):
            self.moments["sent"] = time.perf_counter()

        def done(future: torch.futures.Future[Any]) -> torch.Tensor:
            self.moments["end"] = time.perf_counter()
            value: torch.Tensor = future.value()[0]
            return value

        return dist.all_reduce(gradients, async_op=True).get_future().then(done)

    def step(self, name: str) -> dict[str, float]:
        """One step and where its time went."""
        self.moments.clear()
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        loss = self.models[name](torch.ones(8, 4)).sum()
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()
        cpu_s = time.thread_time() - cpu_s - self.moments.get("hook_cpu", 0.0)
        return {"step": time.perf_counter() - began_s, "cpu": cpu_s} | self.moments


def run_rank(parameters: int) -> None:
    """Take turns, and print on the first rank what the parts took."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = Rank(parameters)
    for _ in range(3):  # DDP lays out its buckets anew after the first step
        for name in rank.models:
            rank.step(name)
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in rank.models}
    probed: list[float] = []
    largest = max(rank.sizes, key=lambda number: rank.sizes[number])
    late = [torch.zeros(size // 4) for number, size in rank.sizes.items() if number >= largest]
    for _ in range(_TURNS):
        for name in rank.models:
            dist.barrier()
            steps[name] += [rank.step(name) for _ in range(_STEPS)][1:]
        dist.barrier()
        began_s = time.perf_counter()
        for gradients in late:
            dist.all_reduce(gradients)
        probed.append(time.perf_counter() - began_s)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [one["sent"] for one in steps["ddp"]])
    if dist.get_rank() == 0:
        print(json.dumps(_parts(steps, everyone, probed)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _parts(steps: dict[str, list[dict[str, float]]], sent: list[list[float]], probed: list[float]) -> dict[str, float]:
    """Clocks of all hosts are one machine's."""
    starts = list(zip(*sent, strict=True))
    took_s = {
        "step without DDP": [one["step"] for one in steps["plain"]],
        "step with DDP": [one["step"] for one in steps["ddp"]],
        "CPU without DDP": [one["cpu"] for one in steps["plain"]],
        "CPU with DDP": [one["cpu"] for one in steps["ddp"]],
        "wait for the last rank": [max(row) - statistics.mean(row) for row in starts],
        "exchange from then": [one["end"] - max(row) for one, row in zip(steps["ddp"], starts, strict=True)],
        "exchange alone": probed,
    }
    return {name: 1e3 * statistics.median(values) for name, values in took_s.items()}


if __name__ == "__main__":
    main()
