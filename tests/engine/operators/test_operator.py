"""Settings that the engine does not support."""

from __future__ import annotations

import pytest

from caffe_recipes.errors import InputError
from tests.engine.operators.conftest import set_up


@pytest.mark.parametrize(
    "text",
    [
        'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 2 }',
        'type: "Pooling" pooling_param { kernel_size: 2 pad: 2 }',
        'type: "LRN" lrn_param { local_size: 4 }',
    ],
)
def test_an_unsupported_setting_is_refused_with_the_name_of_the_layer(text: str) -> None:
    with pytest.raises(InputError, match="layer 'l'"):
        set_up(text, (2, 4, 6, 6))
