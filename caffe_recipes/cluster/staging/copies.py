"""What copies that staging did not make were found to be, kept as long as they do not change.

Such a copy has no stamp, and gets none: it is not ours to take away. A run looks at it twice, and so does the
next: of 42 GB that would be minutes each time. What is kept is in the user's cache, beside the manifests.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from caffe_recipes.cluster.staging.manifest import own_cache, write_kept


class Copy(NamedTuple):
    """A file on a host: what changes whenever it is written, and the digest that it had then."""

    stamp: str
    digest: str


def load_copies(lmdb: str, cache: Path) -> dict[str, Copy]:
    """Return what is known of an LMDB's copies, by host; nothing where others could have written it."""
    try:
        known = json.loads((own_cache(cache) / _name_of(lmdb)).read_text("utf-8"))
        return {str(host): Copy(str(stamp), str(digest)) for host, (stamp, digest) in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def keep_copies(lmdb: str, found: Mapping[str, Copy], cache: Path) -> None:
    """Keep what copies were found to be, beside what is known of others."""
    copies = {**load_copies(lmdb, cache), **found}
    with contextlib.suppress(OSError):  # without a cache of ours they are hashed again
        write_kept(own_cache(cache) / _name_of(lmdb), json.dumps(copies))


def _name_of(lmdb: str) -> Path:
    return Path("copies") / f"{hashlib.sha256(os.fsencode(lmdb)).hexdigest()[:32]}.json"
