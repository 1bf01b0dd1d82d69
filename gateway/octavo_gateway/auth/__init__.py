"""API keys: the pairs of this gateway, the keys that the server keeps, the callers behind them, and which route asks
for which scope. A request's tenant and scopes come from its key, never from a header of its own."""

from octavo_gateway.auth.callers import BEARER as BEARER
from octavo_gateway.auth.callers import Caller as Caller
from octavo_gateway.auth.callers import CurrentCaller as CurrentCaller
from octavo_gateway.auth.callers import CurrentTenant as CurrentTenant
from octavo_gateway.auth.callers import caller_of as caller_of
from octavo_gateway.auth.keyring import Keyring as Keyring
