"""A session over an ssh connection that is lost at the worst moment, without a connection."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import paramiko
import pytest

from caffe_recipes.cluster.ssh import _Channel, _open_session


@pytest.mark.parametrize("error", [EOFError(), OSError("closed"), paramiko.SSHException("timed out")])
def test_a_session_is_closed_although_its_connection_is_lost(error: Exception) -> None:
    host, login = Mock(), Mock()
    session = _Channel(host, Mock(close=Mock(side_effect=error)), login)
    session.close()
    host.release.assert_called_once_with(login)


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
