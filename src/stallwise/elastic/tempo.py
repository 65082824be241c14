"""Where a step's time goes on each rank, cheaply and all the time: what `stallwise spot watch` lives on.

Waiting for data is measured around the loader. Forward, backward and exchange are DDP's own timers (CUDA events on a
GPU), which it reads every hundred steps; a hundred long steps are too long, so here it is about once a second. Ranks
exchange them with the step's agreement; rank 0 writes one line a second to the diary.
"""

import time
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stallwise.elastic.agreement import Word
from stallwise.elastic.events import Diary

_EVERY_S = 1.0
_ASK_S = 0.25
"""What DDP has read is late by up to a second already; asking costs microseconds."""
_NS_PER_MS = 1e6
_DDP_EVERY = 100


class Tempo:
    """One rank's times: data, forward, backward, exchange; means since the last line, in milliseconds."""

    def __init__(self, model: nn.Module) -> None:
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        self._begun_s = self._data_s = 0.0
        self._steps = 0
        self._data_ms = 0.0
        self._asked_s = 0.0
        self._ddp_ms = (0.0, 0.0, 0.0)
        self._written = (time.monotonic(), 0, 0)
        self._every = _DDP_EVERY

    @property
    def times_ms(self) -> tuple[float, float, float, float]:
        """As the agreement carries them."""
        now_s = time.monotonic()
        if now_s - self._asked_s >= _ASK_S:
            self._asked_s, self._ddp_ms = now_s, self._ddp_times_ms()
        return self._data_ms, *self._ddp_ms

    def _ddp_times_ms(self) -> tuple[float, float, float]:
        said: dict[str, Any] = self._ddp._get_ddp_logging_data() if self._ddp else {}  # type: ignore[no-untyped-call]

        def of(name: str) -> float:
            return max(0.0, float(said.get(name, 0)) / _NS_PER_MS)

        exchange = of("backward_comm_time") - of("backward_compute_comm_overlap_time")
        return of("forward_compute_time"), of("backward_compute_time"), max(0.0, exchange)

    def _sample(self, every: int) -> None:
        """DDP waits for a GPU when it reads its events: no more often than needed, and no less often than it does."""
        every = max(1, min(every, _DDP_EVERY))
        if self._ddp is not None and not self._every / 2 < every < self._every * 2:
            self._ddp._set_ddp_runtime_logging_sample_rate(every)  # type: ignore[no-untyped-call]
            self._every = every

    def begin(self) -> None:
        """The loop asks for a batch."""
        self._begun_s = time.perf_counter()

    def fetched(self) -> None:
        """And has it."""
        waited_ms = 1e3 * (time.perf_counter() - self._begun_s)
        self._data_ms = waited_ms if self._steps == 0 else 0.9 * self._data_ms + 0.1 * waited_ms
        self._steps += 1

    def stepped(self, word: Word, diary: Diary, step: int, world: int, samples: int) -> None:
        """Once a second what all ranks said."""
        now_s = time.monotonic()
        then_s, steps, trained = self._written
        if steps == 0:
            self._written = now_s, step, samples
        elif now_s - then_s >= _EVERY_S and word.times_ms:
            step_s = (now_s - then_s) / max(1, step - steps)
            rate = (samples - trained) / (now_s - then_s)
            self._sample(round(_EVERY_S / step_s))
            diary.write("pace", step=step, world=world, step_s=step_s, samples_per_s=rate, times_ms=word.times_ms)
            self._written = now_s, step, samples
