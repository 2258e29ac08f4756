"""A login by ssh: over jump hosts, with keys only, to hosts whose keys are known, and watched until it ends.

Nothing is ever asked of the user, no host key is ever added, no agent is forwarded.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import paramiko

from caffe_recipes.cluster.known_hosts import (
    KnownKey,
    fingerprint,
    judge_key,
    keys_of,
    known_name,
    load_known_hosts,
)
from caffe_recipes.cluster.ssh_config import SshOptions, load_ssh_options
from caffe_recipes.cluster.ssh_keys import FAILURES, authenticate, reason_of, unreachable
from caffe_recipes.errors import ClusterError

# So many questions without an answer, and the link is dead.
KEEPALIVE_COUNT = 3
# A host may ask a slow directory or name server who comes before it answers.
_AUTH_S = 60.0
_KEY_TYPES = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}
# What paramiko says of a server that hangs up before it has said who it is.
_HUNG_UP = ("Error reading SSH protocol banner", "Negotiation failed")
# A server that restarts, or has its hands full, refuses for a while; a name that nobody knows stays unknown.
_PASSING = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH})

# Its threads would write tracebacks to the terminal; what went wrong is in the error that we raise.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Busy(Exception):
    """A failure that may pass: the server refused, or hung up before it had said who it is."""


@dataclass
class Login:
    """An authenticated connection; `over` is the one it runs through. `users` share it."""

    transport: paramiko.Transport
    options: SshOptions
    over: Login | None = None
    proxy: subprocess.Popen[bytes] | None = None
    users: int = 1
    _heard: float = field(default_factory=time.monotonic)
    _closed: threading.Event = field(default_factory=threading.Event)
    went_silent: bool = False

    def is_alive(self) -> bool:
        """Tell whether it stands, as far as is known."""
        return self.transport.is_active() and not self._closed.is_set()

    def watch(self) -> None:
        """Ask for a sign of life every so often, and close the connection when none comes.

        Every wait on a closed one ends at once: nobody waits for TCP, which gives up after many minutes.
        """
        for act in (self._ask, self._judge):
            threading.Thread(target=act, daemon=True, name=f"ssh-{self.options.name}").start()

    def close(self) -> None:
        """Leave it; the last user hangs up."""
        with _JUMPS_LOCK:
            self.users -= 1
            last = self.users <= 0
        if last:
            self.hang_up()

    def hang_up(self) -> None:
        """End it for all users, and leave what it ran through."""
        with _JUMPS_LOCK:
            if self._closed.is_set():
                return
            self._closed.set()
        with suppress(*FAILURES):
            self.transport.sock.close()  # first: a transport waits for its thread, and that for the socket
        self.transport.close()
        if self.proxy is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.proxy.pid, signal.SIGKILL)
            self.proxy.wait()
        if self.over is not None:
            self.over.close()

    def _ask(self) -> None:
        while not self._closed.wait(self.options.keepalive_s) and self.transport.is_active():
            with suppress(*FAILURES):
                self.transport.global_request("keepalive@openssh.com", wait=True)
                if self.transport.is_active():
                    self._heard = time.monotonic()

    def _judge(self) -> None:
        longest_s = self.options.keepalive_s * KEEPALIVE_COUNT
        while not self._closed.wait(self.options.keepalive_s / 4):
            if not self.transport.is_active():
                return
            if time.monotonic() - self._heard > longest_s:
                self.went_silent = True
                self.hang_up()


def log_in(name: str, folder: Path, patience_s: float) -> Login:
    """Open a connection to a host as configured in `folder`.

    A refusal that may pass is tried again, ever less often, for `patience_s`. Raises ClusterError.
    """
    deadline = time.monotonic() + patience_s
    pause_s = 0.25
    options = load_ssh_options(name, folder)
    _refuse_circle(options, folder)
    while True:
        try:
            login = _log_in(options, folder)
            login.watch()
            return login
        except Busy as error:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise unreachable(options, str(error)) from None
            time.sleep(min(left_s, pause_s * random.uniform(0.75, 1.25)))  # not all hosts at one moment
            pause_s = min(2 * pause_s, 3.0)


def _log_in(options: SshOptions, folder: Path) -> Login:
    login = None
    try:
        connection, over, proxy = _reach(options, folder)
        transport = paramiko.Transport(connection)
        login = Login(transport, options, over, proxy)
        lines = keys_of(load_known_hosts(options.known_hosts), _known_name(options))
        _prefer_known(transport, {line.kind for line in lines if not line.marker})
        _shake_hands(transport, options)
        _check_key(options, lines, transport.get_remote_server_key().asbytes())
        authenticate(transport, options)
    except BaseException as error:
        if login is not None:
            login.hang_up()
        if isinstance(error, FAILURES):
            raise unreachable(options, reason_of(error)) from None
        raise
    return login


def _reach(
    options: SshOptions, folder: Path
) -> tuple[socket.socket | paramiko.Channel, Login | None, subprocess.Popen[bytes] | None]:
    """Open the bytes' way to a host: directly, over jump hosts, or through a program."""
    if options.proxy_command and not options.jumps:
        ours, theirs = socket.socketpair()
        with theirs:
            # As ssh does: the user's own shell reads what the user's own configuration says.
            argv = ["/bin/sh", "-c", f"exec {options.proxy_command}"]
            proxy = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                start_new_session=True,  # without a terminal to ask on, or a window
                env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
            )
        return ours, None, proxy
    if options.jumps:
        over = _jump(options, folder)
        try:
            channel = over.transport.open_channel(
                "direct-tcpip", (options.host, options.port), ("127.0.0.1", 0), timeout=options.connect_s
            )
        except BaseException as error:
            over.close()
            if isinstance(error, paramiko.ChannelException):
                raise Busy(f"{over.options.name} cannot reach it: {reason_of(error)}") from None
            raise
        return channel, over, None
    try:
        connection = socket.create_connection((options.host, options.port), options.connect_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # commands are small and many
        return connection, None, None
    except OSError as error:
        if isinstance(error, TimeoutError) or error.errno in _PASSING:
            raise Busy(reason_of(error)) from None
        raise


# Connections to jump hosts, by folder and hops: 64 hosts behind one of them need one login there.
_JUMPS: dict[tuple[Path, tuple[str, ...]], Login] = {}
_JUMPS_LOCK = threading.Lock()
_JUMPING: dict[tuple[Path, tuple[str, ...]], threading.Lock] = {}


def _jump(options: SshOptions, folder: Path) -> Login:
    """Log in to the last jump host, over those before it, or use the login that others have there."""
    place = (folder, options.jumps)
    with _JUMPS_LOCK:
        jumping = _JUMPING.setdefault(place, threading.Lock())
    with jumping:
        with _JUMPS_LOCK:
            shared = _JUMPS.get(place)
            if shared is not None and shared.users > 0 and shared.is_alive():
                shared.users += 1
                return shared
        *before, last = options.jumps
        hop = load_ssh_options("", folder, last)  # the first hop's own configuration holds
        login = _log_in(_with_jumps(hop, tuple(before)) if before else hop, folder)
        login.watch()
        with _JUMPS_LOCK:
            _JUMPS[place] = login
        return login


def _refuse_circle(options: SshOptions, folder: Path, before: tuple[tuple[str, ...], ...] = ()) -> None:
    """Follow the jump hosts through the configuration alone; raises ClusterError if they never end."""
    if options.jumps in before:
        hint = "in ~/.ssh/config, except the jump host itself from its ProxyJump"
        raise ClusterError(options.name, f"is reached over {options.jumps[0]}, and that over itself", hint)
    if options.jumps:
        _refuse_circle(load_ssh_options("", folder, options.jumps[0]), folder, (*before, options.jumps))


def _with_jumps(options: SshOptions, jumps: tuple[str, ...]) -> SshOptions:
    return replace(options, jumps=jumps, proxy_command=None)


def _shake_hands(transport: paramiko.Transport, options: SshOptions) -> None:
    transport.banner_timeout = transport.handshake_timeout = options.connect_s
    transport.auth_timeout = max(options.connect_s, _AUTH_S)
    try:
        transport.start_client(timeout=options.connect_s)
    except (EOFError, OSError) as error:
        raise Busy(f"it hung up: {reason_of(error)}") from None
    except paramiko.SSHException as error:
        if str(error).startswith(_HUNG_UP):
            raise Busy(reason_of(error)) from None
        raise
    if not transport.initial_kex_done:
        raise Busy(f"no answer within {options.connect_s:.0f} s")


def _prefer_known(transport: paramiko.Transport, kinds: set[str]) -> None:
    """Have the server show a key of a type that known_hosts holds: it may have several, and shows one."""
    first = [name for kind, names in _KEY_TYPES.items() if kind in kinds for name in names]
    rest = [name for names in _KEY_TYPES.values() for name in names if name not in first]
    transport.get_security_options().key_types = (*first, *rest)


def _known_name(options: SshOptions) -> str:
    return known_name(options.host, options.port, options.key_alias)


def _check_key(options: SshOptions, lines: tuple[KnownKey, ...], key: bytes) -> None:
    """Refuse a host whose key is not the one that known_hosts holds."""
    name = _known_name(options)
    verdict, where = judge_key(lines, key)
    if verdict == "known":
        return
    file = options.known_hosts[0] if options.known_hosts else "known_hosts"
    shown = f"it shows {fingerprint(key)}"
    if verdict == "unknown":
        port = "" if options.port == 22 else f"-p {options.port} "
        what = f"its host key is not in known_hosts as {name}; {shown}"
        hint = f"compare that with what the site publishes, then `ssh-keyscan {port}{options.host} >> {file}`"
    elif verdict == "changed":
        what = f"its host key has CHANGED: {shown}, {where} holds another"
        hint = f"ask the site why; if it is right, `ssh-keygen -R '{name}' -f {file}` and add the new one"
    else:
        what, hint = f"its host key is revoked in {where}", "do not connect; ask the site"
    raise ClusterError(options.name, what, hint)
