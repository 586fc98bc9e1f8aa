"""The one configuration: a frozen tree that is passed in. Nothing reads the environment but `load`."""

from pillion.config.loading import Loaded, Setting, load
from pillion.config.tree import (
    DEFAULT_SLO_TBT,
    Admission,
    Config,
    Executor,
    Gateway,
    Leaf,
    Model,
    Scheduler,
    Stack,
    Telemetry,
    TenantLimits,
    leaves,
)
from pillion.config.values import ConfigError, parse_bytes, parse_limits

__all__ = [
    "DEFAULT_SLO_TBT",
    "Admission",
    "Config",
    "ConfigError",
    "Executor",
    "Gateway",
    "Leaf",
    "Loaded",
    "Model",
    "Scheduler",
    "Setting",
    "Stack",
    "Telemetry",
    "TenantLimits",
    "leaves",
    "load",
    "parse_bytes",
    "parse_limits",
]
