import logging

import pytest

from globalstep import config
from globalstep.config import ConfigProto, GPUOptions


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(config, "_said", set())


def test_fields_are_kept():
    proto = ConfigProto(allow_soft_placement=True, gpu_options=GPUOptions(allow_growth=True))
    proto.inter_op_parallelism_threads = 4
    assert proto.allow_soft_placement
    assert proto.gpu_options.allow_growth
    assert proto.inter_op_parallelism_threads == 4
    assert proto.device_filters == []


def test_defaults_are_not_shared():
    ConfigProto().device_filters.append("/job:ps")
    assert ConfigProto().device_filters == []
    first = ConfigProto()
    first.gpu_options.allow_growth = True
    assert not ConfigProto().gpu_options.allow_growth


def test_messages_are_merged_and_copied():
    first = ConfigProto(log_device_placement=True, gpu_options=GPUOptions(allow_growth=True))
    second = ConfigProto(allow_soft_placement=True, gpu_options=GPUOptions(visible_device_list="1"))
    first.MergeFrom(second)
    assert (first.log_device_placement, first.allow_soft_placement) == (True, True)
    assert (first.gpu_options.allow_growth, first.gpu_options.visible_device_list) == (True, "1")
    first.CopyFrom(second)
    assert (first.log_device_placement, first.allow_soft_placement, first.gpu_options.allow_growth) == (0, 1, 0)


def test_what_has_no_effect_is_said_once(caplog):
    caplog.set_level(logging.INFO, "globalstep")
    for _ in range(2):
        ConfigProto(log_device_placement=True, allow_soft_placement=False)
    assert caplog.messages == ["ConfigProto.log_device_placement = True is accepted and has no effect in globalstep."]


def test_an_unknown_field_is_an_error():
    with pytest.raises(AttributeError, match="GPUOptions has no field 'alow_growth'; it has allow_growth,"):
        GPUOptions(alow_growth=True)
