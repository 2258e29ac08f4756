"""Our functions on hosts: their answers are distinguished from other output of a host."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib import resources
from typing import get_args

import pytest

from caffe_recipes.cluster.commands import COMMAND_S, Completed
from caffe_recipes.cluster.hosts import LocalHost
from caffe_recipes.cluster.remote import (
    Conversation,
    NodeRefusal,
    Program,
    SharedPart,
    ask_node,
    call,
    call_to_end,
    check_trust,
    full_program_text,
)
from caffe_recipes.errors import ClusterError, HostFailed
from tests.stand_in_host import StandInHost, answer_call

HOST = LocalHost("here")
LAUNCH = "0123456789abcdef"


def test_every_program_is_a_file_and_every_file_a_program() -> None:
    files = {path.name for path in resources.files("caffe_recipes.cluster").joinpath("sh").iterdir()}
    assert files == {f"{name}.sh" for name in (*get_args(Program), *get_args(SharedPart))}


@pytest.mark.parametrize("name", get_args(Program))
def test_a_program_is_posix_shell_without_findings(name: Program) -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    # `test -O` and `-ef` are in every shell that we know.
    argv = [shellcheck, "-s", "sh", "-e", "SC3067,SC3013", "-"]
    done = subprocess.run(argv, input=full_program_text(name), capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_other_output_of_a_host_is_not_part_of_the_answer() -> None:
    class Greeting(LocalHost):
        def run(self, argv: Sequence[str], timeout_s: float = COMMAND_S) -> Completed:
            done = super().run(argv, timeout_s)
            return Completed(0, f"Welcome\ncaffe-recipes: end\n{done.stdout}{argv[4]}", "quota exceeded")

    assert call_to_end(Greeting("here"), "ranks", "list", LAUNCH) == []


def test_each_call_has_a_token_of_its_own() -> None:
    host = StandInHost(answer=lambda argv, stdin: answer_call(argv, "end"))
    for _ in range(2):
        call_to_end(host, "watch", "names", "/", ".x")
    first, second = (argv[4] for argv, _ in host.asked)
    assert first != second
    assert re.fullmatch(r"caffe-recipes-[0-9a-f]{16}:", first)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (Completed(0, "", ""), "exit 0"),
        (Completed(3, "", ""), "exit 3"),
        (Completed(127, "", "sh: no such thing\n"), "sh: no such thing"),
        (Completed(0, "caffe-recipes: end\n", ""), "caffe-recipes: end"),
    ],
)
def test_an_answer_that_cannot_be_read_names_host_and_function(answer: Completed, shown: str) -> None:
    message = f"^n1: cannot parse the answer to `list`: '{shown}'; check that the host has sh, /proc and GNU"
    with pytest.raises(HostFailed, match=message):
        call(StandInHost("n1", lambda argv, stdin: answer), "ranks", "list", LAUNCH)


def test_a_truncated_answer_is_not_accepted() -> None:
    def break_off(argv: tuple[str, ...], stdin: bytes) -> Completed:
        return Completed(0, f"{argv[4]} name YQ==\n{argv[4]} en", "")

    with pytest.raises(HostFailed, match="cannot parse the answer to `names`: 'name YQ=='"):
        call_to_end(StandInHost("n1", break_off), "watch", "names", "/", ".x")


def test_a_refusal_carries_host_path_and_hint() -> None:
    host = StandInHost("n1", lambda argv, stdin: answer_call(argv, "refused is a link"))
    with pytest.raises(NodeRefusal) as caught:
        ask_node(host, "probe", "/tmp/a", hint="remove it")
    error = caught.value
    assert (error.host, error.place, error.what, error.hint) == ("n1", "/tmp/a", "is a link", "remove it")


def test_the_hint_of_a_refusal_follows_the_error_of_the_hosts_disk() -> None:
    reason = "cannot be created: Read-only file system"
    host = StandInHost(answer=lambda argv, stdin: answer_call(argv, f"refused {reason}"))
    with pytest.raises(NodeRefusal) as caught:
        ask_node(host, "probe", "/tmp/a", hint="remove it")
    assert caught.value.hint == "have its file system mounted read-write, or use another folder"


@pytest.mark.parametrize("record", ["refused", "refused "])
def test_a_refusal_without_a_reason_is_one(record: str) -> None:
    host = StandInHost("n1", lambda argv, stdin: answer_call(argv, record))
    with pytest.raises(
        NodeRefusal, match=r"^n1:/tmp/a: `commit` failed without a reason; remove it if it is yours"
    ):
        ask_node(host, "commit", "/tmp/a", "part", "7", "-")


def test_an_answer_about_a_file_that_cannot_be_read_names_the_file() -> None:
    host = StandInHost("n1", lambda argv, stdin: Completed(1, "", "sh: gone"))
    with pytest.raises(HostFailed, match=r"^n1:/tmp/a: cannot parse the answer to `file-look`: 'sh: gone'"):
        ask_node(host, "file-look", "/tmp/a", "/root")


@pytest.mark.promise("an invalid answer is never trust")
@pytest.mark.parametrize("record", ["", "absent", "trusted by nobody"])
def test_an_answer_that_cannot_be_parsed_never_makes_a_path_trusted(record: str) -> None:
    host = StandInHost("n1", lambda argv, stdin: answer_call(argv, record))
    with pytest.raises(HostFailed, match=r"^n1:/tmp/a: cannot parse the answer to `read`: "):
        check_trust(host, "read", "/tmp/a", "/root", hint="remove it")


def test_a_conversation_continues_until_it_is_finished() -> None:
    with Conversation(HOST, "ranks", "beat", LAUNCH, "30") as conversation:
        assert [conversation.ask() for _ in range(3)] == [[], [], []]
        conversation.finish()


def test_a_broken_conversation_reports_how_it_ended() -> None:
    with (
        Conversation(HOST, "ranks", "beat", LAUNCH, "0.1") as conversation,
        pytest.raises(ClusterError, match=r"answer to `beat` cannot be read|no longer reads"),
    ):
        for _ in range(100):
            conversation.ask()
            subprocess.run(["sleep", "0.3"], check=True)


@pytest.mark.promise("a host cannot fill memory or disk")
def test_a_conversation_with_an_endless_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAFFE_RECIPES_LIMITS", "answer-bytes=200000")
    with Conversation(LocalHost("evil"), "ranks", "beat", LAUNCH, "30") as conversation:
        monkeypatch.setattr(conversation._command, "read", lambda: b"x")
        with pytest.raises(ClusterError, match=r"^evil: beat printed over 200,000 bytes; .*answer-bytes=N"):
            conversation.ask()
