"""One plot of a report as a picture: `python -m pillion.ops.report.picture REPORT TITLE FILE.svg`."""

from html import escape
from pathlib import Path

import click

from .files import NoReport, read
from .model import Plot
from .page import STYLE
from .svg import LEFT, WIDTH, drawn, legend

_TOP, _EDGE = 64, 14  # the title and the names of the series stand above


def picture(plot: Plot) -> str:
    """SVG that needs nothing else."""
    height, body = drawn(plot)
    names, at = [], float(LEFT)
    for index, name in enumerate(legend(plot)):
        names.append(
            f'<rect class="dot s{index % 8}" x="{at:.0f}" y="41" width="12" height="12" rx="3"/>'
            f'<text class="name" x="{at + 18:.0f}" y="51">{escape(name)}</text>'
        )
        at += 42 + 7 * len(name)
    size = f"0 0 {WIDTH + 2 * _EDGE} {height + _TOP + _EDGE}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img" '
        f'aria-label="{escape(plot.title)}">\n<style>\n{STYLE}'
        "text { font: 12px system-ui, sans-serif; }\n"
        ".title { font-size: 16px; font-weight: 620; fill: var(--ink); }\n</style>\n"
        '<rect width="100%" height="100%" rx="14" fill="var(--card)"/>\n'
        f'<g transform="translate({_EDGE})"><text class="title" x="{LEFT}" y="26">{escape(plot.title)}</text>'
        f"{''.join(names)}</g>\n"
        f'<g transform="translate({_EDGE} {_TOP})">{"".join(body)}</g>\n</svg>\n'
    )


@click.command()
@click.argument("report")
@click.argument("title")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, writable=True))
def main(report: str, title: str, file: Path) -> None:
    """Draws the plot with this TITLE from a REPORT into FILE."""
    try:
        plots = {plot.title: plot for plot in read(report).plots}
    except NoReport as error:
        raise click.ClickException(str(error)) from None
    if title not in plots:
        raise click.ClickException(f"{report} has no plot {title!r}; there is {', '.join(plots)}")
    file.write_text(picture(plots[title]), encoding="utf-8")


if __name__ == "__main__":
    main()
