"""Cases of the rule of trust, for both of its implementations: caffe_recipes/trust.py and node.sh.

Each has a tree below a folder of root's. An entry is `OWNER MODE [acl]`, or `OWNER -> TARGET` for a link, and
is a file if it is called that. The group of everything is one that this user is not in.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
USERS = {"root": 0, "me": 1234, "bob": 54321, "nobody": 65534}
_GROUP = 54321


@dataclass(frozen=True)
class Case:
    """May this user read and believe the file at the end of `path`, and may they write there?

    `named` users are trusted. With `maps`, texts of uid_map, it is asked in a user namespace, or in several
    that contain each other. `own` is whether the file is as good as this user's own, None if it is not asked.
    """

    name: str
    tree: dict[str, str]
    path: str
    read: bool
    write: bool
    named: tuple[str, ...] = ()
    me: str = "me"
    maps: tuple[str, ...] = ()
    own: bool | None = None

    def make(self, top: Path) -> Path:
        """Make the tree; return the path that is asked about."""
        for name, entry in self.tree.items():
            owner, what, *more = entry.split()
            path = top / name
            if what == "->":
                path.symlink_to(more[0])
            elif path.name == "file":
                path.touch()
            else:
                path.mkdir()
            if "acl" in more:
                give_access(path, USERS["bob"])
            os.chown(path, USERS[owner], _GROUP, follow_symlinks=False)
            if what != "->":
                path.chmod(int(what, 8))
        return top / self.path


def give_access(path: Path, user: int) -> None:
    """Let a user write by an access control list; skip the test where these are unsupported."""
    entries = ((1, 7, -1), (2, 7, user), (4, 0, -1), (0x10, 7, -1), (0x20, 0, -1))
    rights = b"".join(struct.pack("<HHI", *entry[:2], entry[2] & 0xFFFFFFFF) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + rights)
    except OSError:
        pytest.skip("this file system has no access control lists")


def plant(link: Path, to: Path, owner: int = STRANGER) -> Path:
    link.symlink_to(to)
    os.chown(link, owner, owner, follow_symlinks=False)
    return link


_MINE = {"mine": "me 755", "mine/file": "me 644"}
_TMP = {"tmp": "root 1777"}
_NFS = {"nfs": "nobody 755", "nfs/data": "nobody 755", "nfs/data/file": "nobody 644"}
_BOBS = {"tmp/bob": "bob 755", "tmp/bob/file": "bob 644"}
_IN_CONTAINER = ("1234 0 1",)
_AS_ROOT_OF_CONTAINER = ("0 0 1",)
# Of rootless podman with --userns=keep-id, which maps all users twice.
_KEEPING_ID = ("0 0 1\n1 100000 65536", "0 1 1234\n1234 0 1\n1235 1235 64302")
# Of a container that root made, with users of its own and one of the machine's.
_WITH_USERS = ("0 100000 1234\n1234 1234 1\n1235 101235 64301",)

CASES = (
    # Where nobody but the owners of the folders can create anything.
    Case("own file", _MINE, "mine/file", True, True),
    Case(
        "project folder of a colleague",
        {"project": "bob 755", "project/file": "bob 644"},
        "project/file",
        True,
        True,
    ),
    Case(
        "own folder in the project folder of a group",
        {"project": "bob 2775", "project/mine": "me 755", "project/mine/file": "me 644"},
        "project/mine/file",
        True,
        True,
    ),
    Case(
        "own folder on a mount with squashed root",
        {"nfs": "nobody 755", "nfs/mine": "me 755", "nfs/mine/file": "me 644"},
        "nfs/mine/file",
        True,
        True,
    ),
    Case("data on a mount with squashed root", _NFS, "nfs/data/file", True, True, own=False),
    Case("the same, for root", _NFS, "nfs/data/file", True, True, me="root", own=True),
    Case(
        "the same, for root of a container",
        _NFS,
        "nfs/data/file",
        True,
        True,
        me="root",
        maps=_AS_ROOT_OF_CONTAINER,
        own=False,
    ),
    Case(
        "file of nobody in the folder of a colleague, for root",
        {"project": "bob 755", "project/file": "nobody 644"},
        "project/file",
        True,
        True,
        me="root",
        own=False,
    ),
    Case(
        "file of a colleague in a folder of nobody, for root",
        {"nfs": "nobody 755", "nfs/file": "bob 644"},
        "nfs/file",
        True,
        True,
        me="root",
        own=False,
    ),
    Case(
        "file of nobody in a folder of nobody that everybody can change, for root",
        {"nfs": "nobody 777", "nfs/file": "nobody 644"},
        "nfs/file",
        False,
        False,
        me="root",
        own=False,
    ),
    Case(
        "data of nobody in /tmp, for root",
        _TMP | {"tmp/data": "nobody 755", "tmp/data/file": "nobody 644"},
        "tmp/data/file",
        False,
        False,
        me="root",
    ),
    Case("file of a colleague in an own folder", _MINE | {"mine/file": "bob 644"}, "mine/file", True, True),
    Case(
        "list of users in a project folder",
        {"mine": "me 770 acl", "mine/file": "me 644"},
        "mine/file",
        True,
        True,
    ),
    Case("file that everybody can change", _MINE | {"mine/file": "me 666"}, "mine/file", False, True),
    Case("sticky file that everybody can change", _MINE | {"mine/file": "me 1666"}, "mine/file", False, True),
    Case("folder that everybody can change", _MINE | {"mine": "me 777"}, "mine/file", False, True),
    Case(
        "everybody's sticky folder that a colleague owns",
        {"q": "bob 1777", "q/file": "me 644"},
        "q/file",
        True,
        False,
    ),
    Case("the same, trusted", {"q": "bob 1777", "q/file": "me 644"}, "q/file", True, True, named=("bob",)),
    # Links there.
    Case("own link", _MINE | {"link": "me -> mine"}, "link/file", True, True),
    Case("own link to a file", _MINE | {"link": "me -> mine/file"}, "link", True, True),
    Case(
        "link of a colleague in their folder, on the way",
        _MINE | {"project": "bob 755", "project/link": "bob -> ../mine"},
        "project/link/file",
        True,
        True,
    ),
    Case(
        "link of a colleague in their folder, at the end",
        _MINE | {"project": "bob 755", "project/link": "bob -> ../mine/file"},
        "project/link",
        True,
        False,
    ),
    Case(
        "link of a member in the folder of a group",
        _MINE | {"project": "me 2775", "project/link": "bob -> ../mine"},
        "project/link/file",
        True,
        False,
    ),
    Case(
        "own link in a folder where everybody can exchange it",
        _MINE | {"q": "me 777", "q/link": "me -> ../mine"},
        "q/link/file",
        False,
        False,
    ),
    # In and below a folder where everybody can create files.
    Case("own file in /tmp", _TMP | {"tmp/file": "me 644"}, "tmp/file", True, True),
    Case("file of root's in /tmp", _TMP | {"tmp/file": "root 644"}, "tmp/file", True, True),
    Case("file of a stranger in /tmp", _TMP | {"tmp/file": "bob 644"}, "tmp/file", False, True),
    Case("folder of a stranger in /tmp", _TMP | _BOBS, "tmp/bob/file", False, False),
    Case("folder of a trusted user in /tmp", _TMP | _BOBS, "tmp/bob/file", True, True, named=("bob",)),
    Case(
        "own folder in /tmp",
        _TMP | {"tmp/mine": "me 755", "tmp/mine/file": "me 644"},
        "tmp/mine/file",
        True,
        True,
    ),
    Case(
        "own folder in /tmp that a group can change",
        _TMP | {"tmp/mine": "me 775", "tmp/mine/file": "me 644"},
        "tmp/mine/file",
        False,
        False,
    ),
    Case(
        "own folder in /tmp that a list of users can change",
        _TMP | {"tmp/mine": "me 770 acl", "tmp/mine/file": "me 644"},
        "tmp/mine/file",
        False,
        False,
    ),
    Case(
        "own folder in /tmp that everybody can change",
        _TMP | {"tmp/mine": "me 777", "tmp/mine/file": "me 644"},
        "tmp/mine/file",
        False,
        False,
    ),
    Case(
        "everybody's sticky folder in /tmp, own",
        _TMP | {"tmp/mine": "me 1777", "tmp/mine/file": "me 644"},
        "tmp/mine/file",
        True,
        True,
    ),
    Case(
        "everybody's sticky folder in /tmp of a stranger",
        _TMP | {"tmp/bob": "bob 1777", "tmp/bob/file": "me 644"},
        "tmp/bob/file",
        False,
        False,
    ),
    Case(
        "folder of a stranger in an own one in /tmp",
        _TMP | {"tmp/mine": "me 755", "tmp/mine/bob": "bob 755", "tmp/mine/bob/file": "bob 644"},
        "tmp/mine/bob/file",
        False,
        True,
    ),
    Case(
        "folder of a colleague below root's in /tmp",
        _TMP | {"tmp/users": "root 755", "tmp/users/bob": "bob 755", "tmp/users/bob/file": "bob 644"},
        "tmp/users/bob/file",
        True,
        True,
    ),
    Case(
        "the same, for root",
        _TMP | {"tmp/users": "root 755", "tmp/users/bob": "bob 755", "tmp/users/bob/file": "bob 644"},
        "tmp/users/bob/file",
        False,
        True,
        me="root",
    ),
    Case(
        "folder of a colleague below root's in /tmp, which a group can change",
        _TMP | {"tmp/users": "root 775", "tmp/users/bob": "bob 755", "tmp/users/bob/file": "bob 644"},
        "tmp/users/bob/file",
        False,
        False,
    ),
    Case("own link in /tmp", _MINE | _TMP | {"tmp/link": "me -> ../mine"}, "tmp/link/file", True, True),
    Case(
        "planted link in /tmp", _MINE | _TMP | {"tmp/link": "bob -> ../mine"}, "tmp/link/file", False, False
    ),
    Case(
        "planted link in /tmp to a file",
        _MINE | _TMP | {"tmp/link": "bob -> ../mine/file"},
        "tmp/link",
        False,
        False,
    ),
    Case(
        "own link to a planted link",
        _MINE | _TMP | {"tmp/link": "bob -> ../mine", "link": "me -> ./tmp/link"},
        "link/file",
        False,
        False,
    ),
    Case("out of the folder of a stranger", _MINE | _TMP | _BOBS, "tmp/bob/../../mine/file", False, False),
    Case("out of /tmp again", _MINE | _TMP, "tmp/../mine/file", True, True),
    # In containers, whose users have no numbers for those outside.
    Case(
        "own file in /tmp of a container",
        _TMP | {"tmp/file": "root 644"},
        "tmp/file",
        True,
        True,
        maps=_IN_CONTAINER,
    ),
    Case(
        "/tmp of a container, which somebody outside owns",
        {"tmp": "bob 1777", "tmp/file": "root 644"},
        "tmp/file",
        True,
        True,
        maps=_IN_CONTAINER,
    ),
    Case(
        "the same, for root of the container",
        {"tmp": "bob 1777", "tmp/file": "root 644"},
        "tmp/file",
        True,
        True,
        me="root",
        maps=_AS_ROOT_OF_CONTAINER,
    ),
    Case(
        "/tmp of a container with all users, which somebody outside owns",
        {"tmp": "bob 1777", "tmp/file": "root 644"},
        "tmp/file",
        True,
        True,
        maps=_KEEPING_ID,
    ),
    Case(
        "file from outside in /tmp of a container with all users",
        {"tmp": "bob 1777", "tmp/file": "bob 644"},
        "tmp/file",
        False,
        True,
        maps=_KEEPING_ID,
    ),
    Case(
        "folder from outside in /tmp of a container with all users",
        {"tmp": "bob 1777", "tmp/bob": "bob 755", "tmp/bob/file": "root 644"},
        "tmp/bob/file",
        False,
        False,
        maps=_KEEPING_ID,
    ),
    Case(
        "everybody's folder in a container of root's, whose owner could be its user nobody",
        {"tmp": "bob 1777", "tmp/file": "me 644"},
        "tmp/file",
        True,
        False,
        maps=_WITH_USERS,
    ),
    Case(
        "file from outside in /tmp of a container",
        {"tmp": "bob 1777", "tmp/file": "bob 644"},
        "tmp/file",
        False,
        True,
        maps=_IN_CONTAINER,
    ),
    Case(
        "folder from outside in /tmp of a container",
        {"tmp": "bob 1777", "tmp/bob": "bob 1777", "tmp/bob/file": "root 644"},
        "tmp/bob/file",
        False,
        False,
        maps=_IN_CONTAINER,
    ),
)
