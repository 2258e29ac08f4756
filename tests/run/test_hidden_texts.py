from __future__ import annotations

import json

from caffe_recipes.run.hidden_texts import TextHider, digest_texts

TEXTS = ("hunter2", "hunter2&more", "ünïcode", "no")


def test_texts_are_left_out_wherever_they_are_and_the_longest_first() -> None:
    hider = TextHider({"salt": digest_texts(TEXTS, "salt")})
    shown = {"a": ["TOKEN=hunter2&more, hunter2hunter2", 7], "b": "x ünïcode no hunter"}
    assert hider.hide(shown) == {"a": ["TOKEN=(hidden), (hidden)(hidden)", 7], "b": "x (hidden) no hunter"}


def test_digests_tell_nothing_without_their_salt_and_damaged_ones_hide_nothing() -> None:
    digests = digest_texts(TEXTS, "salt")
    assert not any(text in json.dumps(digests) for text in TEXTS[:3])
    assert set(digests).isdisjoint(digest_texts(TEXTS, "other"))
    for damaged in ({"other": digests}, {"salt": ["", "7", "7:zz", "-1:00", f"0:{digests[0]}"]}, {}):
        assert TextHider(damaged).hide("hunter2") == "hunter2"


def test_the_texts_of_several_runs_are_left_out() -> None:
    hider = TextHider({"a": digest_texts(["first"], "a"), "b": digest_texts(["second"], "b")})
    assert hider.hide("first second") == "(hidden) (hidden)"
