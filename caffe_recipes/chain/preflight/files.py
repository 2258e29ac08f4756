"""The files that a training names: prototxts and weights, the same on every host as here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from caffe_recipes.chain.plan import find_trained
from caffe_recipes.chain.preflight.findings import Finding, Trouble, tell, trouble_of
from caffe_recipes.chain.preflight.look import Look
from caffe_recipes.chain.snapshots import verify_kept, verify_weights
from caffe_recipes.cluster.hosts import Host, LocalHost, file_bytes, file_digest
from caffe_recipes.cluster.parallel import ask_all
from caffe_recipes.errors import InputError, WeightsError
from caffe_recipes.generate.nets import build_net
from caffe_recipes.generate.tree import find_differences

# What a host reads in a second or two; of more the size has to do.
HASHED_BYTES = 1e9
_HASH_S = 600.0
_SHARED = "the Caffe root must be one folder that all hosts see"


def check_prototxts(look: Look) -> list[Finding]:
    """Compare the prototxts that are in place with the recipe's, and those of each host with ours.

    Raises InputError for one that differs from what the recipe generates, unless it is to be overwritten.
    """
    setting, differences = look.setting, find_differences(look.plan.prototxts, look.setting.root)
    changed = [diff.path for diff in differences if diff.what == "changed"]
    if changed and not setting.overwrite:
        what = "differs from what the recipe generates"
        raise InputError(setting.path(changed[0]), what, "move it away, or give --overwrite")
    here = LocalHost()
    ours = {
        path: file_digest(here, path)
        for path in map(setting.path, look.plan.prototxts)
        if Path(path).is_file()
    }
    troubles = [
        Trouble(facts.host, "no such file there" if seen is None else "differs from ours", _SHARED, path)
        for facts in look.facts.values()
        for path, digest in ours.items()
        if (seen := facts.digests.get(path)) != digest
    ]
    said = f"{len(look.plan.prototxts)} in {', '.join(setting.recipe.prototxt_dirs)}"
    return tell("prototxts", _first_of_each_host(troubles), said)


def check_start(look: Look) -> list[Finding]:
    """Look into what the unfinished phases start from, here and on every host that is to read it.

    What an unfinished phase is still to make is left out. Raises WeightsError.
    """
    setting, state = look.setting, look.state
    finished = {
        path: (digest, done.phase)
        for done in state.finished.values()
        for path, digest in ((done.snapshot, done.sha256), *done.needed.items())
    }
    made = {path for step in look.plan.trainings for path in step.kept} - finished.keys()
    trained = [(step.weights, step.net) for step in look.unfinished]
    needed = [*trained, *((testing.weights, testing.net) for testing in look.plan.testings)]
    given = dict.fromkeys((path, net) for path, net in needed if path and path not in made)
    for path, net in given:
        if path in finished:
            digest, phase = finished[path]
            before = find_trained(setting.recipe, phase, path)
            verify_kept(Path(setting.path(path)), digest, phase, before)
        verify_weights(Path(setting.path(path)), build_net(setting.recipe, net))
    read = dict.fromkeys(path for path, _ in trained if path and path not in made)
    first = needed[0][0] if needed else None
    troubles = unlike_here(look.hosts, [setting.path(path) for path in read])
    return tell("starts from", troubles, first or "the nets' fillers")


def unlike_here(hosts: Sequence[Host], paths: Sequence[str]) -> list[Trouble]:
    """Compare files on hosts with those here, all hosts at once: their sizes, and their digests if small."""
    here, distant = LocalHost(), [host for host in hosts if not host.is_local]
    if not distant:
        return []
    troubles: list[Trouble] = []
    for path in paths:
        size = file_bytes(here, path) or 0
        digest = file_digest(here, path) if size <= HASHED_BYTES else None

        def judge(host: Host, path: str = path, size: int = size, digest: str | None = digest) -> str | None:
            seen = file_bytes(host, path)
            if seen is None:
                return "no such file there"
            if seen != size:
                return f"has {seen:,} bytes there, {size:,} here"
            return "differs from ours" if digest and file_digest(host, path) != digest else None

        for answer in ask_all(distant, judge, _HASH_S):
            if answer.error is not None:
                troubles.append(trouble_of(answer.host.name, answer.error))
            elif answer.value is not None:
                hint = f"every rank reads it: {_SHARED}"
                troubles.append(Trouble(answer.host.name, answer.value, hint, path, kind=WeightsError))
    return troubles


def _first_of_each_host(troubles: Sequence[Trouble]) -> list[Trouble]:
    """Keep one trouble a host: where one file differs, others of the folder do."""
    return list({trouble.host: trouble for trouble in reversed(troubles)}.values())[::-1]
