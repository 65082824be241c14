"""Recording a live training job: launching it, and everything that runs inside its processes.

    launch         starts a job under the recorder, waits for its end and joins its record (torchrun or one process)
    api            inside training code: `profiling`, `step`, `batches`
    join           turns what the ranks and their loader workers wrote into one run
    rank/          one rank: entry point, user script, environment, recorder, schedule of phases, steps, watchdog
    ablate/        what a phase takes away: batches (loader), exchange (ddp, fsdp); and what protects the user's work
                   (snapshot of the training state, scratch folder for files)
    observe/       what is only watched: loader workers, layers, features of the model, collectives, torch's own trace
    frameworks/    callbacks for Lightning and Hugging Face, ranks that a framework starts
    node           CPUs, memory and GPUs of this machine
    processes      ending processes with their parent, and all that a job has started

`python -m stallwise.record train.py` is one rank of a profiled job, under any launcher.
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.record.api import batches, profiling, step
    from stallwise.record.join import join_parts
    from stallwise.record.launch import Launch, ProfileOutcome, ProfileProgress, TorchrunOptions, run_profile
    from stallwise.record.rank.environment import RecordSettings

__all__ = [
    "Launch",
    "ProfileOutcome",
    "ProfileProgress",
    "RecordSettings",
    "TorchrunOptions",
    "batches",
    "join_parts",
    "profiling",
    "run_profile",
    "step",
]

__getattr__ = loader(
    __name__,
    {
        "Launch": "launch",
        "ProfileOutcome": "launch",
        "ProfileProgress": "launch",
        "RecordSettings": "rank.environment",
        "TorchrunOptions": "launch",
        "batches": "api",
        "join_parts": "join",
        "profiling": "api",
        "run_profile": "launch",
        "step": "api",
    },
)
