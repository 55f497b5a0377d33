"""The soak runs on the router's loop."""

from tests.router.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
