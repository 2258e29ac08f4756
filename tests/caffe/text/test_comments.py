"""Comments stay with what they stand by."""

from textwrap import dedent
from typing import Any

import pytest

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import Comment, format_prototxt, render_prototxt
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
            'layer { # open\n  name: "a"\n  # last\n  # close\n}\n',
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
            "# first\ntest_iter: 1 # one\n# above two\n# two\ntest_iter: 2 # list\n",
            id="in a list",
        ),
        pytest.param(
            "test_iter: [ # none\n]\nnet: 'a'\n",
            '# none\nnet: "a"\n',
            id="in an empty list",
        ),
        pytest.param("net: # a\n 'x' # b\n 'y' # c\n", '# a\n# b\nnet: "xy" # c\n', id="within a field"),
        pytest.param(
            "#\n#x\n# y\n#   z\n##\n#! w\nnet: ''",
            '#\n# x\n# y\n#   z\n##\n# ! w\nnet: ""\n',
            id="marks and spaces",
        ),
    ],
)  # fmt: skip
def test_comments_are_formatted_as(text: str, formatted: str) -> None:
    cls = NET if "layer" in text else SOLVER
    assert format_prototxt(text, cls) == formatted
    assert format_prototxt(formatted, cls) == formatted


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
        ("max_itre", Comment(beside="x"), "max_itre: a comment, .* no such field; did you mean 'max_iter'."),
        ("test_iter", Comment(beside="x"), "test_iter: .*; did you mean 'test_iter.0.'."),
        ("momentum", Comment(beside="x"), "momentum: .* no such field; comment a field that is set"),
        ("max_iter", Comment(below=("x",)), "max_iter: a comment below a field that has no block; .*"),
        ("", Comment(beside="x"), "a comment beside the file itself; .*"),
    ],
)
def test_a_comment_that_stands_by_nothing_is_refused(path: str, comment: Comment, error: str) -> None:
    with pytest.raises(PrototxtError, match=f"^{error}$"):
        render_prototxt(SOLVER(max_iter=1, test_iter=[2]), {path: comment})


@pytest.mark.parametrize("comment", [{"above": ("a\nb",)}, {"beside": "a\n"}, {"below": ("\n",)}])
def test_a_comment_of_several_lines_is_refused(comment: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a comment is one line"):
        Comment(**comment)
