"""Log in to another machine over ssh, also over jump hosts.

Logins use public keys only (from the configured files and the agent), and require known host keys. Nobody is
there to answer prompts during a run, so none for a password or passphrase is shown. No host key is added, and
no agent is forwarded.
"""

from __future__ import annotations

import base64
import errno
import logging
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import paramiko

from caffe_recipes.cluster.ssh_config import (
    KnownKey,
    SshOptions,
    fingerprint,
    is_revoked,
    judge_key,
    keys_for_host,
    known_hosts_name,
    load_known_hosts,
    load_ssh_options,
)
from caffe_recipes.errors import ClusterError, HostFailed

# Paramiko's message if a host has neither accepted nor refused a key in time.
_AUTH_TIMEOUT = "Authentication timeout"
FAILURES = (paramiko.SSHException, OSError, EOFError, ValueError)


def authenticate(transport: paramiko.Transport, options: SshOptions) -> None:
    """Offer keys until the host accepts one. Raises ClusterError with the list of offered keys."""
    tried: list[str] = []
    for label, key in _keys(options, tried):
        try:
            more = transport.auth_publickey(options.user, key)
        except paramiko.BadAuthenticationType as error:
            raise _login_refused(
                options, tried, f"it accepts only {', '.join(error.allowed_types)}"
            ) from None
        except paramiko.AuthenticationException as error:
            tried.append(label)
            if str(error).startswith(_AUTH_TIMEOUT):
                raise _login_refused(
                    options, tried, f"no answer within {transport.auth_timeout:.0f} s"
                ) from None
            if not transport.is_active():
                break
            continue
        if not more:
            return
        raise _login_refused(options, [*tried, label], f"after the key, it requires {', '.join(more)}")
    raise _login_refused(options, tried, "it accepts none of them")


def _keys(options: SshOptions, tried: list[str]) -> Iterator[tuple[str, paramiko.PKey]]:
    """Yield the configured keys, from the agent if it holds them, then the agent's other keys."""
    held = {key.asbytes(): key for key in _agent_keys()} if options.agent else {}
    for path in options.keys:
        public = _public_blob(path)
        if public in held:
            yield f"{path} (agent)", held.pop(public)
            continue
        try:
            yield str(path), paramiko.PKey.from_path(path)
        except FileNotFoundError:
            continue
        except (paramiko.PasswordRequiredException, TypeError):
            tried.append(f"{path} (needs its passphrase: ssh-add it)")
        except FAILURES as error:
            tried.append(f"{path} (cannot be read: {reason_of(error)})")
    if not options.only_these_keys:
        yield from (("an agent's key", key) for key in held.values())


def _agent_keys() -> tuple[paramiko.AgentKey, ...]:
    try:
        return paramiko.Agent().get_keys()
    except FAILURES:
        return ()


