"""The registry of update rules, their declarations and their scalar state."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from globalstep import rules
from globalstep.errors import InvalidArgumentError
from globalstep.rules import Rule, check_declaration, get_rule
from globalstep.wire.declarations import OptimizerDecl
from globalstep.wire.expressions import constant


class Halving(Rule):
    """A rule of one's own: every push halves the values."""

    kind = "halving"
    hypers = ()

    def reference(self, values, slots, grad, hyper):
        return values / 2, ()


@pytest.fixture
def offered(monkeypatch):
    """Offer entry points as an installed package would."""

    def offer(**points):
        found = [
            EntryPoint(name, f"{value.__module__}:{value.__name__}", rules.ENTRY_POINT_GROUP)
            for name, value in points.items()
        ]
        monkeypatch.setattr(rules, "entry_points", lambda group: found)
        monkeypatch.setattr(rules, "_loaded", {})
        for value in points.values():
            monkeypatch.setitem(sys.modules, value.__module__, sys.modules[__name__])

    return offer


def test_an_unknown_kind_names_the_known_ones():
    with pytest.raises(InvalidArgumentError, match=r"Unknown update rule 'nosuch'.*'adam'.*'rmsprop'"):
        get_rule("nosuch")


def test_a_rule_is_one_object():
    assert get_rule("momentum") is get_rule("momentum")


@pytest.mark.parametrize("kind", sorted(rules.BUILT_IN))
def test_every_rule_of_the_table_loads_under_its_kind(kind):
    assert get_rule(kind).kind == kind


def test_an_installed_rule_is_found(offered):
    offered(halving=Halving)
    values = np.array([8.0, 2.0], np.float32)
    get_rule("halving").dense(values, (), np.zeros(2, np.float32), {})
    assert values.tolist() == [4.0, 1.0]


def not_a_rule():
    pass


def test_an_entry_point_that_is_no_rule_is_refused(offered):
    offered(broken=not_a_rule)
    with pytest.raises(InvalidArgumentError, match="not a subclass"):
        get_rule("broken")


def declared(**changes):
    parts = {
        "name": "Adam",
        "kind": "adam",
        "hypers": {name: constant(0.5) for name in get_rule("adam").hypers},
        "slots": {"w": ("w/Adam", "w/Adam_1")},
        "scalars": ("beta1_power", "beta2_power"),
    }
    return OptimizerDecl(**{**parts, **changes})


def test_a_complete_declaration_gives_its_rule():
    assert check_declaration(declared()).kind == "adam"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kind": "adamm"}, "Unknown update rule 'adamm'"),
        ({"hypers": {"rate": constant(1)}}, r"'Adam'.*\['rate'\].*'learning_rate'"),
        ({"slots": {"w": ("w/Adam",)}}, r"\['w/Adam'\] for Variable 'w'.*\['m', 'v'\]"),
        ({"scalars": ()}, r"scalars \[\].*beta1_power"),
    ],
)
def test_a_declaration_that_does_not_suit_its_rule_is_refused(changes, text):
    with pytest.raises(InvalidArgumentError, match=text):
        check_declaration(declared(**changes))


def test_numbers_that_would_ruin_the_values_are_refused():
    rule = get_rule("gradient_descent")
    rule.check_hypers({"learning_rate": 0.1})
    with pytest.raises(InvalidArgumentError, match=r"'learning_rate'.*NaN"):
        rule.check_hypers({"learning_rate": float("nan")})
    with pytest.raises(InvalidArgumentError, match="needs hyper-parameter 'learning_rate'"):
        rule.check_hypers({})


def test_ftrl_refuses_a_rate_of_zero_as_tensorflow_does():
    rule = get_rule("ftrl")
    with pytest.raises(InvalidArgumentError, match="lr is not a positive scalar"):
        rule.check_hypers({**dict.fromkeys(rule.hypers, 0.1), "learning_rate": 0.0})


def test_proximal_adagrad_refuses_what_tensorflow_refuses():
    rule = get_rule("proximal_adagrad")
    good = {"learning_rate": 0.1, "l1_regularization_strength": 0.0, "l2_regularization_strength": 0.0}
    rule.check_hypers(good)
    for name, text in (
        ("learning_rate", "lr is not a positive scalar: -1.0"),
        ("l1_regularization_strength", "l1 regularization strength is not a non-negative scalar: -1.0"),
        ("l2_regularization_strength", "l2 regularization strength is not a non-negative scalar: -1.0"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            rule.check_hypers({**good, name: -1.0})


@pytest.mark.parametrize("kind", ["gradient_descent", "adagrad_da", "lamb"])
def test_integer_variables_are_refused(kind):
    with pytest.raises(InvalidArgumentError, match="not to int32"):
        get_rule(kind).prepare(np.int32)


@pytest.mark.parametrize("kind", sorted(rules.BUILT_IN))
def test_every_rule_can_be_prepared(kind):
    get_rule(kind).prepare(np.float32)


@pytest.mark.parametrize("kind", ["adam", "adamw", "lamb", "lazy_adam"])
def test_beta_powers_are_float32_products(kind):
    rule = get_rule(kind)
    powers = {"beta1_power": np.float32(0.9), "beta2_power": np.float32(0.999)}
    hyper = {"beta1": 0.9, "beta2": 0.999}
    for _ in range(3):
        powers = rule.advance_scalars(powers, hyper)
    expected = np.float32(0.9)
    for _ in range(3):
        expected = np.float32(expected * np.float32(0.9))
    assert powers["beta1_power"] == expected
    assert powers["beta1_power"].dtype == np.float32


def test_a_rule_without_scalar_state_has_none():
    assert get_rule("momentum").advance_scalars({}, {"learning_rate": 0.1}) == {}


def test_the_zero_debias_counter_counts_pushes():
    rule = get_rule("zero_debias_moving_average")
    assert rule.advance_scalars({"local_step": np.float32(4)}, {"decay": 0.9}) == {"local_step": 5}


def run_python(code, **environ):
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**kept, **environ}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_package_is_imported_without_numba():
    code = "import sys, globalstep.rules; print('numba' in sys.modules)"
    assert run_python(code) == "False"


def test_kernels_are_kept_in_the_users_cache_folder(tmp_path):
    code = "import globalstep.rules.compiled, numba; print(numba.config.CACHE_DIR)"
    assert run_python(code, XDG_CACHE_HOME=str(tmp_path)).startswith(str(tmp_path))
    assert run_python(code, NUMBA_CACHE_DIR="elsewhere") == "elsewhere"
