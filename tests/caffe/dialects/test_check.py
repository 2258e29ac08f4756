"""What another Caffe reads differently: fields, values, words, lists and numbers, each with its position."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import ENGINE, TITLES, Definition, Dialect, find_dialect, load_dialects
from caffe_recipes.caffe.dialects.check import (
    DIFFERENCE_RULES,
    MEANING_DIFFERENCES,
    DialectDifference,
    check_message,
)
from caffe_recipes.caffe.dialects.schema import lenient_schema, parse_lenient
from caffe_recipes.caffe.prototxt import parse_prototxt
from caffe_recipes.errors import InputError

ALL = tuple(load_dialects())


def check(text: str, dialect: str) -> list[DialectDifference]:
    document = parse_lenient(text, "x.prototxt")
    return check_message(document.message, find_dialect(dialect), document)


def rules(text: str, dialect: str) -> list[tuple[str, str]]:
    return [(difference.rule, difference.field) for difference in check(text, dialect)]


CASES = [
    # text, rule, field, dialects that read it as SURFsara's Caffe does
    ("warmup_iter: 5", "dialect-field", "warmup_iter", {"surfsara", "intel"}),
    ("rampup_interval: 5", "dialect-field", "rampup_interval", {"nvcaffe"}),
    ("lr_iter: 5", "dialect-field", "lr_iter", {"surfsara"}),
    ("test_offset: 5", "dialect-field", "test_offset", {"intel"}),
    ("weights: 'a' weights: 'b'", "dialect-field", "weights[0]", {"bvlc"}),
    ("lr_policy: 'poly_cyc'", "dialect-lr-policy", "lr_policy", {"surfsara"}),
    ("lr_policy: 'multifixed'", "dialect-lr-policy", "lr_policy", {"intel"}),
    ("lr_policy: 'plateau'", "dialect-lr-policy", "lr_policy", {"surfsara", "intel"}),
    ("lr_policy: 'pol'", "dialect-lr-policy", "lr_policy", set()),
    ("type: 'SAG' base_lr: 1", "dialect-solver-type", "type", {"nvcaffe"}),
    ("solver_type: SAG", "dialect-value", "solver_type", {"nvcaffe"}),
    ("solver_type: 6", "dialect-value", "solver_type", {"nvcaffe"}),
    ("layer { type: 'Clip' }", "dialect-layer-type", "layer[0].type", {"bvlc"}),
    ("layer { type: 'SpatialDropout' }", "dialect-layer-type", "layer[0].type", {"surfsara", "intel"}),
    ("layer { type: 'Konvolution' }", "dialect-layer-type", "layer[0].type", set()),
    (
        "layer { clip_param { min: 0 max: 1 } }",
        "dialect-field",
        "layer[0].clip_param",
        {"bvlc"},
    ),
    (
        "layer { elu_param { lambda: 2 } }",
        "dialect-field",
        "layer[0].elu_param.lambda",
        {"nvcaffe"},
    ),
    (
        "layer { convolution_param { engine: MKLDNN } }",
        "dialect-value",
        "layer[0].convolution_param.engine",
        {"surfsara", "intel"},
    ),
    (
        "layer { pooling_param { pad: 1 pad: 2 } }",
        "dialect-twice",
        "layer[0].pooling_param.pad[0]",
        {"surfsara"},
    ),
    (
        "layer { pooling_param { stride: [2] } }",
        "dialect-twice",
        "layer[0].pooling_param.stride[0]",
        {"surfsara"},
    ),
    ("layer { convolution_param { pad: 1 pad: 2 } }", "dialect-twice", "", set(ALL)),
    ("layer { pooling_param { pad: 1 } }", "dialect-twice", "", set(ALL)),
    ("params_pair { batch_size: 3 }", "dialect-file", "", {"surfsara", "intel"}),
    ("item { name: 'cat' label: 1 }", "dialect-file", "", {"surfsara", "intel", "nvcaffe"}),
    ("layer { include { phase: TEST } }", "dialect-value", "", set(ALL)),
    ("layers { type: CONVOLUTION }", "dialect-value", "", set(ALL)),
]


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize(("text", "rule", "field", "who"), CASES, ids=[case[0] for case in CASES])
def test_a_dialect_takes_what_it_has_and_refuses_the_rest(
    text: str, rule: str, field: str, who: set[str], dialect: str
) -> None:
    expected = [] if dialect in who else [(rule, field)]
    if dialect == "bvlc" and text.startswith("layer { type: 'SpatialDropout'"):
        assert "Dropout is similar" in check(text, dialect)[0].write
    if dialect == "bvlc" and rule == "dialect-file":
        assert "SURFsara's Caffe, Intel's Caffe" in check(text, dialect)[0].write.replace(" and ", ", ")
    assert rules(text, dialect) == expected


@pytest.mark.parametrize(
    ("text", "dialect", "field"),
    [
        ("train_net_param { layer { type: 'Clip' } }", "intel", "train_net_param.layer[0].type"),
        ("test_net_param { layer { } } test_net_param { layer { type: 'Clip' } }", "nvcaffe",
         "test_net_param[1].layer[0].type"),
        ("params_pair { solver_params { lr_iter: 1 } }", "intel", "params_pair[0].solver_params.lr_iter"),
    ],
)  # fmt: skip
def test_nets_in_solvers_and_solvers_in_chains_are_checked(text: str, dialect: str, field: str) -> None:
    assert [difference.field for difference in check(text, dialect)] == [field]


def test_the_same_thing_is_reported_once_with_its_count_where_it_comes_first() -> None:
    layer = "layer { type: 'BatchNorm' batch_norm_param { filler { value: 1 } } }\n"
    found = check(f"layer {{ }}\n{layer}{layer}{layer}", "bvlc")
    assert [(d.field, d.count) for d in found] == [("layer[1].batch_norm_param.filler", 3)]


def test_differences_come_in_the_order_of_the_text() -> None:
    found = check("warmup_start_lr: 1\nlr_iter: 3\nwarmup_iter: 2", "bvlc")
    assert [d.field for d in found] == ["warmup_start_lr", "lr_iter", "warmup_iter"]


@pytest.mark.parametrize(
    ("text", "dialect", "expected"),
    [
        ("lr_policy: 'poly_cyc' warmup_iter: 40", "intel", "stops only at iteration 40"),
        ("lr_policy: 'poly_cyc'", "intel", "aborts at its first iteration"),
        ("lr_policy: 'poly_cyc' rampup_interval: 40", "nvcaffe", "stops only at iteration 40"),
        ("lr_policy: 'poly_cyc' rampup_interval: 40", "intel", "aborts at its first iteration"),
        ("lr_policy: 'pol' warmup_iter: 40", "surfsara", "stops only at iteration 40"),
    ],
)
def test_an_unknown_policy_fails_where_the_warm_up_of_that_caffe_ends(
    text: str, dialect: str, expected: str
) -> None:
    policy = next(d for d in check(text, dialect) if d.rule == "dialect-lr-policy")
    assert expected in policy.effect


@pytest.mark.parametrize(
    ("text", "dialect", "expected"),
    [
        ("lr_policy: 'poly_cyc'", "bvlc", "poly with max_iter set to lr_iter, stopped early"),
        ("lr_policy: 'plateau'", "bvlc", "multistep"),
        ("lr_policy: 'polly'", "bvlc", "did you mean 'poly'?"),
        ("lr_policy: 'zzz'", "bvlc", "it has exp, fixed, inv"),
        ("warmup_iter: 1", "nvcaffe", "there the warm-up is rampup_interval, which is quadratic"),
        ("rampup_interval: 1", "surfsara", "here the warm-up is warmup_iter"),
        ("min_lr: 1", "surfsara", "remove it; only nvcaffe has it"),
        ("type: 'SGDD' base_lr: 1", "bvlc", "did you mean 'SGD'?"),
        ("layer { type: 'Konvolution' }", "intel", "did you mean 'Convolution'?"),
        ("layer { type: 'ROIPooling' }", "bvlc", "only SURFsara's Caffe and Intel's Caffe have it"),
        ("layer { pooling_param { pad: [1, 1] } }", "bvlc", "write pad_h and pad_w, or one pad for both"),
    ],
)
def test_the_finding_suggests_what_to_write(text: str, dialect: str, expected: str) -> None:
    assert expected in check(text, dialect)[0].write


def test_a_value_by_its_number_is_the_dialect_s_own() -> None:
    text = "layer { loss_param { normalization: 4 } }"
    assert rules(text, "surfsara") == []
    assert rules(text, "bvlc") == [("dialect-value", "layer[0].loss_param.normalization")]
    assert "write the name" in check(text, "bvlc")[0].write
    text = text.replace("4", "3")
    (found,) = check(text, "bvlc")
    assert found.rule == "dialect-number"
    assert "NONE in BVLC's Caffe, but PRE_FIXED in SURFsara's" in found.what
    assert rules(text.replace("3", "NONE"), "bvlc") == []
    assert rules(text.replace("3", "0x1"), "bvlc") == []


def test_a_value_of_a_missing_field_is_not_reported_as_well() -> None:
    text = "layer { batch_norm_param { engine: CUDNN } }"
    at = "layer[0].batch_norm_param.engine"
    assert rules(text, "nvcaffe") == []
    assert rules(text, "surfsara") == rules(text, "intel") == [("dialect-value", at)]
    assert rules(text, "bvlc") == [("dialect-field", at)]


def test_a_list_of_enum_values_is_accepted() -> None:
    text = "layer { transform_param { resize_param { interp_mode: [LINEAR, CUBIC] } } }"
    assert rules(text, "surfsara") == []
    assert rules(text, "nvcaffe") == []
    assert rules(text, "bvlc") == [("dialect-field", "layer[0].transform_param.resize_param")]


TESTED = "net: 'n' test_iter: 1 test_interval: 5"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TESTED, [("dialect-default", "test_interval")]),
        (f"{TESTED} test_initialization: true", []),
        ("net: 'n'", []),
        ("layer { data_param { source: 'x' } }", [("dialect-default", "layer[0].data_param.source")]),
        ("layer { data_param { source: 'x' prefetch: 4 } }", []),
        (
            "layer { data_param { prefetch: 4 shuffle: true } }",
            [("dialect-meaning", "layer[0].data_param.shuffle")],
        ),
        ("layer { data_param { prefetch: 4 shuffle: true cache: true } }", []),
        ("layer { data_param { prefetch: 4 shuffle: false } }", []),
        ("layer { type: 'BatchNorm' }", [("dialect-meaning", "layer[0].type")]),
    ],
)
def test_nvcaffe_reads_some_fields_differently(text: str, expected: list[tuple[str, str]]) -> None:
    assert rules(text, "nvcaffe") == expected
    others = [found for other in ("surfsara", "intel", "bvlc") for found in check(text, other)]
    assert not any(found.rule in ("dialect-default", "dialect-meaning") for found in others)


# Defaults that differ in the schema and have no effect.
HARMLESS = {
    ("PoolingParameter", "pad"),  # 0, as an empty list of ours
    ("PoolingParameter", "stride"),  # 1, as an empty list of ours
    ("PoolingParameter", "stride_h"),  # ours is only read where it is given
    ("PoolingParameter", "stride_w"),
    ("BatchNormParameter", "use_global_stats"),  # in TEST both use them
}


def test_every_default_that_differs_is_reported_or_known_to_be_harmless() -> None:
    reported = {(reading.dialect, reading.name) for reading in MEANING_DIFFERENCES}
    seen = set()
    for dialect in load_dialects().values():
        for owner, names in dialect.changed.items():
            for name, theirs in names.items():
                field = lenient_schema().message_types_by_name.get(owner)
                if not isinstance(theirs, Definition) or field is None:
                    continue
                if theirs.default != default_text(field.fields_by_name[name]):
                    seen.add((owner, name))
                    assert (owner, name) in HARMLESS or (dialect.name, f"{owner}.{name}") in reported
    assert seen >= HARMLESS


def default_text(field: FieldDescriptor) -> str | None:
    """Write a default as the dialects' data do."""
    if not field.has_default_value:
        return None
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[field.default_value].name)
    value = field.default_value
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("dialect", ALL)
def test_each_field_of_any_caffe_is_refused_by_those_that_lack_it(dialect: str) -> None:
    judge = find_dialect(dialect)
    lacking = 0
    for descriptor in lenient_schema().message_types_by_name.values():
        if judge.missing.get(descriptor.name, "") is None:
            continue
        for field in descriptor.fields:
            message = message_factory.GetMessageClass(descriptor)()
            set_one(message, field)
            reported = names_of("dialect-field", message, judge)
            name = f"{descriptor.name}.{field.name}"
            assert (name in reported) == (not judge.knows(descriptor.name, field.name)), name
            lacking += name in reported
    assert lacking > 50


