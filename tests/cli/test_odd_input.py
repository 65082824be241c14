"""Odd input: one sentence and a documented exit code, never a traceback and never a silent misreading."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from stallwise.cli.main import app
from tests.conftest import ROOT, Cli

RUN = str(ROOT / "examples/runs/images")
TRACES = str(ROOT / "examples/runs/traces")
SPOT = ("--price", "3", "--spot-price", "1", "--checkpoint-time", "5s", "--replays", "50")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("spot", "plan", RUN, "--steps", "1000", *SPOT, "--mean-life", "12"),
            "Type 12s, 12min or 12h. Option: --mean-life.",
        ),
        (("spot", "plan", RUN, "--steps", "9", *SPOT, "--mean-life", "9h", "--budget", "-3"), "Option: --budget."),
        (
            ("spot", "plan", RUN, "--steps", "100000000000", *SPOT, "--mean-life", "1h"),
            "too many to replay it 50 times. Plan a shorter job. Option: --steps.",
        ),
        (
            ("spot", "plan", RUN, "--steps", "1000000000", *SPOT, "--mean-life", "1h", "--replays", "100000"),
            "Option: --replays.",
        ),
        (("recommend", RUN, "--epochs", "9", "--deadline", "12"), "Type 12s, 12min or 12h. Option: --deadline."),
        (("recommend", RUN, "--epochs", "9", "--startup", "3"), "Option: --startup."),
        (("recommend", RUN, "--epochs", "9", "--confidence", "95"), "Type 95%. Option: --confidence."),
        (
            ("data", "plan", RUN, "--cache-size", "10", "--store-link", "1gbit"),
            "Type 10MB or 10GB. Option: --cache-size.",
        ),
        (("deflate", RUN, "--cpu", "50"), "Type 50% or 50cores."),
        (("deflate", "nope"), "nope is no run"),
        (("predict", RUN, "--gpu", "H100", "--epochs", "1", "--price", "-5"), "Option: --price."),
        (("predict", RUN, "--gpu", "H100", "--epochs", "1e300"), "Option: --epochs."),
        (("predict", RUN, "--gpu", "FOO"), "`stallwise catalog gpus` lists all."),
        (("predict", RUN, "--gpu", "H100", "--gpus", "-3"), "Option: --gpus."),
        (("whatif", RUN, "--network", "25", "--gpus", "4"), "Type 25gbit or 25GB/s. Option: --network."),
        (("whatif", RUN, "--storage", "2"), "Type 2x for that factor. Option: --storage."),
        (("whatif", RUN, "--overlap", "foo"), "is not one of 'none', 'fused'"),
        (("tune", "--max-time", "2", "train.py"), "Type 2s, 2min or 2h. Option: --max-time."),
        (("profile", "--max-time", "2", "train.py"), "Type 2s, 2min or 2h. Option: --max-time."),
        (("profile", "--gpu", "x.py"), "No such option: --gpu."),
        (("profile", "--max-tim", "3s", "x.py"), "Did you mean --max-time?"),
        (("profile", str(ROOT / "README.md")), "is no Python"),
        (("whatif", RUN, "--network", "1gbit", "--gpus", "1000000000"), "from 1 to 1,000,000"),
        (("deflate", RUN, "--again", "nan"), "Option: --again."),
        (("deflate", RUN, "--gpu-share", "50%"), "The job computes on CPUs: take cores instead."),
        (("predict", RUN, "--gpu", "H100", "--evaluation", "12"), "Option: --evaluation."),
        (("catalog", "update", "--cloud", "\x1b[31m"), "is no name of a cloud"),
        (("probe", "--nproc-per-node", "2", "--wait", "3"), "Type 3s, 3min or 3h. Option: --wait."),
    ],
    ids=lambda value: " ".join(value[:1] + value[2:]) if isinstance(value, tuple) else None,
)
def test_what_could_be_misread_is_refused(ask: Cli, words: tuple[str, ...], sentence: str) -> None:
    done = ask(*words, code=2)
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_without_its_steps_says_what_is_missing(ask: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    (run / "steps.npz").unlink()
    assert "its table of steps is missing" in ask("report", str(run), code=2).stderr


def test_batches_are_samples_or_factors(ask: Cli) -> None:
    link = ("--gpus", "2", "--no-curve", "--json")
    samples, factor = (ask("whatif", RUN, *link, "--batch", text).stdout for text in ("32", "2x"))
    assert samples == factor, "the run has 16 samples per rank"


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-80GB"])
def test_gpus_by_the_names_that_torch_prints(ask: Cli, name: str) -> None:
    assert ask("predict", RUN, "--gpu", name, "--gpus", "1").stdout


def test_a_run_that_may_not_be_written_is_reported(ask: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    before = sorted(path.name for path in run.iterdir())
    ask("report", str(run))
    assert sorted(path.name for path in run.iterdir()) == before


# What each command is given beside the drawn option. Where it would run a script, serve, wait or act, that cannot
# begin: there is no such script, folder, trace or address.
_GIVEN: dict[str, tuple[str, ...]] = {
    "profile": ("gone.py",),
    "report": (RUN,),
    "tune": ("gone.py",),
    "compare": (RUN, RUN),
    "ui": ("/dev/null",),
    "doctor": (),
    "whatif": (RUN, "--no-curve"),
    "predict": (RUN, "--gpu=H100"),
    "recommend": (RUN, "--samples=1e6", "--gpu=T4"),
    "instances": ("--gpu=T4", "--networks=resnet18"),
    "catalog gpus": (),
    "catalog instances": (),
    "catalog offers": (),
    "catalog show": ("T4",),
    "catalog import": ("gone.csv",),
    "catalog update": ("--from=http://127.0.0.1:9",),
    "probe": ("--nproc-per-node=1",),
    "characterize": ("--compare=gone.json",),
    "data warm": ("file:///gone", "--cache=cache"),
    "data verify": ("--cache=gone",),
    "data stat": (RUN,),
    "data bench": ("file:///gone",),
    "data plan": (RUN, "--cache-size=1GB", "--store-link=1gbit", "--latency=9ms", "--sample-size=1MB", "--store=s3"),
    "trace import": ("gone.json", "--out=new"),
    "trace show": (TRACES,),
    "trace export": (RUN, "--out=trace.json"),
    "spot fit": ("K80/us-east1",),
    "spot plan": (RUN, "--steps=1000", "--mean-life=9h", *SPOT),
    "spot chaos": ("gone.csv",),
    "spot watch": ("gone", "--once"),
    "fleet run": ("--machines=2", "gone.py"),
    "fleet status": ("gone",),
    "fleet logs": ("gone",),
    "fleet resize": ("gone", "2"),
    "fleet down": ("gone",),
    "fleet rehearse": ("--machines=2", "--work=1h"),
    "ledger": ("--ledger=gone.sqlite",),
    "simulate": ("gone.csv", "--cluster=racks=1,machines=1,gpus=4"),
    "overcommit": ("gone.csv",),
    "schedule": ("--partition=gone",),
    "submit": ("gone.sh",),
    "queue": ("--state=gone",),
    "deflate": (RUN,),
    "study": ("--show", "--out=gone"),
    "run join": ("gone",),
}
# By the kind of value: what no option of the kind takes. The last three are no values of any kind but text.
_NEVER = ("\x1b[31m", "é" * 50, "a=b,,")
_REFUSED: dict[str, tuple[str, ...]] = {
    "TIME": ("", "-1s", "64", "nan", "1e400s", "5%", "2x", "12", "12GB", *_NEVER),
    "SIZE": ("", "-1GB", "64", "nan", "1e400GB", "5%", "2x", "12h", *_NEVER),
    "RATE": ("", "-1gbit", "64", "nan", "inf", "5%", "2x", "12h", *_NEVER),
    "PERCENT": ("", "-1%", "64", "nan", "2x", "12h", *_NEVER),
    "Nx": ("", "-1x", "64", "nanx", "0x", "5%", "12h", *_NEVER),
    "USD": ("", "-1", "nan", "inf", "5%", "2x", "12h", *_NEVER),
    "N": ("", "nan", "inf", "1e400", "5%", "2x", "12h", "1,2", *_NEVER),
    "choice": ("", "64", "5%", *_NEVER),
}
_ANY = ("", "-1", "0", "nan", "1e400", "64", "5%", "2x", "12h", "1,2,,3", "/", "gone", *_NEVER)
_FILES = ("--html", "--best-buckets", "--skypilot", "--slurm", "--csv", "--gauges", "--out")
_DRAWS = int(os.environ.get("STALLWISE_DRAWS", "120"))


def _leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _leaves(inner, (*path, name))
    else:
        yield " ".join(path), command


def _kind(option: Any) -> str:
    """The kind of value that an option takes, as its help says."""
    return "choice" if option.type_descriptor.choices is not None else str(option.metavar)


def test_the_generator_knows_every_command() -> None:
    assert set(_GIVEN) == set(dict(_leaves(typer.main.get_command(app))))


def test_drawn_values_end_as_documented(ask: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any option of any command with an odd value: a documented exit code, and what cannot be meant is refused."""
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm, no browser
    commands = dict(_leaves(typer.main.get_command(app)))
    draw = random.Random(int(os.environ.get("STALLWISE_SEED", "29")))
    wrong = []
    for _ in range(_DRAWS):
        path = draw.choice(sorted(commands))
        options = [one for one in commands[path].params if one.param_type_name == "option" and not one.is_flag]
        if not options:
            continue
        option = draw.choice(options)
        name, kind = max(option.opts, key=len), _kind(option)
        if name in _FILES:
            continue
        refused = _REFUSED.get(kind, ())
        value = draw.choice(refused or _ANY)
        given = [word for word in _GIVEN[path] if not word.startswith(f"{name}=")]
        # Last, so that it counts; before the script, whose own words follow it.
        own_words = commands[path].context_settings.get("allow_interspersed_args") is False
        odd = f"{name}={value}"
        words = [*path.split(), *((odd, *given) if own_words else (*given, odd))]
        done = _end(ask, words)
        told = f"{words}: exit {done.returncode}, {done.stderr}"
        printed = done.stdout + done.stderr
        documented = done.returncode in ((2,) if refused else (0, 1, 2, 3))
        if not documented or "Traceback" in printed or "\x1b" in printed:
            wrong.append(told)
    assert not wrong, "\n".join(wrong)


def _end(ask: Cli, words: list[str]) -> Any:
    try:
        return ask(*words)
    except AssertionError as error:
        text = str(error)
        code = int(text.partition("exit ")[2].split()[0])
        if code == 0:
            raise
        return type("Ended", (), {"returncode": code, "stdout": "", "stderr": text})
