"""Commands under way, so that whoever stops a preflight stops them all."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from caffe_recipes.cluster.commands import Running
from caffe_recipes.cluster.hosts import Completed, Host
from caffe_recipes.errors import ClusterError


@dataclass
class Commands:
    """What runs now; once stopped, nothing is started any more."""

    _running: set[Running] = field(default_factory=set)
    _stopped: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, host: Host, argv: Sequence[str], limit_s: float, stdin: bytes = b"") -> Completed:
        """Run a command on a host to its end; raises ClusterError."""
        running = host.start(argv, limit_s)
        with self._lock:
            self._running.add(running)
            stopped = self._stopped
        try:
            if stopped:
                running.stop()
                raise ClusterError(host.name, "is not asked any more: the preflight was stopped", "repeat it")
            return running.finish(limit_s, stdin)
        finally:
            with self._lock:
                self._running.discard(running)

    def stop(self) -> None:
        """End all that runs."""
        with self._lock:
            self._stopped, running = True, list(self._running)
        for one in running:
            one.stop()
