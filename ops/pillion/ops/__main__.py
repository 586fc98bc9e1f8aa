"""`python -m pillion.ops ROLE`: how `pillion up` starts its children; command lines show roles."""

from pillion.ops.cli import main

main()
