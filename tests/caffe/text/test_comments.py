"""Comments stay with the field they belong to."""

from textwrap import dedent
from typing import Any

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import format_prototxt, parse_prototxt, render_prototxt
from caffe_recipes.caffe.text.comments import Comment
from caffe_recipes.errors import PrototxtError

SOLVER = pb.SolverParameter
NET = pb.NetParameter


def block(text: str) -> str:
    return dedent(text).lstrip("\n")


@pytest.mark.parametrize(
    ("text", "formatted"),
    [
        pytest.param(
            "max_iter: 10 # ten\n# the net\nnet: 'a'#file\n",
            '# the net\nnet: "a" # file\nmax_iter: 10 # ten\n',
            id="above and beside a field move with it",
        ),
        pytest.param(
            """
            layer { name: "data" type: "Data"
              data_param {
                #source: "first"
                source: "second"
                #source: "third"
                batch_size: 32
                #shuffle: true
              }
            }
            """,
            block("""
            layer {
              name: "data"
              type: "Data"
              data_param {
                # source: "first"
                source: "second"
                # source: "third"
                batch_size: 32
                # shuffle: true
              }
            }
            """),
            id="commented-out fields stay in their block",
        ),
        pytest.param(
            "# Header\n\n# of two parts\n\n# the net\nnet: 'a'\n# the end",
            '# Header\n#\n# of two parts\n\n# the net\nnet: "a"\n# the end\n',
            id="header and end of the file",
        ),
        pytest.param(
            "display: 1\n# the net\nnet: 'a'",
            '# the net\nnet: "a"\ndisplay: 1\n',
            id="a comment above the first field is no header",
        ),
        pytest.param("# only\n\n# these", "# only\n\n# these\n", id="a file of comments"),
        pytest.param(
            "layer { # open\n name: 'a'\n # last\n} # close\n",
            'layer { # open\n  name: "a"\n  # last\n} # close\n',
            id="at the braces of a block",
        ),
        pytest.param(
            "layer {\n  param { lr_mult: 1 } # weights\n  param { lr_mult: 2 # bias\n  } }",
            block("""
            layer {
              param { lr_mult: 1 } # weights
              param {
                lr_mult: 2 # bias
              }
            }
            """),
            id="beside a block of one line",
        ),
        pytest.param(
            "test_iter: [ # first\n 1, # one\n # above two\n 2 # two\n] # list",
            "# first\ntest_iter: 1 # one\n# above two\ntest_iter: 2 # two\n# list\n",
            id="in a list",
        ),
        pytest.param(
            "layer { bottom: ['a', 'b'\n # more\n ] }\nlayer { name: 'c' }",
            'layer {\n  bottom: "a"\n  bottom: "b"\n  # more\n}\nlayer { name: "c" }\n',
            id="before the bracket of a list",
        ),
        pytest.param(
            "layer { bottom: ['a'\n # more\n ] top: 'b' }",
            'layer {\n  bottom: "a"\n  # more\n\n  top: "b"\n}\n',
            id="before the bracket of a list with a field behind it",
        ),
        pytest.param(
            "layer: [{ name: 'a'\n} # a\n# more\n] # list\nlayer { name: 'b' }",
            'layer { name: "a" } # a\n# more\n# list\n\nlayer { name: "b" }\n',
            id="before the bracket of a list of blocks",
        ),
        pytest.param(
            "test_iter: [1 # one\n # more\n, 2]",
            "test_iter: 1 # one\n# more\n\ntest_iter: 2\n",
            id="before the comma of a list",
        ),
        pytest.param(
            "net: 'a'\n# first\n# second\n\ndisplay: 1\n\n# of max_iter\n\nmax_iter: 2\n# last\n\n# the end",
            'net: "a"\n# first\n# second\n\ndisplay: 1\n\n# of max_iter\nmax_iter: 2\n# last\n\n# the end\n',
            id="directly below a field and above a blank line",
        ),
        pytest.param(
            "max_iter: 2\n# of max_iter\n\ndisplay: 1\nnet: 'a'",
            'net: "a"\n\ndisplay: 1\nmax_iter: 2\n# of max_iter\n',
            id="below a field, and moves with it",
        ),
        pytest.param(
            "layer {\n name: 'a' # a\n # of a\n\n type: 'b'\n # the end\n\n # of it\n}",
            'layer {\n  name: "a" # a\n  # of a\n\n  type: "b"\n  # the end\n\n  # of it\n}\n',
            id="below a field inside a block",
        ),
        pytest.param(
            "layer {\n param {\n lr_mult: 1\n } # weights\n # of param\n\n name: 'a'\n} # a\n\n# the end",
            'layer {\n  name: "a"\n  param { lr_mult: 1 } # weights\n  # of param\n} # a\n\n# the end\n',
            id="beside and below a closing brace",
        ),
        pytest.param(
            "layer { # open\n param { # open\n lr_mult: 1\n } # close\n } # close",
            "layer { # open\n  param { # open\n    lr_mult: 1\n  } # close\n} # close\n",
            id="beside both braces",
        ),
        pytest.param(
            "layer { param { lr_mult: - # sign\n\n # above\n 1 } name: 'a' 'b'\n # piece\n 'c' }",
            'layer {\n  # piece\n  name: "abc"\n  param {\n'
            "    # sign\n    # above\n    lr_mult: -1\n  }\n}\n",
            id="within a value",
        ),
        pytest.param(
            "test_iter: [ # none\n]\nnet: 'a'\n",
            '# none\nnet: "a"\n',
            id="in an empty list",
        ),
        pytest.param("net: # a\n 'x' # b\n 'y' # c\n", '# a\n# b\nnet: "xy" # c\n', id="within a field"),
        pytest.param(
            "#\n#x\n# y\n#   z\n##\n#! w\n# # v\n#  #u\n## t\nnet: '' # # s\ndisplay: 1 ## r",
            '#\n# x\n# y\n#   z\n##\n# ! w\n# # v\n#  #u\n## t\nnet: "" # # s\ndisplay: 1 ## r\n',
            id="marks and spaces",
        ),
    ],
)  # fmt: skip
def test_comments_are_formatted_as(text: str, formatted: str) -> None:
    cls = NET if "layer" in text else SOLVER
    assert format_prototxt(text, cls) == formatted
    assert format_prototxt(formatted, cls) == formatted


