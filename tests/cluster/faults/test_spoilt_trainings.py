"""Failed trainings that Caffe ends with success: each is refused by name, and trained again."""

from __future__ import annotations

import pytest

from tests.cluster.faults.faulty_chain import FaultyChain

pytestmark = pytest.mark.cluster

MESSAGES = {
    "truncated": "the snapshot is not a caffemodel, or a truncated one",
    "empty": "the snapshot is empty",
    "html": "the snapshot is an HTML page",
    "renamed": "the snapshot does not fit net",
    "nothing": "the snapshot is missing",
    "nan": "the loss is nan at iteration 2",
    "stuck": "the loss is stuck at 87.3365",
    "ignored": "Caffe ignored layer 'conv1'",
    "early": "it ended after iteration 2 of 8",
    "dies": "Check failed: rank 0 is to die",
    "killed": "after iteration 2 of 8",  # hydra names the rank whose end it sees first
}


@pytest.mark.parametrize("fault", MESSAGES)
def test_a_training_that_went_wrong_is_refused_and_the_phase_trained_again(
    chain: FaultyChain, fault: str
) -> None:
    chain.behave(cyc1=fault)
    output = chain.run(code=3)
    assert MESSAGES[fault] in output.splitlines()[-1]
    assert chain.cluster.leftovers() == {}
    assert sorted(chain.models()) == ["init_iter_8.caffemodel"]
    chain.behave()
    chain.run()
    chain.check_finished()
    assert chain.trained() == ["init", "cyc1", "cyc1", "last"]