@pytest.mark.parametrize("dialect", ALL)
def test_each_value_of_any_caffe_is_refused_by_those_that_lack_it(dialect: str) -> None:
    judge = find_dialect(dialect)
    seen = 0
    for descriptor in lenient_schema().message_types_by_name.values():
        for field in descriptor.fields:
            if field.enum_type is None or not judge.knows(descriptor.name, field.name):
                continue
            owner = field.enum_type.full_name.removeprefix("caffe.")
            for value in field.enum_type.values:
                message = message_factory.GetMessageClass(descriptor)()
                set_one(message, field, value.number)
                reported = names_of("dialect-value", message, judge)
                assert (f"{owner}.{value.name}" in reported) == (not judge.knows(owner, value.name))
                seen += 1
    assert seen > 100


def names_of(rule: str, message: Message, judge: Dialect) -> set[str]:
    return {difference.name for difference in check_message(message, judge) if difference.rule == rule}


def set_one(message: Message, field: FieldDescriptor, value: Any = None) -> None:  # noqa: ANN401 - any field's
    """Set one field to its default, or to a value."""
    if field.message_type is not None:
        holder = getattr(message, field.name)
        holder.add() if field.is_repeated else holder.SetInParent()
        return
    kind: object = 1
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        kind = b"x" if field.type == FieldDescriptor.TYPE_BYTES else "x"
    if field.enum_type is not None:
        kind = field.enum_type.values[0].number
    value = kind if value is None else value
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def test_a_message_of_ours_is_judged_without_its_text() -> None:
    solver = parse_prototxt("lr_policy: 'poly_cyc' lr_iter: 9 max_iter: 5", pb.SolverParameter)
    found = check_message(solver, find_dialect("intel"))
    assert {difference.name for difference in found} == {"poly_cyc", "SolverParameter.lr_iter"}
    assert check_message(solver, find_dialect("surfsara")) == []


def test_every_rule_and_dialect_has_its_texts() -> None:
    assert set(TITLES) == {*ALL, ENGINE}
    assert {reading.rule for reading in MEANING_DIFFERENCES} <= set(DIFFERENCE_RULES)
    assert {case[1] for case in CASES} <= set(DIFFERENCE_RULES)


def test_an_unknown_dialect_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown dialect 'nvcafe'; did you mean 'nvcaffe'"):
        find_dialect("nvcafe")
    with pytest.raises(InputError, match="choose from surfsara, intel, bvlc, nvcaffe"):
        find_dialect("x")
