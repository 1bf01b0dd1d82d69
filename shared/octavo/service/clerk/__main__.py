"""`python -m octavo.service.clerk`: the clerk of a gateway, with settings from the environment."""

from __future__ import annotations

import sys

from octavo.service.clerk.process import run_clerk
from octavo.service.clerk.settings import ClerkSettings
from octavo.terms.errors import OctavoError

if __name__ == "__main__":
    try:
        run_clerk(ClerkSettings())
    except (OctavoError, OSError) as error:
        sys.exit(f"the clerk: {error}")
