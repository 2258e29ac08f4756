"""Check that no other user could have put the data that a run reads on a host, as everybody can in /tmp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from caffe_recipes.cluster.commands import Host
from caffe_recipes.cluster.hosts import Answer, LocalHost, ask_all, first_error
from caffe_recipes.cluster.remote import ask_node
from caffe_recipes.run.context import Setting

DataPart = Literal["train", "test"]
_ASK_S = 120.0
_HINTS = {
    "train": "have it removed and stage your own copy (--lmdb-source), or set another folder in the recipe",
    "test": "have it removed, or set a folder with your own copy in the recipe",
}


def ask_about_data(setting: Setting, part: DataPart, hosts: Sequence[Host]) -> tuple[Answer[object], ...]:
    """Ask hosts who could have put the data there; the error of an answer names the folder and its owner.

    Test data are asked about on this machine, which evaluates, and on the hosts only if ranks read them too.
    """
    trainer = setting.trainer
    folder = trainer.data_folder if part == "train" else trainer.test_folder
    if folder is None:
        return ()
    if part == "test":
        here = [host for host in hosts if host.is_local][:1] or [LocalHost()]
        hosts = [*here, *(host for host in hosts if trainer.tests_on_ranks and host not in here)]
    path, root, hint = setting.path(folder), str(setting.root), _HINTS[part]
    return ask_all(hosts, lambda host: ask_node(host, "read", path, root, hint=hint), _ASK_S)


def check_data(setting: Setting, part: DataPart) -> None:
    """Raise ClusterError if another user could have put the data there that a run reads."""
    error = first_error(ask_about_data(setting, part, setting.hosts))
    if error is not None:
        raise error
