"""What malloc does with freed memory, in a process of its own, whose setting cannot be taken back."""

from __future__ import annotations

import subprocess
import sys

FAULTS = """
import resource
from caffe_recipes.engine.heap import keep_large_blocks

def count_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        bytes(range(256)) * 300_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = count_faults()
keep_large_blocks()
count_faults()
print(before, count_faults())
"""


def test_memory_that_is_freed_is_taken_again_without_asking_the_kernel() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True)
    before, after = map(int, done.stdout.split())
    assert after < before / 10


RELEASES = """
from pathlib import Path
from caffe_recipes.engine.heap import Heap, keep_large_blocks

def count_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

keep_large_blocks()
heap = Heap()
for _ in range(2):
    blocks = [bytes(range(256)) * 100_000 for _ in range(8)]
    end = b"keeps what is before it"
    del blocks
    before = count_pages()
    heap.release_if_grown()
    print(before, count_pages())
"""


def test_what_is_free_is_given_back_only_after_the_process_has_grown() -> None:
    done = subprocess.run([sys.executable, "-c", RELEASES], capture_output=True, text=True)
    grown, same = (tuple(map(int, line.split())) for line in done.stdout.splitlines())
    assert grown[1] < grown[0] / 4
    assert same[1] > same[0] / 2
