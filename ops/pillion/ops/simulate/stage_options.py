"""The flags of every command that simulates executors of several pipeline stages."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def stage_options(function: F) -> F:
    """`--pipeline-parallel-size` and `--stage-latency`, as `stages` and `stage_latency`."""
    function = click.option(
        "--stage-latency",
        default=0.0,
        type=click.FloatRange(0),
        metavar="X",
        help="seconds from a pipeline stage to the next  [0]",
    )(function)
    return click.option(
        "--pipeline-parallel-size",
        "-pp",
        "stages",
        default=1,
        type=click.IntRange(1, 64),
        metavar="N",
        help="pipeline stages of an executor, each with an equal share of a step  [1]",
    )(function)
