"""A session over an ssh connection that is lost at the worst moment, without a connection."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import paramiko
import pytest

from caffe_recipes.cluster.ssh import SshHost, _Channel, _open_session
from caffe_recipes.errors import HostFailed


@pytest.mark.parametrize("error", [EOFError(), OSError("closed"), paramiko.SSHException("timed out")])
def test_a_session_is_closed_although_its_connection_is_lost(error: Exception) -> None:
    host, login = Mock(), Mock()
    session = _Channel(host, Mock(close=Mock(side_effect=error)), login)
    session.close()
    host.release.assert_called_once_with(login)


@pytest.mark.parametrize(
    ("is_active", "what"),
    [(True, "node1: a signal ended the command; look"), (False, "node1: the connection was lost; check")],
)
def test_a_command_without_an_exit_status_was_killed_unless_its_connection_is_gone(
    is_active: bool, what: str
) -> None:
    channel = Mock(recv_exit_status=lambda: -1)
    channel.get_transport.return_value.is_active.return_value = is_active
    with pytest.raises(HostFailed, match=what):
        _Channel(SshHost("node1"), channel).code()


def test_a_connection_lost_before_the_command_is_sent_is_not_waited_for_without_end() -> None:
    """Paramiko drops the request then, and waits for its answer."""
    channel = paramiko.Channel(1)
    channel._set_transport(Mock(get_exception=lambda: None, get_log_channel=lambda: "a"))  # type: ignore[attr-defined]
    channel.active = True
    transport = Mock(open_session=lambda timeout: channel)
    failed: list[str] = []

    def open_session() -> None:
        with pytest.raises(paramiko.SSHException) as caught:
            _open_session(transport, "true", 0.1)
        failed.append(str(caught.value))

    thread = threading.Thread(target=open_session, daemon=True)
    thread.start()
    thread.join(10)
    assert failed == ["Channel closed."]
