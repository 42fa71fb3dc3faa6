"""What the kill tests kill: threads and DataLoader workers that record, and keep a book of their own.

The book is a file mapped into memory and shared by all processes: each recorder stores in it, after a
call has returned, how far it is. It survives the kill, and owes nothing to the code under test.

As a program this is a nursery: it imports PyTorch once, and forks a victim for each line it reads.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
import time
from pathlib import Path

WORDS = 16
ITEM_IN, ITEM_LEAVING, ITEM_OUT, LEAF_IN, LEAF_OUT, METRIC, EVENT, NAME, BLOCK_IN, BLOCK_OUT = (
    range(10)
)
ROOT_IN = 10
THREADS = 3
WORKERS = 2
MAX_EPOCHS = 4000
ITEMS_PER_BLOCK = 50
ITEMS_PER_EVENT = 7
ITEMS_PER_NAME = 30
LEAVES = (2, 8, 60)
"""Leaf spans in each item, by thread: the last one rolls over several times a second."""


class Book:
    """Rows of words: one for each thread, then one for each DataLoader worker of each epoch."""

    def __init__(self, path: Path) -> None:
        size = 8 * WORDS * (THREADS + WORKERS * MAX_EPOCHS)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, size)
        self._words = memoryview(mmap.mmap(fd, size)).cast("Q")
        os.close(fd)

    def thread(self, number: int) -> memoryview:
        """The row of a thread."""
        return self._words[WORDS * number :][:WORDS]

    def worker(self, epoch: int, number: int) -> memoryview:
        """The row of a DataLoader worker."""
        return self._words[WORDS * (THREADS + WORKERS * epoch + number) :][:WORDS]


def item_attributes(who: str, i: int) -> dict[str, object]:
    """The attributes of an item: long enough to be torn."""
    return {"who": who, "i": i, "square": i * i, "text": f"{i}-" * (i % 40)}


pause = 0.0
"""Seconds to rest after each item, longer and longer: where a reader is slow, it must not outgrow it."""


def record(row: memoryview, who: str, leaves: int, begin: int, end: int) -> None:
    """Record items one by one, and note each call that returned."""
    from stepwell import event, log, span

    leaf = span(f"leaf-{who}")
    n = row[LEAF_OUT]
    for i in range(begin, end):
        with span(f"item-{who}", **item_attributes(who, i)):
            row[ITEM_IN] = i + 1
            log({f"a-{who}": float(i), f"b-{who}": -float(i)}, step=i)
            row[METRIC] = i + 1
            for _ in range(leaves):
                n += 1
                with leaf:
                    row[LEAF_IN] = n
                row[LEAF_OUT] = n
            if i % ITEMS_PER_EVENT == 0:
                event(f"event-{who}", **item_attributes(who, i))
                row[EVENT] = i // ITEMS_PER_EVENT + 1
            if i % ITEMS_PER_NAME == 0:
                with span(f"new-{who}-{i}"):
                    pass
                row[NAME] = i // ITEMS_PER_NAME + 1
            row[ITEM_LEAVING] = i + 1
        row[ITEM_OUT] = i + 1
        if pause:
            time.sleep(pause * (1 + i // 100))


def record_in_thread(book: Book, number: int) -> None:
    """One root span for good, in it blocks, in them items."""
    from stepwell import span

    row = book.thread(number)
    with span(f"root-{number}", number=number):
        row[ROOT_IN] = 1
        b = 0
        while True:
            with span(f"block-{number}"):
                row[BLOCK_IN] = b + 1
                begin = b * ITEMS_PER_BLOCK
                record(row, str(number), LEAVES[number], begin, begin + ITEMS_PER_BLOCK)
            row[BLOCK_OUT] = b + 1
            b += 1


class Recording:
    """A dataset whose workers record."""

    def __init__(self, book: Book, epoch: int, length: int) -> None:
        self.book = book
        self.epoch = epoch
        self.length = length
        self.count = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        from torch.utils.data import get_worker_info

        number = get_worker_info().id
        row = self.book.worker(self.epoch, number)
        i = self.count
        self.count = i + 1
        record(row, f"w{self.epoch}-{number}", 40, i, i + 1)
        return index


def load(book: Book, length: int) -> None:
    """Epoch after epoch of a DataLoader; a huge length is one epoch for good."""
    from torch.utils.data import DataLoader

    from stepwell import set_step, span

    for epoch in range(MAX_EPOCHS):
        loader = DataLoader(Recording(book, epoch, length), batch_size=4, num_workers=WORKERS)
        with span("epoch"):
            for step, _ in enumerate(loader):
                set_step(step, epoch)
        if pause:
            time.sleep(10 * pause * epoch)


def train(root: str, book_path: str, length: int, rest: float) -> None:
    """Train until killed; ``length`` of the dataset 0: without a DataLoader."""
    global pause
    import stepwell

    pause = rest
    book = Book(Path(book_path))
    stepwell.init("victim", dir=root)
    for number in range(THREADS):
        threading.Thread(
            target=record_in_thread, args=(book, number), name=f"thread-{number}"
        ).start()
    print(json.dumps({"pid": os.getpid()}), flush=True)
    if length:
        load(book, length)
    time.sleep(600)


def adopt_orphans() -> None:
    """Workers whose victim is dead become children of this process, and are gone once they are dead.

    Otherwise whoever is process 1 takes them away, on some machines seconds later.
    """
    import ctypes

    set_child_subreaper = 36
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def main() -> None:
    """The nursery."""
    import signal

    import torch.utils.data  # noqa: F401

    import stepwell  # noqa: F401

    adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.setswitchinterval(1e-4)
    while line := sys.stdin.readline():
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            train(**json.loads(line))


if __name__ == "__main__":
    main()
