"""One row in each of two PostgreSQL databases on two servers: txpool, by hand, and Narayana with Agroal over pgJDBC.

All three in one run, round by round, from 1, 8 and 32 threads; Narayana's object store, the decision log and the file
of by hand are in one folder, on a disk and then in memory. Narayana's process stays for the whole run, and has a
thousand transactions and more to warm up. It needs a JDK (17 or later) and Maven, which fetches the libraries that
`narayana/pom.xml` names.

    python tests/benchmarks/bench_narayana.py [--place disk|memory]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.report import compare
from tests.benchmarks.running import (
    THREADS,
    TRANSACTIONS,
    Place,
    Servers,
    by_hand,
    chosen_places,
    datasources,
    throughput,
    with_txpool,
)
from txpool.demo.server import EmbeddedPostgres

_SOURCES = Path(__file__).with_name("narayana")
_WARM_UP = 5_000
_JOURNAL = "com.arjuna.ats.internal.arjuna.objectstore.hornetq.HornetqObjectStoreAdaptor"


class Narayana:
    """The process that runs Narayana's transactions."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def throughput(self, threads: int, transactions: int = TRANSACTIONS) -> float:
        """Transactions a second, from so many threads."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{threads} {transactions}\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise RuntimeError(f"Narayana's process has ended with exit code {self._process.wait()}")
        return transactions / float(answer)


def libraries_in(folder: Path) -> Path:
    """The folder into which Maven has copied the libraries."""
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(_SOURCES / "pom.xml"), "dependency:copy-dependencies"]
    subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True)
    return folder


@contextmanager
def narayana_process(
    libraries: Path,
    store: Path,
    *urls: str,
    threads: int = max(THREADS),
    passwords: Sequence[str] = (),
    journal: bool = False,
) -> Iterator[Narayana]:
    """Narayana with its object store in this folder, as files or as a journal; without urls, over no database."""
    command = ["java", "-cp", f"{libraries}/*"]
    if journal:
        command += [f"-DObjectStoreEnvironmentBean.objectStoreType={_JOURNAL}"]
        command += [f"-DHornetqJournalEnvironmentBean.storeDir={store}-journal"]
    command += [str(_SOURCES / "TwoDatabases.java"), str(store), str(threads), EmbeddedPostgres.user, *urls]
    secrets = {f"PASSWORD_{number}": password for number, password in enumerate(passwords)}
    with subprocess.Popen(
        command, env=os.environ | secrets, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"Narayana does not start: exit code {process.wait()}")
        yield Narayana(process)
        assert process.stdin is not None
        process.stdin.close()


@contextmanager
def _over_databases(libraries: Path, place: Place, servers: Servers) -> Iterator[Narayana]:
    urls = [f"jdbc:{each.url(name).replace(f'{each.user}@', '')}" for name, each in servers.items()]
    passwords = [each.password for each in servers.values()]
    with narayana_process(libraries, place.folder / "ObjectStore", *urls, passwords=passwords) as narayana:
        narayana.throughput(max(THREADS), _WARM_UP)
        for name, each in servers.items():
            with psycopg.connect(each.dsn(name)) as connection:
                (done,) = connection.execute("select sum(a) from t").fetchone() or (0,)
                assert done == _WARM_UP // max(THREADS) * max(THREADS), f"{name} has only {done} updates"
        yield narayana


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        libraries = libraries_in(Path(folder))
        for place in chosen_places():
            with (
                place.servers(["one"], ["two"]) as servers,
                datasources(servers) as sources,
                by_hand(servers, place) as hands,
                _over_databases(libraries, place, servers) as narayana,
            ):
                ours = with_txpool(sources)
                for threads in THREADS:
                    compare(
                        f"one row in each of two databases; {place}; threads: {threads}",
                        {
                            "Narayana": partial(narayana.throughput, threads),
                            "by hand": partial(throughput, hands, threads),
                            "txpool": partial(throughput, ours, threads),
                        },
                        rounds=7,
                        unit="transactions/s",
                        bound="1.0 or more" if threads == max(THREADS) else "",
                    )


if __name__ == "__main__":
    main()
