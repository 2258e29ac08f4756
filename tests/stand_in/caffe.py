"""A stand-in for the `caffe` program that trains nothing, deterministically, on any number of ranks.

Its arguments, its log, its files, its exit codes and what it does when signalled are the real one's (all of
which is written down where the project says how Caffe behaves). Its weights are a function of what it
started from, the phase, and every iteration since: a chain that loses one, or repeats one, ends with other
bytes. `behaviour.json` in the working directory scripts what goes wrong; see `behaviour.py`.

Ranks go in step, over TCP to rank 0, as they would over MPI. Those but rank 0 only go along, and import next
to nothing, not even `site` where they are started with -S: a test may start 128 of them.
"""

from __future__ import annotations

import os
import sys

# Started with -I. Not by pathlib: its import costs a rank as much as all else together.
sys.path.insert(0, __file__.rpartition("/tests/")[0])

from tests.stand_in import ranks


def main(arguments: list[str]) -> int:
    """Run the command in the arguments; return the exit code."""
    flags = {}
    for word in arguments[1:]:
        name, _, value = word.lstrip("-").partition("=")
        flags[name] = value
    if not arguments or "help" in flags or arguments[0] not in ("train", "test"):
        return 1  # as gflags ends
    if arguments[0] == "train" and ranks.my_rank() > 0:
        return ranks.follow(flags)
    if sys.flags.no_site:
        import site

        site.main()
    from tests.stand_in import training

    return training.main(arguments[0], flags)


if __name__ == "__main__":
    # Not by sys.exit: nothing is to be cleaned up, and many start and end at once.
    os._exit(main(sys.argv[1:]))
