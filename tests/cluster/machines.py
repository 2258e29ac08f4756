"""The contents of /proc on the machines that these hosts imitate; `cluster.replace` puts them there."""

from __future__ import annotations


def cpuinfo(sockets: int, cores_per_socket: int) -> str:
    """Write /proc/cpuinfo of a node whose neighbouring cores alternate over its sockets."""
    return "".join(
        f"processor\t: {number}\nphysical id\t: {number % sockets}\ncpu cores\t: {cores_per_socket}\n\n"
        for number in range(sockets * cores_per_socket)
    )


def meminfo(total_gb: float, available_gb: float) -> str:
    """Write /proc/meminfo of a node, in 10^9 bytes."""
    total, available = (round(gb * 1e9 / 1024) for gb in (total_gb, available_gb))
    return f"MemTotal: {total:14} kB\nMemFree: {available:15} kB\nMemAvailable: {available:10} kB\n"
