"""Proving who we are: keys only, of the configured files and the agent, and what to say when none is taken.

No passphrase and no password is ever asked for: a run has nobody to answer.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import paramiko

from caffe_recipes.cluster.ssh_config import SshOptions
from caffe_recipes.errors import ClusterError

# What paramiko says of a host that has not said yes or no to a key.
_TIMEOUT = "Authentication timeout"
FAILURES = (paramiko.SSHException, OSError, EOFError, ValueError)


def authenticate(transport: paramiko.Transport, options: SshOptions) -> None:
    """Offer keys until one is taken; raises ClusterError that tells which ones were offered."""
    tried: list[str] = []
    for said, key in _keys(options, tried):
        try:
            more = transport.auth_publickey(options.user, key)
        except paramiko.BadAuthenticationType as error:
            raise _refused(options, tried, f"it takes {', '.join(error.allowed_types)} only") from None
        except paramiko.AuthenticationException as error:
            tried.append(said)
            if str(error).startswith(_TIMEOUT):
                raise _refused(options, tried, f"no answer within {transport.auth_timeout:.0f} s") from None
            if not transport.is_active():
                break
            continue
        if not more:
            return
        raise _refused(options, [*tried, said], f"after a key it asks for {', '.join(more)}")
    raise _refused(options, tried, "it takes none of them")


def _keys(options: SshOptions, tried: list[str]) -> Iterator[tuple[str, paramiko.PKey]]:
    """Yield keys to offer: those of the configured files, by the agent if it holds them; then its others."""
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
    """Return the public key beside a private one."""
    try:
        return base64.b64decode(path.with_name(f"{path.name}.pub").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _refused(options: SshOptions, tried: list[str], reason: str) -> ClusterError:
    offered = ", ".join(tried) or "no key"
    return unreachable(options, f"offered {offered}; {reason}")


def unreachable(options: SshOptions, reason: str) -> ClusterError:
    """Return the error for a host that cannot be logged in to."""
    what = f"cannot be reached by ssh as {options.user} at {options.host}:{options.port}: {reason}"
    return ClusterError(options.name, what, f"make `ssh {options.name} true` work without a password")


def reason_of(error: BaseException) -> str:
    """Return what went wrong, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno and error.strerror:
        text = os.strerror(error.errno) if error.errno > 0 else error.strerror
    return text or type(error).__name__
