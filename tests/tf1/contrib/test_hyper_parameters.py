import pytest

import globalstep as gs

HParams = gs.contrib.training.HParams


def test_values_keep_their_types():
    hparams = HParams(rate=0.1, layers=2, name="net", flag=True, sizes=[64, 32], none=None)
    assert hparams.parse("rate=1, layers=3,name=other net,flag=false,sizes=[8, 4]") is hparams
    assert hparams.values() == {
        "rate": 1.0, "layers": 3, "name": "other net", "flag": False, "sizes": [8, 4], "none": None
    }  # fmt: skip
    assert isinstance(hparams.rate, float)
    hparams.parse("sizes[1]=7")
    assert hparams.sizes == [8, 7]
    hparams.set_hparam("rate", 2)
    assert (hparams.rate, "rate" in hparams, "other" in hparams, hparams.get("other", 5)) == (2.0, True, False, 5)
    assert HParams(**hparams.values()).parse_json(hparams.to_json()).values() == hparams.values()
    hparams.layers = 9
    assert hparams.values()["layers"] == 9
    hparams.del_hparam("layers")
    with pytest.raises(AttributeError, match="no attribute 'layers'"):
        _ = hparams.layers


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("unknown=1", "Unknown hyperparameter type for unknown"),
        ("layers=x", "Could not parse hparam 'layers' of type 'int' with value 'x'"),
        ("layers=1.5", "Could not parse hparam 'layers'"),
        ("layers=[1,2]", "Must not pass a list for single-valued parameter: layers"),
        ("sizes=1", "Must pass a list for multi-valued parameter: sizes"),
        ("rate=0.5,layers", "Malformed hyperparameter value: layers"),
        ("flag=maybe", "Could not parse hparam 'flag'"),
    ],
)
def test_what_does_not_fit_changes_nothing(text, error):
    hparams = HParams(rate=0.1, layers=2, flag=True, sizes=[1])
    with pytest.raises(ValueError, match=error):
        hparams.parse(text)
    assert hparams.values() == {"rate": 0.1, "layers": 2, "flag": True, "sizes": [1]}
    with pytest.raises(ValueError, match="Could not cast hparam 'layers'"):
        hparams.set_hparam("layers", "3")
    with pytest.raises(KeyError):
        hparams.set_hparam("unknown", 3)
    with pytest.raises(ValueError, match="name is reserved: rate"):
        hparams.add_hparam("rate", 1)
