"""MariaDB and slurmdbd for a Slurm of the tests: without accounting Slurm knows no operators."""

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.cluster import Cluster, free_port, require_slurm, slurm
from tests.system import require_packages

PACKAGES = ("mariadb-client-core", "mariadb-server-core", "slurmdbd", "slurm-wlm-mysql-plugin")
_START_S = 120.0


@dataclass(frozen=True)
class Accounts:
    """Where the database is."""

    folder: Path
    port: int
    password: str


@contextmanager
def accounted(folder: Path, *, more: Sequence[str] = (), **how: int) -> Iterator[Cluster]:
    """A cluster whose users have accounts; `root` is its administrator. `more` are lines of slurm.conf."""
    require_slurm()
    require_packages(*PACKAGES)
    folder.mkdir(parents=True, exist_ok=True)
    found = Accounts(folder, free_port(), secrets.token_hex(8))
    with _mariadb(found) as database:
        dbd = free_port()
        settings = [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={dbd}",
            "AccountingStoragePass={munge}/socket",
            "AccountingStorageEnforce=associations",
            *more,
        ]

        def before(cluster: Cluster) -> None:
            assert database.poll() is None
            _configure(cluster, found, dbd)
            cluster.start("slurmdbd", "-D", SLURM_CONF=str(cluster.folder / "slurm.conf"))
            until = time.monotonic() + _START_S
            while (asked := _manage(cluster, "show", "cluster")).returncode:
                assert time.monotonic() < until, asked.stderr + (cluster.folder / "slurmdbd.log").read_text()[-2000:]
                time.sleep(0.2)
            _manage(cluster, "add", "cluster", cluster.name)
            _manage(cluster, "add", "account", "all", f"Cluster={cluster.name}")
            _manage(cluster, "add", "user", "root", "Account=all")

        with slurm(folder, settings=settings, before=before, **how) as cluster:
            yield cluster


def add_user(cluster: Cluster, name: str, level: str = "None") -> None:
    """An account for a user of the system; `level` Operator is what a controller needs."""
    done = _manage(cluster, "add", "user", name, "Account=all", f"AdminLevel={level}")
    assert done.returncode == 0, done.stdout + done.stderr


def _manage(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    return cluster.run("sacctmgr", "--immediate", *words)


@contextmanager
def _mariadb(accounts: Accounts) -> Iterator[subprocess.Popen[bytes]]:
    data = accounts.folder / "mariadb"
    made = subprocess.run(
        ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db"],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    first = accounts.folder / "first.sql"
    first.write_text(
        f"create user 'slurm'@'127.0.0.1' identified by '{accounts.password}';\n"
        "grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1';\n"
    )
    options = [f"--datadir={data}", f"--socket={data}/socket", f"--port={accounts.port}", f"--init-file={first}"]
    quiet = ["--bind-address=127.0.0.1", "--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=64M"]
    with (accounts.folder / "mariadb.log").open("wb") as log:
        database = subprocess.Popen(
            ["mariadbd", "--no-defaults", "--user=root", *options, *quiet],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        _wait_for(accounts, database)
        yield database
    finally:
        database.send_signal(signal.SIGTERM)
        database.wait(timeout=30)


def _wait_for(accounts: Accounts, database: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", accounts.port)) == 0:
                return
        assert database.poll() is None, (accounts.folder / "mariadb.log").read_text()[-2000:]
        assert time.monotonic() < until
        time.sleep(0.1)


def _configure(cluster: Cluster, accounts: Accounts, port: int) -> None:
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={cluster.munge}/socket",
        "DbdHost=localhost",
        "DbdAddr=127.0.0.1",
        f"DbdPort={port}",
        "SlurmUser=root",
        f"LogFile={cluster.folder}/slurmdbd.log",
        f"PidFile={cluster.folder}/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=127.0.0.1",
        f"StoragePort={accounts.port}",
        "StorageUser=slurm",
        f"StoragePass={accounts.password}",
    ]
    path = cluster.folder / "slurmdbd.conf"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    os.chown(path, 0, 0)
