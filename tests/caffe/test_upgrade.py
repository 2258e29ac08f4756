"""Upgrading as a whole: inputs, batch norms, solvers, comments, and that an upgraded file stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import (
    Document,
    load_document,
    parse_document,
    parse_prototxt,
    render_prototxt,
)
from caffe_recipes.caffe.upgrade import SOLVER_TYPES, upgrade_document, upgrade_net, upgrade_solver
from caffe_recipes.errors import PrototxtError

REFERENCE = Path(__file__).parents[3] / "shared/reference"
FILES = sorted(path.relative_to(REFERENCE).as_posix() for path in REFERENCE.rglob("*.prototxt"))


def net(text: str) -> pb.NetParameter:
    return parse_prototxt(text, pb.NetParameter)


def upgrade_text(text: str, path: str = "old.prototxt") -> str:
    document: Document[Message] = parse_document(text, path)
    upgraded = upgrade_document(document)
    return render_prototxt(upgraded.message, upgraded.comments)


def test_inputs_become_the_first_layer_by_their_four_numbers() -> None:
    upgraded = upgrade_net(
        net("""input: "a" input: "b" input_dim: 1 input_dim: 3 input_dim: 224 input_dim: 225
        input_dim: 2 input_dim: 1 input_dim: 1 input_dim: 1
        layer { name: "r" type: "ReLU" bottom: "a" top: "a" } name: "n" """)
    )
    assert upgraded.message == net("""name: "n"
        layer { name: "input" type: "Input" top: "a" top: "b"
          input_param { shape { dim: [1, 3, 224, 225] } shape { dim: [2, 1, 1, 1] } } }
        layer { name: "r" type: "ReLU" bottom: "a" top: "a" }""")
    assert upgraded.changes == ("2 inputs: now a layer of type Input",)


def test_inputs_prefer_their_shapes() -> None:
    upgraded = upgrade_net(net('input: "a" input_shape { dim: 7 } input_shape { dim: 8 } input_dim: 9'))
    assert upgraded.message == net(
        'layer { name: "input" type: "Input" top: "a" input_param { shape { dim: 7 } } }'
    )


def test_inputs_without_a_shape_are_dropped() -> None:
    upgraded = upgrade_net(net('input: "a" layer { name: "r" }'))
    assert upgraded.message == net('layer { name: "r" }')
    assert upgraded.changes == ("1 input without a shape: dropped",)


def test_dimensions_without_inputs_stay_as_caffe_leaves_them() -> None:
    assert not upgrade_net(net("input_dim: 3")).changes


def test_the_rates_of_a_batch_norm_stay_as_this_caffe_leaves_them() -> None:
    old = net("""layer { type: "BatchNorm" param { lr_mult: 0 } param { name: "v" lr_mult: 1 decay_mult: 1 }
          param { } }""")
    upgraded = upgrade_net(old)
    assert upgraded.message == old
    assert not upgraded.changes


@pytest.mark.parametrize("old", SOLVER_TYPES)
def test_a_solver_s_type_becomes_text(old: str) -> None:
    upgraded = upgrade_solver(parse_prototxt(f"base_lr: 1 solver_type: {old}", pb.SolverParameter))
    assert upgraded.message == pb.SolverParameter(base_lr=1, type=SOLVER_TYPES[old])
    assert upgraded.changes == (f'solver_type {old}: now type "{SOLVER_TYPES[old]}"',)


def test_every_solver_type_is_known() -> None:
    values = pb.SolverParameter.DESCRIPTOR.enum_types_by_name["SolverType"].values
    assert [value.name for value in values] == list(SOLVER_TYPES)


def test_nets_within_a_solver_and_solvers_within_phases_are_upgraded_with_their_comments() -> None:
    assert upgrade_text("""
    # both phases
    params_pair { # first
      solver_params {
        solver_type: ADAM # kind
        net_param { # the net
          input: "x" # images
          layers { type: RELU } # after
          # end of net
        }
        test_net_param { layers { type: TANH } } test_net_param { }
      }
      batch_size: 3 # three
    }""") == (
        "# both phases\n"
        "params_pair { # first\n"
        "  solver_params {\n"
        "    # images\n"
        "    net_param { # the net\n"
        '      layer { type: "ReLU" } # after\n'
        "      # end of net\n"
        "    }\n"
        '    test_net_param { layer { type: "TanH" } }\n'
        "    test_net_param { }\n"
        '    type: "Adam" # kind\n'
        "  }\n"
        "  batch_size: 3 # three\n"
        "}\n"
    )


def test_each_comment_of_an_old_net_is_kept_beside_its_field() -> None:
    text = upgrade_text("""# a header

# an input
input: "x" # x
input_dim: 1 # images
input_dim: 3
input_dim: [4, # high
 5] # wide
input_dim: 6 # too many
# a layer
layers { # opened
  type: CONVOLUTION # kind
  # weights
  blobs_lr: 1 # rate 1
  blobs_lr: 2 # rate 2
  weight_decay: 1 # decay 1
  # the block
  convolution_param { pad: 1 # padded
    # end of block
  }
  # end of layer
} # closed
layers { type: DATA data_param { scale: 2 # scaled
} }
# end of file
""")
    assert (
        text
        == """# a header

layer {
  name: "input"
  type: "Input"
  # an input
  top: "x" # x
  input_param {
    shape {
      dim: 1 # images
      dim: 3
      dim: 4 # high
      dim: 5 # wide
    }
  }
}
# a layer
layer { # opened
  type: "Convolution" # kind
  param {
    # weights
    lr_mult: 1 # rate 1
    decay_mult: 1 # decay 1
  }
  param {
    lr_mult: 2 # rate 2
  }
  # the block
  convolution_param {
    pad: 1 # padded
    # end of block
  }
  # end of layer
} # closed
layer {
  type: "Data"
  transform_param {
    scale: 2 # scaled
  }
  data_param { }
}
# end of file
""".replace('layer {\n  name: "input"', '# too many\nlayer {\n  name: "input"')
    )
    assert upgrade_text(text) == text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('base_lr: 1\nsolver_type: SGD type: "SGD"',
         "old.prototxt:2:1: is given as well as `type`; Caffe refuses both; keep `type`"),
        ('net_param {\n layer { } layers { } }',
         "old.prototxt:2:12: the net has both `layers` and `layer`; Caffe refuses it; use only `layer`"),
        ('input: "a" input: "b"\ninput_dim: [1, 2, 3, 4]',
         "old.prototxt:2:13: 2 inputs but 4 input_dim; give each input 4: images, channels, height, width"),
        ('\ninput: "a" input: "b" input_shape { }',
         "old.prototxt:2:12: 2 inputs but 1 input_shape; give each input a shape"),
        ('params_pair { solver_params {\n solver_type: SGD type: "SGD" } }',
         "old.prototxt:2:2: is given as well as `type`; Caffe refuses both; keep `type`"),
    ],
)  # fmt: skip
def test_files_that_caffe_refuses_are_refused_with_the_position(text: str, error: str) -> None:
    with pytest.raises(PrototxtError) as caught:
        upgrade_text(text)
    assert str(caught.value) == error


def test_a_message_that_is_neither_a_net_nor_a_solver_is_returned_unchanged() -> None:
    assert upgrade_text('item { name: "cat" } # mine') == 'item { name: "cat" } # mine\n'


@pytest.mark.skipif(not FILES, reason="../shared/reference is not here to read")
@pytest.mark.parametrize("name", FILES)
def test_published_files_are_of_todays_form(name: str) -> None:
    document: Document[Message] = load_document(REFERENCE / name)
    assert not upgrade_document(document).changes