LAYOUTS = [
    pytest.param(
        "net: 'a'\n\n\n\ndisplay: 1\nmax_iter: 2\n   \t\nsolver_mode: CPU\n\n",
        'net: "a"\n\ndisplay: 1\nmax_iter: 2\n\nsolver_mode: CPU\n',
        id="one blank line stays between outermost fields",
    ),
    pytest.param(
        "layer {\n\n name: 'a'\n\n type: 'b'\n\n}\n\nlayer { name: 'c' }",
        'layer {\n  name: "a"\n  type: "b"\n}\n\nlayer { name: "c" }\n',
        id="none within a block",
    ),
    pytest.param("\n\nnet: 'a'\ndisplay: 1", 'net: "a"\ndisplay: 1\n', id="none above the first field"),
    pytest.param(
        "display: 1\n\nnet: 'a'\ntest_iter: [1,\n\n2]",
        'net: "a"\ntest_iter: 1\ntest_iter: 2\ndisplay: 1\n',
        id="none above a field that moves to the top",
    ),
    pytest.param(
        "# head\n\nlayer { name: 'a' }\n\nlayer { }\nname: 'n'\n",
        '# head\n\nname: "n"\nlayer { name: "a" }\n\nlayer { }\n',
        id="one blank line below the header",
    ),
    pytest.param(
        "layer { name: 'a'\n param { lr_mult: 1 decay_mult: 1 } param {\n lr_mult: 2 decay_mult: 0 } }",
        'layer {\n  name: "a"\n  param { lr_mult: 1 decay_mult: 1 }\n'
        "  param {\n    lr_mult: 2\n    decay_mult: 0\n  }\n}\n",
        id="a block on one line stays on one line",
    ),
    pytest.param(
        "layer { name: 'a' include { phase: TEST stage: 's' } top: ['x', 'y'] } # one line",
        'layer { name: "a" top: "x" top: "y" include { phase: TEST stage: "s" } } # one line\n',
        id="blocks within it too",
    ),
    pytest.param(
        f"layer {{ name: '{'a' * 70}' include {{ phase: TEST not_stage: 's' }} }}",
        f'layer {{\n  name: "{"a" * 70}"\n  include {{ phase: TEST not_stage: "s" }}\n}}\n',
        id="where it fits",
    ),
]


@pytest.mark.parametrize(("text", "formatted"), LAYOUTS)
def test_a_file_written_by_hand_is_laid_out_as(text: str, formatted: str) -> None:
    cls = NET if "layer" in text else SOLVER
    assert format_prototxt(text, cls) == formatted
    assert format_prototxt(formatted, cls) == formatted


def test_a_message_without_comments_has_no_blank_line_and_no_longer_block_on_a_line() -> None:
    text = "layer { param { lr_mult: 1 decay_mult: 1 } }\n\nlayer { name: 'a' }"
    assert render_prototxt(parse_prototxt(text, NET)) == block("""
        layer {
          param {
            lr_mult: 1
            decay_mult: 1
          }
        }
        layer { name: "a" }
        """)


def test_comments_are_rendered_by_path() -> None:
    net = NET(layer=[{"name": "data"}, {"name": "ip", "inner_product_param": {"num_output": 10}}])
    comments = {
        "": Comment(above=("Header",), below=("the end",)),
        "layer[0]": Comment(above=("images",), below=("source: here",)),
        "layer[1]": Comment(beside="classifier"),
        "layer[1].inner_product_param.num_output": Comment(beside="classes"),
    }
    text = block("""
        # Header

        # images
        layer {
          name: "data"
          # source: here
        }
        layer { # classifier
          name: "ip"
          inner_product_param {
            num_output: 10 # classes
          }
        }
        # the end
        """)
    assert render_prototxt(net, comments) == text
    assert format_prototxt(text, NET) == text


@pytest.mark.parametrize(
    ("path", "comment", "error"),
    [
        (
            "max_itre",
            Comment(beside="x"),
            "max_itre: has a comment, but is not set .*; did you mean 'max_iter'.",
        ),
        ("test_iter", Comment(beside="x"), "test_iter: .*; did you mean 'test_iter.0.'."),
        (
            "momentum",
            Comment(beside="x"),
            "momentum: .* is not set in this SolverParameter; attach it to a field that is set",
        ),
        ("max_iter", Comment(below=("x",)), "max_iter: has a comment below it, but is not a block; .*"),
        ("", Comment(beside="x"), "a comment cannot be beside the file; .*"),
    ],
)
def test_a_comment_without_a_field_is_refused(path: str, comment: Comment, error: str) -> None:
    with pytest.raises(PrototxtError, match=f"^{error}$"):
        render_prototxt(SOLVER(max_iter=1, test_iter=[2]), {path: comment})


@pytest.mark.parametrize("comment", [{"above": ("a\nb",)}, {"beside": "a\n"}, {"below": ("\n",)}])
def test_a_comment_of_several_lines_is_refused(comment: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a comment must be one line"):
        Comment(**comment)
