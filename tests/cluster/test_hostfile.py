from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from caffe_recipes.cluster.hostfile import (
    find_hosts_outside_job,
    load_hostfile,
    parse_hostfile,
    parse_nodelist,
    render_hostfile,
    take_hosts,
)
from caffe_recipes.errors import InputError


def test_hosts_come_in_order_without_comments_blank_lines_and_rank_counts() -> None:
    text = "# rack 4\n\n  c401-002:2 \r\n\tc401-001\n#c401-003\nlocalhost\n"
    assert parse_hostfile(text, "hostfile") == ("c401-002", "c401-001", "localhost")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "hostfile: contains no hosts"),
        ("\n# nobody\n", "hostfile: contains no hosts"),
        ("a\nb\na:2\n", "hostfile:3: host a appears twice (first on line 1)"),
        ("a # comment\n", "hostfile:1: 'a # comment' is not a host"),
        ("a:x\n", "hostfile:1: 'a:x' is not a host"),
        ("a:" + "9" * 5000 + "x\n", "hostfile:1: 'a:999"),
        ("a:0\n", "hostfile:1: 'a:0' is not a host"),
        ("a\n-oProxyCommand=x\n", "hostfile:2: '-oProxyCommand=x' is not a host"),
        ("a b\n", "hostfile:1: 'a b' is not a host"),
        ("größe\n", "hostfile:1: 'größe' is not a host"),
        ("a\x00\n", "hostfile:1: 'a\\x00' is not a host"),
        ("a" * 10_000 + "!\n", "hostfile:1: 'aaaa"),
    ],
)
def test_lines_that_hydra_would_crash_on_or_misread_are_refused_with_their_number(
    text: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        parse_hostfile(text, "hostfile")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("root@a", "write only the host; set its user in ~/.ssh/config"),
        ("fe80::1", "hydra reads what follows a colon as the number of ranks; write the host's name"),
        ("[2001:db8::1]:2", "hydra reads what follows a colon as the number of ranks; write the host's name"),
        ("a slots=4", "this is the syntax of Open MPI; for hydra write `host:ranks`"),
        ("root@a slots=4 max_slots=4", "write only the host"),
        ("a max-slots=2", "this is the syntax of Open MPI"),
        ("a 4", "for hydra write one `host:ranks` per line"),
        ("a:4 # rack 1", "write the comment on a line of its own, as hydra requires"),
        ("a:4 binding=user:0", "options of a host are not supported; write `host:ranks`"),
        ("a:0", "write the number of ranks as an integer of at least 1; -ppn overrides it"),
        ("a:-1", "write the number of ranks as an integer"),
        ("a: 2", "write the number of ranks as an integer"),
        ("a:two", "write the number of ranks as an integer"),
        ("n[1-4]:", "write the number of ranks as an integer"),
        ("ssh://a", "write one `host` or `host:ranks` per line"),
        ('"a"', "write one `host` or `host:ranks` per line"),
        ("a;b", "write one `host` or `host:ranks` per line"),
    ],
)
def test_the_hostfile_syntax_of_other_launchers_is_refused_with_the_one_of_hydra(
    line: str, hint: str
) -> None:
    with pytest.raises(InputError, match=r"^hostfile:1: .* is not a host; ") as caught:
        parse_hostfile(f"{line}\n", "hostfile")
    assert caught.value.hint.startswith(hint)


def test_a_pipe_is_read_to_its_end_and_one_without_a_writer_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="pipe: cannot be read: it is a pipe without a writer"):
        load_hostfile(pipe)
    reader, writer = os.pipe()
    with ThreadPoolExecutor(1) as pool, os.fdopen(reader), os.fdopen(writer, "wb", buffering=0) as file:
        read = pool.submit(load_hostfile, f"/dev/fd/{reader}")
        file.write(b"a\n")
        file.write(b"b\n")
        file.close()
        assert read.result() == ("a", "b")


def test_a_missing_a_binary_and_a_folder_hostfile_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00a")
    for path, what in [
        (tmp_path / "none", "no such file; write one host per line into it"),
        (binary, "is not a text file"),
        (tmp_path, "cannot be"),
    ]:
        with pytest.raises(InputError, match=what):
            load_hostfile(path)


def test_only_the_hosts_that_ranks_run_on_are_taken() -> None:
    assert take_hosts(("a", "b", "c"), 2, 4, "hostfile") == ("a", "b")


def test_more_ranks_than_hosts_times_ppn_are_refused() -> None:
    with pytest.raises(InputError, match="1 host x 2 ranks = 2, but the recipe needs 4; give 2 hosts"):
        take_hosts(("a",), 2, 2, "hostfile")


def test_localhost_is_not_a_name_among_hosts_that_reach_each_other() -> None:
    with pytest.raises(InputError) as caught:
        take_hosts(("node1", "localhost", "node2"), 2, 1, "hostfile")
    beside = "lists localhost beside node1, but localhost is a different machine on each host"
    assert str(caught.value) == f"hostfile: {beside}; replace localhost with the name of this machine"
    assert take_hosts(("node1", "node2", "localhost"), 2, 1, "hostfile") == ("node1", "node2")
    assert take_hosts(("localhost", "127.0.0.1"), 2, 1, "hostfile") == ("localhost", "127.0.0.1")


def test_a_folded_line_stands_for_its_hosts_and_the_first_holds_rank_0() -> None:
    text = "c402-[002,001]:2\nc401-[001-003]\nlogin\n"
    hosts = ("c402-002", "c402-001", "c401-001", "c401-002", "c401-003", "login")
    assert parse_hostfile(text, "hostfile") == hosts
    assert render_hostfile(hosts[:2]) == "c402-002\nc402-001\n"
    assert parse_hostfile(render_hostfile(hosts), "x") == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n[1-3]\nn2\n", "hostfile:2: host n2 appears twice (first on line 1)"),
        ("n[1,1]\n", "hostfile:1: host n1 appears twice (first on line 1)"),
        ("n[3-1]\n", "hostfile:1: range 3-1 runs backwards"),
        ("a\nn[1-2\n", "hostfile:2: 'n[1-2' is not a node list"),
        ("n[1-2]:0\n", "hostfile:1: 'n[1-2]:0' is not a host"),
        ("n[1-99999999]\n", "hostfile:1: 'n[1-99999999]' names more than 100,000 hosts"),
    ],
)
def test_a_mistake_in_a_folded_line_is_reported_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_hostfile(text, "hostfile")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("hosts", "strangers"),
    [
        (("n1", "N2.example.org"), ()),
        (("n1.example.org", "n3.example.org"), ("n3.example.org",)),
        (("n1.other.org", "n2.other.org"), ("n1.other.org",)),
        (("localhost", "n2"), ("localhost",)),
        (("n",), ("n",)),
    ],
)
def test_hosts_of_a_job_are_known_by_short_and_full_names(
    hosts: tuple[str, ...], strangers: tuple[str, ...]
) -> None:
    assert find_hosts_outside_job(hosts, ("n1.example.org", "n2")) == strangers


@pytest.mark.promise("hostile files cost no more than their limit")
@pytest.mark.parametrize("text", ["a," * 600_000, f"n[{'1,' * 600_000}1]", "n" * 1_200_000, " " * 1_200_000])
def test_a_line_that_would_take_long_to_parse_is_refused_before_it_is(text: str) -> None:
    for parse, where in ((parse_hostfile, "given:1"), (parse_nodelist, "given")):
        with pytest.raises(InputError, match=r"continues for over 1,000,000 bytes; write ranges") as caught:
            parse(text, "given")
        assert caught.value.where == where
