"""Message ids that clients draw at random: new ones a second, beside a plain index over the same bytes.

    python benchmarks/message_ids.py [--ids 10000000] [--index-ids 1000000]

In this process and in SQLite as the server opens it, a commit for each batch of 1,000: asked whether the ids
are known, then remembered, as a batch of a client's is. The peer is a table of 16-byte keys with a primary
key, on the same disk with the same settings, for as many ids as it is given. One experiment has them all. A
hundred million take about a quarter of an hour and 4 GB of disk.
The last line is JSON: `ids_per_s` and `index_ids_per_s`, both over the last tenth, `over_index`,
`bytes_per_id`, `memory_mib` of the filters, and `load_s`, how long they take to be read again, the file in
memory.
"""

# ruff: noqa: E402 - the repository's root comes before what is imported from it
from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from infra.server.store import sql
from infra.server.store.applied import Applied
from infra.server.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

BATCH = 1_000
TENTHS = 10
EXPERIMENT_ID, NOW_MS = 1, 1_800_000_000_000
_INDEX = (
    "CREATE TABLE plain_ids (experiment_id INTEGER, id BLOB, PRIMARY KEY (experiment_id, id)) WITHOUT ROWID"
)


class Ours:
    """The structure of the server."""

    def __init__(self) -> None:
        self.applied = Applied()

    def take(self, connection: Connection, ids: list[str]) -> None:
        """Apply a batch of new ids."""
        known = self.applied.known(connection, EXPERIMENT_ID, ids, now_ms=NOW_MS)
        assert not known, known
        self.applied.remember(connection, EXPERIMENT_ID, ids, now_ms=NOW_MS)


def plain_index(connection: Connection, ids: list[str]) -> None:
    """Apply a batch of new ids by a plain index."""
    statement = "INSERT OR IGNORE INTO plain_ids VALUES (?, ?)"
    sql.many(connection, statement, [(EXPERIMENT_ID, bytes.fromhex(one)) for one in ids])


def last_rate(store: Store, take: Callable[[Connection, list[str]], None], num_ids: int, name: str) -> float:
    """Apply ids that nobody has; print how many a second for each tenth of them and return the last."""
    chance, rate = random.Random(0), 0.0
    for tenth in range(1, TENTHS + 1):
        took = 0.0
        num_batches = num_ids // TENTHS // BATCH
        for _ in range(num_batches):
            ids = [f"{chance.getrandbits(128):032x}" for _ in range(BATCH)]
            took += seconds(store, take, ids)
        rate = num_batches * BATCH / took
        print(f"{name:>12} {tenth * num_batches * BATCH:>12,} {rate:>10,.0f}/s", flush=True)
    return rate


def seconds(store: Store, take: Callable[[Connection, list[str]], None], ids: list[str]) -> float:
    """Return how long a batch takes, its commit included."""
    began = time.perf_counter()
    store.write_now(lambda connection: take(connection, ids))
    return time.perf_counter() - began


def count(text: str) -> int:
    """Return a number of ids that ten rows of whole batches make up."""
    if int(text) < 1 or int(text) % (TENTHS * BATCH):
        raise argparse.ArgumentTypeError(f"takes a multiple of {TENTHS * BATCH:,}, got {text}")
    return int(text)


def measure(folder: Path, num_ids: int, num_index_ids: int) -> dict[str, float]:
    store, index = Store(folder / "ours.sqlite3"), Store(folder / "index.sqlite3")
    index.write_now(lambda connection: sql.run(connection, _INDEX))
    print(f"{'':>12} {'ids':>12} {'new ids':>12}")
    before = size(folder / "ours.sqlite3")
    ours = Ours()
    figures = {
        "ids_per_s": last_rate(store, ours.take, num_ids, "ours"),
        "index_ids_per_s": last_rate(index, plain_index, num_index_ids, "plain index"),
        "memory_mib": ours.applied.nbytes / 2**20,
    }
    again, began = Applied(), time.perf_counter()
    store.read_now(lambda connection: again.known(connection, EXPERIMENT_ID, ["new"], now_ms=NOW_MS))
    figures["load_s"] = time.perf_counter() - began
    figures["over_index"] = figures["ids_per_s"] / figures["index_ids_per_s"]
    for one in (store, index):
        one.close()
    figures["bytes_per_id"] = (size(folder / "ours.sqlite3") - before) / num_ids
    return {name: round(value, 2) for name, value in figures.items()}


def size(file: Path) -> int:
    return sum(one.stat().st_size for one in file.parent.glob(f"{file.name}*"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ids", type=count, default=10_000_000)
    parser.add_argument("--index-ids", type=count, default=1_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(measure(Path(name), given.ids, given.index_ids)))


if __name__ == "__main__":
    main()
