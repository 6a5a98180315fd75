"""A bank with accounts in PostgreSQL, MariaDB and MySQL, transferring until it is killed.

`python -m tests.crash.mysql_bank SEED THREADS [TRANSFERS]` in a folder with the datasources' files. Each transfer takes
from an account in one database and gives to one in another; some also stand in a marked one.
"""

from __future__ import annotations

import os
import random
import sys
import threading

import txpool

ACCOUNTS = 20
OPENING = 1_000
PREPARING = ("pg", "maria", "mysql")
#: What a transfer takes part in beside two databases.
MARKS: tuple[list[str], ...] = ([], [], [], ["file-ledger"], ["maria-ledger"])


def main(seed: str, threads: int, transfers: int) -> None:
    txpool.configure("txpool.properties")
    clerks = [threading.Thread(target=_transfer, args=(f"{seed} {number}", transfers)) for number in range(threads)]
    for clerk in clerks:
        clerk.start()
    for clerk in clerks:
        clerk.join()


def _transfer(seed: str, transfers: int) -> None:
    chance = random.Random(seed)
    with open("outcomes", "ab", buffering=0) as file:
        number = 0
        while transfers < 0 or number < transfers:
            number += 1
            # Of the process, the clerk and the transfer: a whole number, since the tables have one column of these.
            name = (os.getpid() * 1_000 + int(seed.split()[1])) * 10_000 + number
            try:
                _one(chance, name)
            except txpool.TransactionInDoubt:
                word = "doubt"
            except Exception:
                word = "no"
            else:
                word = "yes"
            file.write(f"{name} {word}\n".encode())


def _one(chance: random.Random, name: int) -> None:
    # In one order everywhere, so that two transfers never wait for each other.
    places = sorted((database, chance.randint(1, ACCOUNTS)) for database in chance.sample(PREPARING, 2))
    amount, mark = chance.randint(1, 50), chance.choice(MARKS)
    with txpool.transaction():
        for (database, account), change in zip(places, (amount, -amount), strict=True):
            cursor = txpool.connect(f"{database}.properties").cursor()
            cursor.execute(f"update account set balance = balance + {change} where id = {account}")
            cursor.execute(f"insert into t (id) values ({name})")
        for database in mark:
            txpool.connect(f"{database}.properties").cursor().execute(f"insert into t (id) values ({name})")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int((sys.argv[3:] or ["-1"])[0]))
