"""The table of signatures: what each line means with which a program fails.

To add an entry, add it to the table of its programs; the first entry that matches a line explains it.
"""

from __future__ import annotations

from collections.abc import Sequence

from caffe_recipes.caffe.logs import INFO_LINE
from caffe_recipes.run.failures.caffe_signatures import CAFFE_SIGNATURES
from caffe_recipes.run.failures.cluster_signatures import CLUSTER_SIGNATURES
from caffe_recipes.run.failures.diagnosis import Diagnosis, Signature
from caffe_recipes.run.failures.gpu_signatures import GPU_SIGNATURES
from caffe_recipes.run.failures.net_signatures import NET_SIGNATURES
from caffe_recipes.run.failures.tensorflow_signatures import TENSORFLOW_SIGNATURES

SIGNATURES: tuple[Signature, ...] = (
    *CAFFE_SIGNATURES,
    *NET_SIGNATURES,
    *GPU_SIGNATURES,
    *TENSORFLOW_SIGNATURES,
    *CLUSTER_SIGNATURES,
)

DIVERGED = Diagnosis(
    "diverged",
    "the training has diverged: the loss is not a number, or is that of a net that gives the right class a"
    " probability of 0 (87.3365 is -log of the smallest float32)",
    "lower `base_lr` or lengthen the warm-up, and check labels, mean and scale; start from a snapshot"
    " that was written before the loss grew",
    "BVLC/caffe#5137; src/caffe/layers/softmax_loss_layer.cpp",
)


def select_signatures(text: str) -> Sequence[Signature]:
    """Return the signatures that lines of this text can have, in their order.

    For many lines at once this is ten times as fast as for each of them.
    """
    return [signature for signature in SIGNATURES if signature.word in text]


def find_signature(text: str, signatures: Sequence[Signature] = SIGNATURES) -> Signature | None:
    """Return the first signature of a line without its rank; None if the line is not known.

    >>> find_signature("Host key verification failed.").diagnosis.name
    'ssh-host-key'
    """
    if signatures and INFO_LINE.match(text):
        signatures = [signature for signature in signatures if signature.times > 1]
    return next((signature for signature in signatures if signature.matches(text)), None)


class FailureReader:
    """Finds in a growing log the lines that explain its failure.

    `best` is what explains it so far: the first line that follows from no other, or else the first line.
    """

    def __init__(self) -> None:
        """Start before the first line."""
        self.best: Diagnosis | None = None
        self._seen: set[str] = set()

    def feed(self, text: str) -> Diagnosis | None:
        """Read a line without its rank; return its diagnosis, if it is the first of its kind.

        What also happens in healthy runs, and a mere consequence of what was explained before, is skipped.
        """
        signature = find_signature(text)
        if signature is None or signature.times > 1 or signature.diagnosis.name in self._seen:
            return None
        found = signature.diagnosis
        self._seen.add(found.name)
        if found.is_consequence and self.best is not None:
            return None
        if self.best is None or self.best.is_consequence:
            self.best = found
        return found
