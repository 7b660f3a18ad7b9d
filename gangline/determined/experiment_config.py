"""PURE: `determined.ExperimentConfig`: the mapping of an experiment's configuration, with readers of its usual keys."""

from __future__ import annotations

from typing import Any


class ExperimentConfig(dict[str, Any]):
    """Holds a configuration with the defaults filled in, as `context.get_experiment_config()` returns it."""

    def scheduling_unit(self) -> int:
        return int(self.get("scheduling_unit") or 100)

    def slots_per_trial(self) -> int:
        return int(self._section("resources").get("slots_per_trial", 1))

    def experiment_seed(self) -> int:
        return int(self._section("reproducibility").get("experiment_seed") or 0)

    def profiling_enabled(self) -> bool:
        return bool(self._section("profiling").get("enabled"))

    def average_training_metrics_enabled(self) -> bool:
        return bool(self._section("optimizations").get("average_training_metrics", True))

    def get_searcher_metric(self) -> str:
        return str(self._section("searcher")["metric"])

    def get_min_validation_period(self) -> Any:
        return self.get("min_validation_period") or {}

    def get_min_checkpoint_period(self) -> Any:
        return self.get("min_checkpoint_period") or {}

    def get_optimizations_config(self) -> dict[str, Any]:
        return self._section("optimizations")

    def get_checkpoint_storage(self) -> dict[str, Any]:
        return self._section("checkpoint_storage")

    def get_entrypoint(self) -> str | list[str]:
        entrypoint: str | list[str] = self["entrypoint"]
        return entrypoint

    def _section(self, name: str) -> dict[str, Any]:
        return dict(self.get(name) or {})
