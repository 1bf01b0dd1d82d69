"""`python -m octavo_gateway`: the same as `octavo gateway`."""

import typer

from octavo_gateway.cli import gateway

typer.run(gateway)
