"""Exporters: after which evaluations a model is exported, and which exports are kept.

Layer: tf1. Source of behaviour and texts: TensorFlow 1.15 `tf.estimator.Exporter`.
"""

from __future__ import annotations

import abc
import glob
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from globalstep.chief.events.events import summary_iterator

_log = logging.getLogger("globalstep")


class Exporter(abc.ABC):
    """Exports a model after an evaluation."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Its directory below "export"; exporters of one EvalSpec have different names."""

    @abc.abstractmethod
    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> Any:
        """Export the model, if this is an evaluation after which that is to be done.

        Args:
            estimator: The Estimator.
            export_path: The directory of this exporter.
            checkpoint_path: What was evaluated.
            eval_result: What came of it.
            is_the_final_export: Whether training has ended.

        Returns:
            The directory of the export; None where there was none.
        """


def scalars_of(path: str) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the step and the scalars of each event of a file that has some."""
    for event in summary_iterator(path):
        scalars = {value.tag: value.simple_value for value in event.summary.value if value.HasField("simple_value")}
        if scalars:
            yield event.step, scalars


class _Saving(Exporter):
    """Exports by `Estimator.export_saved_model`; see LatestExporter."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        if exports_to_keep is not None and exports_to_keep <= 0:
            raise ValueError(f"`exports_to_keep`, if provided, must be a positive number. Got: {exports_to_keep}")
        self._name = name
        self._options = (serving_input_receiver_fn, assets_extra, as_text)
        self._most = exports_to_keep

    @property
    def name(self) -> str:
        return self._name

    def _save(self, estimator: Any, export_path: str, checkpoint_path: str) -> Any:
        receiver_fn, assets_extra, as_text = self._options
        made = estimator.export_saved_model(
            export_path, receiver_fn, assets_extra=assets_extra, as_text=as_text, checkpoint_path=checkpoint_path
        )
        if self._most is not None:
            exports = sorted((name for name in os.listdir(export_path) if name.isdecimal()), key=int)
            for name in exports[: -self._most]:
                try:
                    shutil.rmtree(os.path.join(export_path, name))
                except OSError as error:
                    _log.warning("Can not delete %s recursively: %s", name, error)
        return made


class LatestExporter(_Saving):
    """Exports after every evaluation, and keeps the newest exports.

    Args:
        name: See Exporter.
        serving_input_receiver_fn: As for `Estimator.export_saved_model`.
        assets_extra: As for `Estimator.export_saved_model`.
        as_text: As for `Estimator.export_saved_model`.
        exports_to_keep: How many; None for all.

    Raises:
        ValueError: If that is not positive.
    """

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> Any:
        """See Exporter."""
        return self._save(estimator, export_path, checkpoint_path)


class FinalExporter(_Saving):
    """Exports once, when training has ended, and keeps all exports; arguments are LatestExporter's."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, None)

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> Any:
        """See Exporter."""
        if not is_the_final_export:
            return None
        _log.info("Performing the final export in the end of training.")
        return self._save(estimator, export_path, checkpoint_path)


def _loss_is_smaller(best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]) -> bool:
    """Say whether the loss of the current evaluation is smaller than the best one's."""
    for what, result in (("best", best_eval_result), ("current", current_eval_result)):
        if not result or "loss" not in result:
            raise ValueError(f"{what}_eval_result cannot be empty or no loss is found in it.")
    return bool(best_eval_result["loss"] > current_eval_result["loss"])


class BestExporter(_Saving):
    """Exports after every evaluation that is better than all before it.

    Arguments that are not named here are LatestExporter's.

    Args:
        event_file_pattern: Events of earlier evaluations below the model's directory, by whose results a program that
            was started again goes on, such as "eval/*.tfevents.*"; None to begin anew.
        compare_fn: Function of `best_eval_result` and `current_eval_result`; default whether the loss is smaller.

    Raises:
        ValueError: If there is no such function, or the number is not positive.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        event_file_pattern: str | None = None,
        compare_fn: Callable[..., bool] = _loss_is_smaller,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        if compare_fn is None:
            raise ValueError("`compare_fn` must not be None.")
        if serving_input_receiver_fn is None:
            raise ValueError("An input_receiver_fn must be defined.")
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        self._is_better = compare_fn
        self._pattern = event_file_pattern
        self._best: Mapping[str, Any] | None = None
        self._looked = False

    def export(
        self, estimator: Any, export_path: str, checkpoint_path: str, eval_result: Any, is_the_final_export: bool
    ) -> Any:
        """See Exporter."""
        if not self._looked and self._pattern:
            self._best = self._best_before(os.path.join(estimator.model_dir, self._pattern), eval_result)
        self._looked = True
        if self._best is not None and not self._is_better(best_eval_result=self._best, current_eval_result=eval_result):
            return None
        _log.info("Performing best model export.")
        self._best = eval_result
        return self._save(estimator, export_path, checkpoint_path)

    def _best_before(self, pattern: str, present: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the best of the evaluations before the present one, as their events have them."""
        best: Mapping[str, Any] | None = None
        for path in sorted(glob.glob(pattern)):
            for step, result in scalars_of(path):
                if step < present["global_step"] and (
                    best is None or self._is_better(best_eval_result=best, current_eval_result=result)
                ):
                    best = result
        return best
