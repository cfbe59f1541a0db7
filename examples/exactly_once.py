"""Tasks that are tried more than once and happen exactly once: the fence, the key and the work are in
one transaction of the database. Two workers; one is killed in the middle.

    python examples/exactly_once.py
"""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import bursar
from bursar.integrations.guards import SqlGuard

TRANSFERS = 20
POLICY = """
store = "sqlite://{folder}/store.db"

[daemon]
state = "{folder}/state"
session_timeout = "4s"

[resource.accounts]
kind = "claim"
dead_holder = "requeue"
"""

b = bursar.Bursar("policy.toml")


def open_bank() -> sqlite3.Connection:
    return sqlite3.connect("bank.db", isolation_level=None, timeout=30)


@b.task(needs="{account}:E")
async def deposit(account: str, fence: dict[str, int], key: str) -> None:
    bank = open_bank()
    bank.execute("BEGIN IMMEDIATE")
    SqlGuard().check(bank, account, fence[account])  # a worker that slept too long ends here
    bank.execute("UPDATE tries SET number = number + 1")
    if bank.execute("INSERT OR IGNORE INTO done VALUES (?)", (key,)).rowcount == 1:
        bank.execute("UPDATE account SET balance = balance + 1 WHERE name = ?", (account,))
    bank.execute("COMMIT")
    bank.close()
    await asyncio.sleep(0.3)  # killed here, the worker has done it and nobody knows


def start_worker(name: str) -> subprocess.Popen[bytes]:
    path = str(Path(__file__).parent)
    command = [sys.executable, "-m", "bursar", "work", "exactly_once:b", "--name", name, "--at-once", "4"]
    worker = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    worker.stdout.readline()
    return worker


async def main() -> None:
    bank = open_bank()
    SqlGuard().create(bank)
    bank.executescript(
        "CREATE TABLE account (name TEXT, balance INTEGER); CREATE TABLE done (key TEXT PRIMARY KEY);"
        "CREATE TABLE tries (number INTEGER); INSERT INTO tries VALUES (0);"
        "INSERT INTO account VALUES ('ann', 0), ('bob', 0), ('eve', 0), ('joe', 0);"
    )
    names = [name for (name,) in bank.execute("SELECT name FROM account")]
    async with b:
        workers = [start_worker("one"), start_worker("two")]
        tasks = [
            await b.submit(deposit, tenant="bank", key=f"transfer-{number}", account=names[number % 4])
            for number in range(TRANSFERS)
        ]
        await asyncio.sleep(0.5)
        workers[0].send_signal(signal.SIGKILL)
        print("a worker was killed")
        ends = [await task.ended(wait=60) for task in tasks]
        for worker in workers:
            worker.terminate()
            worker.wait()
    tries, balance = bank.execute("SELECT number, (SELECT sum(balance) FROM account) FROM tries").fetchone()
    outcomes = " and ".join({end["outcome"] for end in ends})
    print(f"{len(ends)} transfers, all {outcomes}: {tries} tries")
    print(f"balance: {balance}")


if __name__ == "__main__":
    from exactly_once import main  # the workers' module, so that its functions are the same

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("policy.toml").write_text(POLICY.format(folder=folder))
        asyncio.run(main())
