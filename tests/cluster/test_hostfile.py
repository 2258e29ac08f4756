from __future__ import annotations

from pathlib import Path

import pytest

from caffe_recipes.cluster.hostfile import load_hostfile, parse_hostfile, take_hosts
from caffe_recipes.errors import ClusterError


def test_hosts_come_in_order_without_comments_blank_lines_and_rank_counts() -> None:
    text = "# rack 4\n\n  c401-002:2 \r\n\tc401-001\n#c401-003\nlocalhost\n"
    assert parse_hostfile(text, "hostfile") == ("c401-002", "c401-001", "localhost")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "hostfile: holds no host"),
        ("\n# nobody\n", "hostfile: holds no host"),
        ("a\nb\na:2\n", "hostfile:3: host a is there twice (first in line 1)"),
        ("a # comment\n", "hostfile:1: 'a # comment' is no host"),
        ("a:x\n", "hostfile:1: 'a:x' is no host"),
        ("a:" + "9" * 5000 + "x\n", "hostfile:1: 'a:999"),
        ("a:0\n", "hostfile:1: 'a:0' is no host"),
        ("a\n-oProxyCommand=x\n", "hostfile:2: '-oProxyCommand=x' is no host"),
        ("a b\n", "hostfile:1: 'a b' is no host"),
        ("größe\n", "hostfile:1: 'größe' is no host"),
        ("a\x00\n", "hostfile:1: 'a\\x00' is no host"),
        ("a" * 10_000 + "!\n", "hostfile:1: 'aaaa"),
    ],
)
def test_what_hydra_would_crash_on_or_misread_is_named_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ClusterError) as caught:
        parse_hostfile(text, "hostfile")
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_a_missing_a_binary_and_a_folder_hostfile_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00a")
    for path, what in [
        (tmp_path / "none", "cannot be read"),
        (binary, "is not text"),
        (tmp_path, "cannot be"),
    ]:
        with pytest.raises(ClusterError, match=what):
            load_hostfile(path)


def test_only_the_hosts_that_ranks_run_on_are_taken() -> None:
    assert take_hosts(("a", "b", "c"), 2, 4, "hostfile") == ("a", "b")


def test_more_ranks_than_hosts_times_ppn_are_refused() -> None:
    with pytest.raises(ClusterError, match="1 host x 2 ranks = 2, the recipe needs 4; list 2 hosts"):
        take_hosts(("a",), 2, 2, "hostfile")
