"""The light client: submit jobs, follow their streams, collect results. It needs Redis alone, never an extra."""

from octavo.client.asynchronous import AsyncClient as AsyncClient
