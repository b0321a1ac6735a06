"""`gs.contrib.training.HParams`: hyper-parameters of a program, by name.

Layer: tf1. Source: TensorFlow 1.15 `contrib/training/python/training/hparam.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_ITEM = re.compile(
    r"\s*(?P<name>[a-zA-Z][\w.]*)\s*(\[\s*(?P<index>\d+)\s*\])?\s*=\s*"
    r"((?P<list>\[[^\]]*\])|(?P<value>[^,\[\]]*))\s*(,|$)"
)


class HParams:
    """Hyper-parameters: attributes that keep their types.

    Args:
        hparam_def: Accepted as in TensorFlow; not read.
        model_structure: Kept.
        **kwargs: Names and values: ints, floats, strings, bools, None, and lists of these.

    >>> hparams = HParams(rate=0.1, layers=2, sizes=[64, 32])
    >>> _ = hparams.parse("rate=0.5,sizes=[8,4],layers=3")
    >>> hparams.rate, hparams.layers, hparams.sizes
    (0.5, 3, [8, 4])
    """

    def __init__(self, hparam_def: Any = None, model_structure: Any = None, **kwargs: Any) -> None:
        self._values: dict[str, Any] = {}
        #: Name -> the type of the value, and whether it is a list of such.
        self._types: dict[str, tuple[type, bool]] = {}
        self._model_structure = model_structure
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_values", {}):
            self._values[name] = value
        else:
            super().__setattr__(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Add one.

        Raises:
            ValueError: If there is one of that name, or the value is an empty list.
        """
        if name in self._values or hasattr(type(self), name):
            raise ValueError(f"Hyperparameter name is reserved: {name}")
        if isinstance(value, (list, tuple)):
            if not value:
                raise ValueError(f"Multi-valued hyperparameters cannot be empty: {name}")
            self._types[name] = (type(value[0]), True)
        else:
            self._types[name] = (type(value), False)
        self._values[name] = value

    def set_hparam(self, name: str, value: Any) -> None:
        """Set an existing hyperparameter, converted to its type.

        Raises:
            KeyError: If there is none of that name.
            ValueError: If the value does not fit.
        """
        if name not in self._types:
            raise KeyError(name)
        kind, several = self._types[name]
        if isinstance(value, (list, tuple)):
            if not several:
                raise ValueError(f"Must not pass a list for single-valued parameter: {name}")
            self._values[name] = [_as_kind(name, kind, item) for item in value]
            return
        if several:
            raise ValueError(f"Must pass a list for multi-valued parameter: {name}.")
        self._values[name] = _as_kind(name, kind, value)

    def del_hparam(self, name: str) -> None:
        """Take one out, if it is there."""
        self._values.pop(name, None)
        self._types.pop(name, None)

    def parse(self, values: str) -> HParams:
        """Set several from text: "name=value,list=[1,2],list[0]=3".

        Returns:
            Itself.

        Raises:
            ValueError: If the text or a value does not fit; then nothing is changed.
        """
        parsed: dict[str, Any] = {}
        at = 0
        while at < len(values):
            match = _ITEM.match(values, at)
            if match is None:
                raise ValueError(f"Malformed hyperparameter value: {values[at:]}")
            at = match.end()
            name = match["name"]
            if name not in self._types:
                raise ValueError(f"Unknown hyperparameter type for {name}")
            kind, several = self._types[name]
            if match["index"] is not None:
                items = list(parsed.get(name, self._values[name]))
                place = int(match["index"])
                if not several or place >= len(items):
                    raise ValueError(f"{name}[{place}] is no element of a hyperparameter.")
                items[place] = _of_text(name, kind, match["value"] or "")
                parsed[name] = items
            elif match["list"] is not None:
                if not several:
                    raise ValueError(f"Must not pass a list for single-valued parameter: {name}")
                texts = [text for text in re.split(r"[\s,]+", match["list"][1:-1].strip()) if text]
                parsed[name] = [_of_text(name, kind, text) for text in texts]
            else:
                if several:
                    raise ValueError(f"Must pass a list for multi-valued parameter: {name}.")
                parsed[name] = _of_text(name, kind, (match["value"] or "").strip())
        self._values.update(parsed)
        return self

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> HParams:
        """Set several that are there; gives itself."""
        for name, value in values_dict.items():
            self.set_hparam(name, value)
        return self

    def parse_json(self, values_json: str) -> HParams:
        """Set several from a JSON object; gives itself."""
        return self.override_from_dict(json.loads(values_json))

    def to_json(self, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
        """Give all as a JSON object; functions are left out."""
        plain = {name: value for name, value in self._values.items() if not callable(value)}
        return json.dumps(plain, indent=indent, separators=separators, sort_keys=sort_keys)

    def values(self) -> dict[str, Any]:
        """Give all, by their names."""
        return dict(self._values)

    def get(self, key: str, default: Any = None) -> Any:
        """Give a hyperparameter, or `default` if there is none of that name."""
        return self._values.get(key, default)

    def get_model_structure(self) -> Any:
        """Give what was given as `model_structure`."""
        return self._model_structure

    def set_model_structure(self, model_structure: Any) -> None:
        """Set it."""
        self._model_structure = model_structure

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __repr__(self) -> str:
        return f"HParams({sorted(self._values.items())})"


def _as_kind(name: str, kind: type, value: Any) -> Any:
    """Give a value as the type that a parameter has."""
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    wrong = ValueError(f"Could not cast hparam {name!r} of type {kind.__name__!r} from value {value!r}")
    if value is None or kind is type(None):
        return value
    if isinstance(value, str) is not issubclass(kind, str) or (kind is int and float(value) != int(value)):
        raise wrong
    if isinstance(value, bool) is not issubclass(kind, bool):
        raise wrong
    return kind(value)


def _of_text(name: str, kind: type, text: str) -> Any:
    """Read the value of a parameter."""
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return text if kind in (str, type(None)) else kind(text)
    except (ValueError, KeyError):
        raise ValueError(f"Could not parse hparam {name!r} of type {kind.__name__!r} with value {text!r}") from None
