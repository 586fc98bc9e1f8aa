"""Which measured cost model a scheduler goes by: the file that was named, or the one for this executor."""

import logging
from pathlib import Path

from pillion.config import Config, ConfigError
from pillion.contracts.entries import Facts
from pillion.steptime import CostModelError, StepTime, load
from pillion.steptime.place import hardware, place

log = logging.getLogger(__name__)


class Measured:
    """`--cost-model`: a file, `auto` or `none`."""

    def __init__(self, config: Config) -> None:
        """Raises ConfigError where the file is no cost model."""
        named = config.scheduler.cost_model
        self._cache = config.cache_path if named == "auto" else None
        self._threads = config.executor.threads
        self._model: StepTime | None = None
        if named not in ("auto", "none"):
            try:
                self._model = load(Path(named).expanduser())
            except CostModelError as error:
                raise ConfigError(f"--cost-model: {error}") from None

    def of(self, facts: Facts) -> StepTime | None:
        """The executor's. None where none was measured or none is wanted: it is then learned from steps."""
        model = self._model or self._found(facts)
        if model is None:
            return None
        origin = model.provenance
        if origin.fingerprint != facts.fingerprint:
            log.warning(
                "cost model %s was measured with another model, build or machine (%s, %s)",
                model.hash,
                origin.model,
                origin.hardware,
            )
        log.info("cost model %s of %s: P95 error %.1f %%", model.hash, origin.date, 100 * model.error.p95)
        return model

    def _found(self, facts: Facts) -> StepTime | None:
        if self._cache is None:
            return None
        path = place(self._cache, facts.fingerprint, hardware())
        if not path.exists():
            return None
        try:
            model = load(path)
        except CostModelError as error:
            log.warning("%s", error)
            return None
        threads = model.provenance.threads
        if self._threads not in (None, threads):
            log.info("%s was measured with %d threads and is left aside", path, threads)
            return None
        return model
