"""The stand-in job of chaos: real ranks, exchange and checkpoints; only the accelerator is replaced by sleeping.

On cores that ranks share, computing does not scale with machines, so it could not show what losing one costs. Steps
that sleep do. The job ends when all ranks together have trained on a number of samples.
"""

import argparse
from collections.abc import Iterator, Sequence

import torch
from torch.nn.parallel import DistributedDataParallel

from stallwise import elastic
from stallwise.machine.study_rank import SleepingNetwork
from stallwise.workload.families import Network, Tensor


def sleeper(step_s: float, elements: int) -> SleepingNetwork:
    """Return a network of one layer whose forward and backward pass take a step's time."""
    layer = Tensor(name="weight", elements=elements, macs=1.0, layer=0)
    # Backward takes twice as long as forward.
    return SleepingNetwork(Network(name="stand-in", family="stand-in", tensors=(layer,)), scale=1, s_per_mac=step_s / 3)


class _Batches:
    """One sample per rank and step, until all have made `samples` together."""

    batch_size = 1

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self.session: elastic.Session | None = None

    def state_dict(self) -> dict[str, int]:
        """Return nothing: all samples are equal."""
        return {}

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.session is not None and self.session.samples < self._samples:
            yield torch.ones(1, requires_grad=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train until all ranks together have seen the given number of samples."""
    parser = argparse.ArgumentParser(prog="standin")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--step", type=float, required=True)
    parser.add_argument("--interval", type=float, required=True)
    parser.add_argument("--elements", type=int, default=100_000)
    options = parser.parse_args(arguments)
    elastic.join()
    torch.set_num_threads(1)
    model = DistributedDataParallel(sleeper(options.step, options.elements))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = _Batches(options.samples)
    with elastic.Session(model, optimizer, folder=options.folder, interval_s=options.interval) as session:
        batches.session = session
        for batch in session.steps(batches):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
