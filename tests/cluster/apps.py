"""An application made here, as Pollux' are measured."""

import numpy as np

from stallwise.cluster.speed._tables import App


def app(name: str = "toy", compute_s: float = 0.1, sync_s: float = 0.02, epochs: int = 3) -> App:
    """A step takes as long as its batch per GPU says, and a bit for every machine; gradients have no noise to spare."""
    rows = {
        text: [
            {"local_bsz": float(size), "step_time": compute_s * size / 8 + sync_s * (len(text) - 1) + 0.001,
             "sync_time": sync_s * (len(text) - 1)}
            for size in (1, 8, 32)
        ]
        for text in ("1", "2", "4", "44", "444", "4444")
    }  # fmt: skip
    points = [
        (len(text), sum(map(int, text)), row["local_bsz"], row["step_time"], row["sync_time"])
        for text, found in rows.items()
        for row in found
    ]
    progress = {
        size: [
            {"progress": 100.0 * (epoch + 1), "iteration": 100.0 * (epoch + 1) * 8 / size, "grad_sqr": 1e-9,
             "grad_var": 1.0}
            for epoch in range(epochs)
        ]
        for size in (8, 64)
    }  # fmt: skip
    return App(name, rows, np.array(points), progress, epochs=epochs, largest_local=32)