def _public_blob(path: Path) -> bytes | None:
    """Return the public key in the `.pub` file beside a private key; None if it cannot be read."""
    try:
        return base64.b64decode(path.with_name(f"{path.name}.pub").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _login_refused(options: SshOptions, tried: list[str], reason: str) -> ClusterError:
    offered = ", ".join(tried) or "no key"
    return unreachable(options, f"offered {offered}; {reason}")


def unreachable(options: SshOptions, reason: str) -> ClusterError:
    """Return the error for a host that we cannot log in to."""
    what = f"cannot be reached by ssh as {options.user} at {options.host}:{options.port}: {reason}"
    return HostFailed(options.name, what, f"make `ssh {options.name} true` work without a password")


def reason_of(error: BaseException) -> str:
    """Return the message of an exception on one line."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno and error.strerror:
        text = os.strerror(error.errno) if error.errno > 0 else error.strerror
    return text or type(error).__name__


# After this many unanswered keepalive requests the connection counts as dead.
KEEPALIVE_COUNT = 3
# Before it answers, a host may look up the user and the client in a slow directory or name server.
_AUTH_S = 60.0
_KEY_TYPES = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}
# Paramiko's algorithms, in its order; its type stubs lack some of them.
_ALGORITHMS: Mapping[str, Sequence[str]] = {
    kind: vars(paramiko.Transport)[f"_preferred_{kind}"] for kind in ("ciphers", "macs", "kex", "pubkeys")
} | {"keys": [name for names in _KEY_TYPES.values() for name in names]}
# Paramiko's messages if a server closes the connection before it has identified itself.
_HANDSHAKE_ERRORS = ("Error reading SSH protocol banner", "Negotiation failed")
# Errors of a server that is restarting or overloaded, which go away; an unknown host name does not.
_TRANSIENT_ERRNOS = frozenset(
    {errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH}
)

# Paramiko's threads would log tracebacks; the errors that we raise have the same information.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


_sender = threading.local()  # its `channel` is the one that this thread sends on, None if unknown


@contextmanager
def sending_on(channel: paramiko.Channel | None) -> Iterator[None]:
    """Drop what this thread sends on a channel that has been closed."""
    before = getattr(_sender, "channel", None)
    _sender.channel = channel
    try:
        yield
    finally:
        _sender.channel = before


class Connection(paramiko.Transport):
    """An SSH connection that survives input sent to a command that has just ended.

    Paramiko builds a message and then waits for its turn to send it. If meanwhile the command ends, and its
    channel is closed, sshd gets a message for a channel that it no longer has, and disconnects: all other
    commands on the connection are lost. The connection to a host behind a jump host is itself a channel.
    """

    def _send_message(self, data: paramiko.Message) -> None:
        """Send a message unless its channel is closed; paramiko sends one message at a time."""
        channel = getattr(_sender, "channel", None)
        if channel is None or not channel.closed:
            with sending_on(self.sock if isinstance(self.sock, paramiko.Channel) else None):
                super()._send_message(data)  # type: ignore[misc]


class TransientFailure(Exception):
    """Raised when a retry may succeed: the server refused or closed the connection early."""


@dataclass
class Login:
    """An authenticated connection, tunneled through `over` if that is set; `users` counts its users."""

    transport: paramiko.Transport
    options: SshOptions
    over: Login | None = None
    proxy: subprocess.Popen[bytes] | None = None
    users: int = 1
    _last_answer_s: float = field(default_factory=time.monotonic)
    _closed: threading.Event = field(default_factory=threading.Event)
    went_silent: bool = False

    def is_alive(self) -> bool:
        """Return whether the connection is open, as far as we know."""
        return self.transport.is_active() and not self._closed.is_set()

    def watch(self) -> None:
        """Start to send keepalive requests, and close the connection if they are not answered.

        All waits on a closed connection end at once, whereas TCP would give up only after many minutes.
        """
        for act in (self._send_keepalives, self._check_keepalives):
            threading.Thread(target=act, daemon=True, name=f"ssh-{self.options.name}").start()

    def close(self) -> None:
        """Release the connection; it is closed when its last user releases it."""
        with _JUMP_LOGINS_LOCK:
            self.users -= 1
            last = self.users <= 0
        if last:
            self.hang_up()

    def hang_up(self) -> None:
        """Close the connection for all users, and release the connection that it runs through."""
        with _JUMP_LOGINS_LOCK:
            if self._closed.is_set():
                return
            self._closed.set()
        with suppress(*FAILURES):
            self.transport.sock.close()  # first: closing a transport waits for its reading thread
        self.transport.close()
        if self.proxy is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.proxy.pid, signal.SIGKILL)
            self.proxy.wait()
        if self.over is not None:
            self.over.close()

    def _send_keepalives(self) -> None:
        while not self._closed.wait(self.options.keepalive_s) and self.transport.is_active():
            with suppress(*FAILURES):
                self.transport.global_request("keepalive@openssh.com", wait=True)
                if self.transport.is_active():
                    self._last_answer_s = time.monotonic()

    def _check_keepalives(self) -> None:
        longest_s = self.options.keepalive_s * KEEPALIVE_COUNT
        while not self._closed.wait(self.options.keepalive_s / 4):
            if not self.transport.is_active():
                return
            if time.monotonic() - self._last_answer_s > longest_s:
                self.went_silent = True
                self.hang_up()


def log_in(name: str, folder: Path, patience_s: float) -> Login:
    """Open a connection to a host as configured in `folder`.

    Transient failures are retried for `patience_s`, with growing pauses. Raises ClusterError.
    """
    deadline = time.monotonic() + patience_s
    pause_s = 0.25
    options = load_ssh_options(name, folder)
    _check_jump_loop(options, folder)
    while True:
        try:
            login = _log_in(options, folder)
            login.watch()
            return login
        except TransientFailure as error:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise unreachable(options, str(error)) from None
            time.sleep(
                min(left_s, pause_s * random.uniform(0.75, 1.25))
            )  # random, to spread the retries of many hosts
            pause_s = min(2 * pause_s, 3.0)


def _log_in(options: SshOptions, folder: Path) -> Login:
    login, disabled = None, _disabled_algorithms(options)
    try:
        connection, over, proxy = _open_connection(options, folder)
        transport = Connection(connection, disabled_algorithms=disabled)
        login = Login(transport, options, over, proxy)
        lines = keys_for_host(load_known_hosts(options.known_hosts), _known_hosts_name(options))
        _prefer_known(transport, {line.kind for line in lines if not line.marker})
        _handshake(transport, options)
        _check_key(options, lines, transport.get_remote_server_key().asbytes())
        _check_revoked(options, transport.get_remote_server_key())
        authenticate(transport, options)
    except BaseException as error:
        if login is not None:
            login.hang_up()
        if isinstance(error, FAILURES):
            raise unreachable(options, reason_of(error)) from None
        raise
    return login


def _open_connection(
    options: SshOptions, folder: Path
) -> tuple[socket.socket | paramiko.Channel, Login | None, subprocess.Popen[bytes] | None]:
    """Open a connection to a host's sshd: directly, over jump hosts, or through ProxyCommand."""
    if options.proxy_command and not options.jumps:
        ours, theirs = socket.socketpair()
        with theirs:
            # As in ssh, a shell runs the command that the user configured.
            argv = ["/bin/sh", "-c", f"exec {options.proxy_command}"]
            proxy = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                start_new_session=True,  # no terminal, so that it cannot prompt
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
                raise TransientFailure(
                    f"jump host {over.options.name} cannot reach it: {reason_of(error)}"
                ) from None
            raise
        return channel, over, None
    try:
        connection = socket.create_connection((options.host, options.port), options.connect_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # many small commands
        return connection, None, None
    except OSError as error:
        if isinstance(error, TimeoutError) or error.errno in _TRANSIENT_ERRNOS:
            raise TransientFailure(reason_of(error)) from None
        raise


# Logins to jump hosts, by folder and hops: 64 hosts behind a jump host need only one login to it.
_JUMP_LOGINS: dict[tuple[Path, tuple[str, ...]], Login] = {}
_JUMP_LOGINS_LOCK = threading.Lock()
_JUMP_LOGIN_LOCKS: dict[tuple[Path, tuple[str, ...]], threading.Lock] = {}


def _jump(options: SshOptions, folder: Path) -> Login:
    """Return a login to the last jump host, through those before it; an open login is shared."""
    place = (folder, options.jumps)
    with _JUMP_LOGINS_LOCK:
        lock = _JUMP_LOGIN_LOCKS.setdefault(place, threading.Lock())
    with lock:
        with _JUMP_LOGINS_LOCK:
            shared = _JUMP_LOGINS.get(place)
            if shared is not None and shared.users > 0 and shared.is_alive():
                shared.users += 1
                return shared
        *before, last = options.jumps
        hop = load_ssh_options("", folder, last)  # the first hop follows its own configuration
        login = _log_in(_with_jumps(hop, tuple(before)) if before else hop, folder)
        login.watch()
        with _JUMP_LOGINS_LOCK:
            _JUMP_LOGINS[place] = login
        return login


def _check_jump_loop(options: SshOptions, folder: Path, before: tuple[tuple[str, ...], ...] = ()) -> None:
    """Raise ClusterError if the configured jump hosts form a loop. Opens no connection."""
    if options.jumps in before:
        hint = "in ~/.ssh/config, exclude the jump host itself from its ProxyJump"
        raise HostFailed(
            options.name, f"its jump host {options.jumps[0]} is configured to be reached through itself", hint
        )
    if options.jumps:
        _check_jump_loop(load_ssh_options("", folder, options.jumps[0]), folder, (*before, options.jumps))


def _with_jumps(options: SshOptions, jumps: tuple[str, ...]) -> SshOptions:
    return replace(options, jumps=jumps, proxy_command=None)


def _handshake(transport: paramiko.Transport, options: SshOptions) -> None:
    transport.banner_timeout = transport.handshake_timeout = options.connect_s
    transport.auth_timeout = max(options.connect_s, _AUTH_S)
    try:
        transport.start_client(timeout=options.connect_s)
    except (EOFError, OSError) as error:
        raise TransientFailure(f"connection closed by the server: {reason_of(error)}") from None
    except paramiko.SSHException as error:
        if str(error).startswith(_HANDSHAKE_ERRORS):
            raise TransientFailure(reason_of(error)) from None
        raise
    if not transport.initial_kex_done:
        raise TransientFailure(f"no answer within {options.connect_s:.0f} s")


def _prefer_known(transport: paramiko.Transport, kinds: set[str]) -> None:
    """Prefer the key types that known_hosts has for the host; a server presents only one of its keys."""
    first = [name for kind, names in _KEY_TYPES.items() if kind in kinds for name in names]
    rest = [name for names in _KEY_TYPES.values() for name in names if name not in first]
    transport.get_security_options().key_types = (*first, *rest)


def _disabled_algorithms(options: SshOptions) -> dict[str, list[str]]:
    """Return our algorithms that the configuration forbids, by kind. Raises ClusterError if none is left."""
    disabled: dict[str, list[str]] = {}
    for allowed in options.algorithms:
        ours = _ALGORITHMS[allowed.kind]
        left = allowed.choose(ours)
        if not left:
            what = f"the ssh configuration sets {allowed.option} {allowed.listed}, of which we support none"
            raise HostFailed(options.name, what, f"allow one of {', '.join(ours[:6])}")
        disabled.setdefault(allowed.kind, []).extend(name for name in ours if name not in left)
    return disabled


def _check_revoked(options: SshOptions, key: paramiko.PKey) -> None:
    """Raise ClusterError if a host key is revoked, or shorter than RequiredRSASize."""
    if key.get_name() == "ssh-rsa" and key.get_bits() < options.rsa_bits:
        what = f"its RSA host key has {key.get_bits()} bits, fewer than RequiredRSASize {options.rsa_bits}"
        raise HostFailed(options.name, what, "ask the site for a longer key")
    if options.revoked is None:
        return
    try:
        revoked = is_revoked(key.asbytes(), options.revoked)
    except OSError as error:
        what = f"no host key can be trusted: RevokedHostKeys {options.revoked}: {error.strerror}"
        raise HostFailed(options.name, what, "restore that file, or remove the option") from None
    if revoked:
        what = f"its host key {fingerprint(key.asbytes())} is revoked in {options.revoked}"
        raise HostFailed(options.name, what, "do not connect; ask the site")


def _known_hosts_name(options: SshOptions) -> str:
    return known_hosts_name(options.host, options.port, options.key_alias)


def _check_key(options: SshOptions, lines: tuple[KnownKey, ...], key: bytes) -> None:
    """Raise ClusterError unless a host's key is in `lines`, the host's lines of known_hosts."""
    name = _known_hosts_name(options)
    verdict, where = judge_key(lines, key)
    if verdict == "known":
        return
    file = options.known_hosts[0] if options.known_hosts else "known_hosts"
    presented = f"it presents {fingerprint(key)}"
    if verdict == "unknown":
        port = "" if options.port == 22 else f"-p {options.port} "
        what = f"its host key is not in known_hosts as {name}; {presented}"
        scan = f"ssh-keyscan {port}{options.host} >> {file}"
        hint = f"compare it with the key that the site publishes, then run `{scan}`"
    elif verdict == "changed":
        what = f"its host key has CHANGED: {presented}, but {where} has a different one"
        remove = f"ssh-keygen -R '{name}' -f {file}"
        hint = f"ask the site why; if the change is legitimate, run `{remove}` and add the new key"
    else:
        what, hint = f"its host key is revoked in {where}", "do not connect; ask the site"
    raise HostFailed(options.name, what, hint)
