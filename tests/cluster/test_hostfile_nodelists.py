from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caffe_recipes.cluster.hostfile import fold_hosts, is_host_name, parse_nodelist
from caffe_recipes.errors import InputError
from caffe_recipes.limits import MOST_HOSTS


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("c401-[001-003]", "c401-001 c401-002 c401-003"),
        ("c401-[001-002],c402-001", "c401-001 c401-002 c402-001"),
        ("c402-001,c401-001", "c402-001 c401-001"),
        ("n[3,1-2]", "n3 n1 n2"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[09-11]", "n09 n10 n11"),
        ("r[2,1]n[2,1]", "r2n2 r2n1 r1n2 r1n1"),
        ("n[1-2].example.org", "n1.example.org n2.example.org"),
        ("n[1-7/3]", "n1 n4 n7"),
        ("n[5]", "n5"),
        ("n1,n1,n[1-2]", "n1 n1 n1 n2"),
        (" n1 ", "n1"),
    ],
)
def test_a_node_list_keeps_its_order_and_what_it_names_twice(text: str, hosts: str) -> None:
    assert " ".join(parse_nodelist(text, "nodes")) == hosts


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "'' is not a node list"),
        ("a,,b", "'a,,b' is not a node list"),
        ("a,", "'a,' is not a node list"),
        ("a[1-2", "'a[1-2' is not a node list"),
        ("a]1[", "'a]1[' is not a node list"),
        ("a[[1]]", "'a[[1]]' is not a node list"),
        ("a[]", "'' in 'a[]' is not a range"),
        ("a[1-]", "'1-' in 'a[1-]' is not a range"),
        ("a[x]", "'x' in 'a[x]' is not a range"),
        ("a[1,,2]", "'' in 'a[1,,2]' is not a range"),
        ("a[3-1]", "range 3-1 runs backwards"),
        ("a[01-3]", "range 01-3 has numbers of different widths"),
        ("-a[1-2]", "'-a[1-2]' is not a host"),
        ("@all", "'@all' is not a host"),
        ("a!b", "'a!b' is not a host"),
        ("a*", "'a*' is not a host"),
        ("a b", "'a b' is not a host"),
        ("$(touch x)", "'$(touch x)' is not a host"),
        ("a[1-999999999]", "names more than 100,000 hosts"),
        ("a[1-1000][1-1000]", "names more than 100,000 hosts"),
        (f"a[1-{MOST_HOSTS}],b", "names more than 100,000 hosts"),
    ],
)
def test_an_invalid_node_list_is_refused_in_one_line(text: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_nodelist(text, "nodes")
    assert what in str(caught.value)
    assert str(caught.value).startswith("nodes: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hosts", "folded"),
    [
        ("c401-001 c401-002 c401-003", "c401-[001-003]"),
        ("c401-003 c401-001 c401-002", "c401-003,c401-[001-002]"),
        ("c401-001 c401-003", "c401-[001,003]"),
        ("c401-001 c402-001 c403-001", "c401-001,c402-001,c403-001"),
        ("c401-001 c401-002 c402-001 c402-002", "c401-[001-002],c402-[001-002]"),
        ("n9 n10 n11", "n[9-11]"),
        ("localhost", "localhost"),
        ("head n1 n2", "head,n[1-2]"),
        ("n1 n1", "n1,n1"),
        ("", ""),
    ],
)
def test_hosts_are_folded_in_their_order(hosts: str, folded: str) -> None:
    assert fold_hosts(hosts.split()) == folded


names = st.from_regex(r"[a-z]{1,2}([0-9]{1,3}(-[0-9]{1,2})?)?", fullmatch=True)


@given(st.lists(names, min_size=1, max_size=20))
def test_whatever_is_folded_reads_back_as_the_same_hosts_in_the_same_order(hosts: list[str]) -> None:
    assert list(parse_nodelist(fold_hosts(hosts), "nodes")) == hosts


@given(st.integers(0, 2000), st.integers(1, 300), st.integers(1, 5))
def test_a_thousand_neighbours_are_one_short_word(first: int, count: int, width: int) -> None:
    hosts = [f"n{number:0{width}d}" for number in range(first, first + count)]
    assert len(fold_hosts(hosts)) < 60
    assert list(parse_nodelist(fold_hosts(hosts), "nodes")) == hosts


def test_a_name_that_looks_like_an_option_is_not_a_host_name() -> None:
    bad = ["-l", "-oProxyCommand=x", "", ".", "a-", "a b", "a\n", "a;b", "a$b", "ä", "a" * 300]
    assert not any(is_host_name(name) for name in bad)
    parts = itertools.product(["a", "1a"], ["", ".", "-", "_", ".-"], "b2")
    assert all(is_host_name(f"{one}{middle}{other}") for one, middle, other in parts)


@pytest.mark.parametrize("name", ["0", "007", "0.0.0.0", "0.0", "1234"])
def test_text_that_resolves_to_an_unintended_address_is_not_a_host_name(name: str) -> None:
    assert not is_host_name(name)
    with pytest.raises(InputError, match=f"^nodes: '{name}' is not a host; a host name cannot be a number"):
        parse_nodelist(name, "nodes")


def test_other_addresses_and_names_that_begin_with_digits_are_names() -> None:
    assert all(is_host_name(name) for name in ["10.0.0.1", "0.0.0.1", "1a", "3com", "0-1"])
    assert parse_nodelist("10.0.0.[0-1]", "nodes") == ("10.0.0.0", "10.0.0.1")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("a" * 300, "host names have at most 255 characters"),
        ("node1.", "remove the trailing dot"),
        ("a!", "write hosts as in"),
    ],
)
def test_why_a_text_is_not_a_host_is_reported_where_it_is_known(name: str, hint: str) -> None:
    with pytest.raises(InputError, match=f"is not a host; {hint}"):
        parse_nodelist(name, "nodes")
