"""README as a reader follows it: every command is run, in its order, with a script, a run and traces like theirs."""

import re
import shlex
import shutil
import tomllib
from pathlib import Path

from docsite.pictures import stale
from tests.conftest import ROOT, Cli, needs
from tests.docs.console import shown_commands

README = (ROOT / "README.md").read_text(encoding="utf-8")
# Measuring takes minutes where nobody says less.
SHORTER = {"profile": "3s", "tune": "15s", "probe": "2s"}
# Here is no Slurm whose partition could be scheduled; tests/slurm has one.
CODES = {"schedule": 2}
TRAIN = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.0005)  # a step takes as long on any machine
        return torch.full((64,), float(index)), index % 10

torch.set_num_threads(1)
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10_000):
    for numbers, labels in DataLoader(Numbers(), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(numbers), labels).backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
"""


def commands() -> list[list[str]]:
    """The words of every command: indented lines, rows of tables, and code in sentences that has arguments."""
    lines = re.findall(r"^ {4}((?:stallwise|pip|make) .*)$", README, re.MULTILINE)
    inline = re.findall(r"`((?:stallwise|pip|make) [^`…]*)`", README)
    return [shlex.split(line, comments=True) for line in [*lines, *inline]]


def test_every_command_works_as_it_is_printed(cli: Cli, ask: Cli, tmp_path: Path) -> None:
    needs("torch")
    (tmp_path / "train.py").write_text(TRAIN)
    shutil.copyfile(ROOT / "examples/models/llama-70b.json", tmp_path / "config.json")
    (tmp_path / "train.sh").write_text("#!/bin/bash\n#SBATCH --nodes=1\nsrun python train.py\n")
    jobs = [f"j{n},{60 * n},{1 << (n % 4)},{300 + 97 * n % 3600}" for n in range(40)]
    (tmp_path / "jobs.csv").write_text("\n".join(["job_id,submit_s,gpus,duration_s", *jobs]) + "\n")
    machines = [
        f"m{n},{300 * n},{300 * n + 7200},{1 << (n % 4)},{2 << (n % 4)},{'' if n % 2 else 0.3}" for n in range(60)
    ]
    header = "machine_id,start_s,end_s,cpu,memory_gib,priority"
    (tmp_path / "machines.csv").write_text("\n".join([header, *machines]) + "\n")
    run = str(ROOT / "examples/runs/images")
    for name, *words in commands():
        if name != "stallwise":
            continue
        limit = ["--max-time", SHORTER[words[0]]] if words[0] in SHORTER else []
        given = [words[0], *limit, *(run if word == "RUN" else word for word in words[1:])]
        done = (cli if limit else ask)(*given, code=CODES.get(words[0], 0))
        printed = done.stdout + done.stderr
        assert printed.strip(), words
        assert not re.search(r"\b(nan|None)\b", printed), words
    assert not (tmp_path / "model.pt").exists(), "what a profiled job writes is thrown away"
    for made in ("report.html", "links.json", "task.yaml"):
        assert (tmp_path / made).stat().st_size, made


def test_what_is_not_the_program_exists_too() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = [words for words in commands() if words[0] != "stallwise"]
    assert ["pip", *("install", project["name"])] in named
    assert {words[1] for words in named if words[0] == "make"} >= {"demo", "test", "truth"}
    assert {words[1] for words in named if words[0] == "make"} <= targets


def test_the_commands_are_found() -> None:
    assert {words[1] for words in commands() if words[0] == "stallwise"} >= {
        "profile", "report", "tune", "compare", "whatif", "predict", "probe", "recommend", "catalog", "spot",
        "simulate", "overcommit", "submit", "schedule",
    }  # fmt: skip


def test_readme_is_the_same_on_every_machine() -> None:
    """What is measured stands in a run that comes with the source, not in a block that somebody ran."""
    assert shown_commands(ROOT / "README.md") == []


def test_pictures_show_what_reports_say_now() -> None:
    needs("PIL")
    assert stale() == [], "make pictures"


def test_links_of_readme_and_its_like_lead_somewhere() -> None:
    pages = (
        "README.md",
        "AGENTS.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "skills/stallwise/SKILL.md",
        "examples/runs/README.md",
    )
    for page in pages:
        text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
        for href in re.findall(r"\]\(([^()\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", text):
            path = (href[0] or href[1]).partition("#")[0]
            assert re.match(r"[a-z]+:", path) or (ROOT / page).parent.joinpath(path).exists(), f"{page}: {path}"
