from __future__ import annotations

import json

from caffe_recipes.run.hidden_texts import TextHider, digest_texts

TEXTS = ("hunter2", "hunter2&more", "ünïcode", "no")


def test_texts_are_left_out_wherever_they_are_and_the_longest_first() -> None:
    hider = TextHider([("salt", digest_texts(TEXTS, "salt"))])
    shown = {"a": ["TOKEN=hunter2&more, hunter2hunter2", 7], "b": "x ünïcode no hunter"}
    assert hider.hide(shown) == {"a": ["TOKEN=(hidden), (hidden)(hidden)", 7], "b": "x (hidden) no hunter"}


def test_digests_tell_nothing_without_their_salt_and_damaged_ones_hide_nothing() -> None:
    digests = digest_texts(TEXTS, "salt")
    assert not any(text in json.dumps(digests) for text in TEXTS[:3])
    assert set(digests).isdisjoint(digest_texts(TEXTS, "other"))
    damaged = ["", "7", "7:zz", "-1:00", f"0:{digests[0]}"]
    for known in ([("other", digests)], [("salt", damaged)], []):
        assert TextHider(known).hide("hunter2") == "hunter2"


def test_a_journal_with_any_number_of_digests_costs_the_time_of_a_thousand() -> None:
    texts = [f"secret-{number:04}" for number in range(1200)]
    hider = TextHider([("salt", digest_texts(texts, "salt")), ("other", digest_texts(["hunter2"], "other"))])
    assert str(hider.hide(" ".join(texts))).count("(hidden)") == 1000
    assert hider.hide("hunter2") == "(hidden)"


def test_the_texts_of_several_runs_are_left_out() -> None:
    runs = (("a", "first"), ("b", "second"), ("a", "third"))  # a copy of a run that has resumed has its id
    hider = TextHider([(salt, digest_texts([text], salt)) for salt, text in runs])
    assert hider.hide("first second third") == "(hidden) (hidden) (hidden)"
