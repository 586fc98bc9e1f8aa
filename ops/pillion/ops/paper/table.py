"""A paper's figures beside ours."""

from dataclasses import dataclass

Cell = str | float | None


@dataclass(frozen=True, slots=True)
class Table:
    name: str  # in the JSON
    title: str
    setup: str  # what was simulated, and how
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    differs: str  # what differs from the paper, and why

    def markdown(self) -> str:
        lines = [
            f"## {self.title}",
            "",
            self.setup,
            "",
            f"| {' | '.join(self.columns)} |",
            f"| {' | '.join('---' for _ in self.columns)} |",
            *(f"| {' | '.join(map(_text, row))} |" for row in self.rows),
            "",
            f"*What differs:* {self.differs}",
        ]
        return "\n".join(lines) + "\n"


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    return f"{cell:.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
