from __future__ import annotations

import re

from caffe_recipes.run.failures.signatures import DIVERGED, SIGNATURES, FailureReader, find_signature

MISSING = "F0707 16:48:46.336623 16692 db_lmdb.hpp:15] Check failed: mdb_status == 0 (2 vs. 0) No such file"
KILLED = "=   EXIT CODE: 9"


def test_every_entry_says_why_what_to_do_and_where_that_is_known_from() -> None:
    for diagnosis in (DIVERGED, *(signature.diagnosis for signature in SIGNATURES)):
        for text in (diagnosis.cause, diagnosis.remedy, diagnosis.source):
            assert text and not text.endswith("."), diagnosis.name


def test_one_name_has_one_cause() -> None:
    by_name: dict[str, set[tuple[bool, bool]]] = {}
    for one in (signature.diagnosis for signature in SIGNATURES):
        by_name.setdefault(one.name, set()).add((one.is_guess, one.is_consequence))
    assert [name for name, kinds in by_name.items() if len(kinds) > 1] == []


def test_a_pattern_says_more_than_its_word() -> None:
    same = [one.word for one in SIGNATURES if one.pattern in (one.word, re.escape(one.word))]
    assert same == []


def test_of_two_entries_that_match_the_more_specific_one_wins() -> None:
    line = "x execvp error on file /a/ep_server (No such file or directory)"
    found = find_signature(line)
    assert found is not None and found.diagnosis.name == "mlsl-server-missing"


def test_what_others_print_because_of_a_failure_does_not_replace_its_cause() -> None:
    for lines in ((KILLED, MISSING), (MISSING, KILLED)):
        reader = FailureReader()
        for line in lines:
            reader.feed(line)
        assert reader.best is not None and reader.best.name == "lmdb-missing"


def test_a_failure_is_reported_once_and_its_consequences_are_not() -> None:
    reader = FailureReader()
    reported = [reader.feed(line) for line in (MISSING, MISSING, KILLED)]
    assert [one.name if one else None for one in reported] == ["lmdb-missing", None, None]


def test_a_guess_is_called_one() -> None:
    found = find_signature(KILLED)
    assert found is not None
    assert found.diagnosis.as_lines()[0].startswith("  cause: this is a guess: a rank was killed")
