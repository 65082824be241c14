"""Trains, and handles files in every way that scripts do, over files that are already there. Checks what it sees.

`children` also uses other programs, C code and libraries that open files themselves; `end` stops afterwards.
"""

# Written as people write it: every way of touching files counts here.
# ruff: noqa: PTH100, PTH101, PTH103, PTH104, PTH105, PTH107, PTH108, PTH110, PTH112, PTH115, PTH116, PTH123, PTH207
# ruff: noqa: PTH208, PTH211, SIM115, S301

import glob
import logging
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader


def rotate_checkpoints() -> None:
    torch.save({"step": 1}, "last.pt")
    shutil.copy2("last.pt", "best.pt")
    assert torch.load("best.pt") == {"step": 1}
    if os.path.lexists("latest.pt"):
        os.remove("latest.pt")
    os.symlink(os.path.abspath("best.pt"), "latest.pt")
    assert torch.load("latest.pt") == {"step": 1}
    assert os.readlink("latest.pt") == os.path.abspath("best.pt")
    os.unlink("linked.pt")
    os.link("last.pt", "linked.pt")
    assert torch.load("linked.pt") == {"step": 1}
    torch.save({"step": 2}, "linked.pt")
    assert torch.load("linked.pt") == {"step": 2}
    torch.save({"step": 3}, "step_3.pt")
    newest = max(glob.glob("step_*.pt"), key=os.path.getmtime)
    assert newest == "step_3.pt", newest
    assert {"last.pt", "best.pt", "step_3.pt"} <= set(os.listdir("."))
    assert {entry.name for entry in os.scandir(".")} == set(os.listdir("."))
    assert "step_3.pt" in {path.name for path in Path().iterdir()}
    os.rename(src="step_3.pt", dst="step_3.old.pt")
    os.replace(src="step_3.old.pt", dst="kept.pt")
    assert torch.load("kept.pt") == {"step": 3}
    assert not os.path.exists("step_3.pt")
    assert "step_3.pt" not in os.listdir(b".".decode())


def change_old_files() -> None:
    descriptor = os.open("best.json", os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, b"{}")
    os.close(descriptor)
    assert open("best.json").read() == "{}"
    os.truncate("cut.txt", 3)
    assert open("cut.txt").read() == "old"
    with open(b"bytes.txt", "wb") as file:
        file.write(b"script")
    assert Path("bytes.txt").read_bytes() == b"script"
    os.symlink("behind.txt", "link.txt", False)
    Path("link.txt").write_text("script")
    assert Path("behind.txt").read_text() == "script"
    Path("into").mkdir()
    Path("into/mine.txt").write_text("script")
    handler = logging.FileHandler("train.log")
    logging.getLogger("job").addHandler(handler)
    logging.getLogger("job").warning("a line")
    assert Path("train.log").read_text().splitlines() == ["old train.log", "a line"]
    np.savetxt("hist.txt", np.ones(3))
    assert np.loadtxt("hist.txt").tolist() == [1, 1, 1]
    np.save("loss.npy", np.ones(2))
    with sqlite3.connect("runs.db") as database:
        database.execute("insert into runs values (2)")
        assert database.execute("select count(*) from runs").fetchone() == (2,)
    database.close()
    shutil.move("moved.txt", "moved.old.txt")
    assert Path("moved.old.txt").read_text() == "old moved.txt"
    assert not os.path.exists("moved.txt")
    os.chmod("private.txt", 0o600)
    with open("private.txt", "a") as file:
        file.write("+")
    assert os.stat("private.txt").st_mode & 0o777 == 0o600
    shutil.rmtree("old_folder")
    assert not os.path.isdir("old_folder")
    os.makedirs("old_folder")
    assert os.listdir("old_folder") == []


def pickle_functions() -> None:
    functions = (open, torch.save, torch.load, os.remove, os.rename, os.replace, os.open, os.listdir, sqlite3.connect)
    for function in functions:
        assert pickle.loads(pickle.dumps(function)) is function, function


def use_other_programs() -> None:
    torch.save({"step": 4}, "child.pt")
    subprocess.run(["cp", "child.pt", "copied_by_child.pt"], check=True)
    assert torch.load("copied_by_child.pt") == {"step": 4}
    subprocess.run([sys.executable, "-c", "open('by_child.txt', 'w').write('x')"], check=True)
    assert Path("by_child.txt").read_text() == "x"
    subprocess.run(["sh", "-c", "echo changed > behind.txt; rm best.json"], check=True)
    assert not Path("best.json").exists()
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(b"temporary")
    os.replace(file.name, "from_tmp.bin")
    os.rename("renamed_folder", "renamed_folder.old")
    assert Path("renamed_folder.old/inside.txt").read_text() == "old renamed_folder/inside.txt"
    torch.from_file("mapped.bin", shared=True, size=4, dtype=torch.uint8).fill_(7)
    assert Path("mapped.bin").read_bytes() == b"\7\7\7\7"


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, batch in enumerate(DataLoader(torch.ones(100_000, 4), batch_size=2, num_workers=1)):
        optimizer.zero_grad()
        model(batch).mean().backward()
        time.sleep(0.005)
        optimizer.step()
        if step == 3:
            rotate_checkpoints()
            change_old_files()
            pickle_functions()
            if "children" in sys.argv:
                use_other_programs()
            print("all is as the script expects", flush=True)
            if "end" in sys.argv:
                sys.exit(7)


if __name__ == "__main__":
    main()
