"""Keeps the list of nodes current: from a watched file, or from a callable such as EC2's."""

import asyncio
import logging
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from runtime.contract.explain import explain
from runtime.contract.node import NodeAddress, NodesFile
from runtime.errors import BadInput, TurnbackError
from runtime.router.nodes import Fleet

Listing = Callable[[], Sequence[NodeAddress]]
"""Lists the nodes; may block. Raises TurnbackError or OSError when it cannot."""

logger = logging.getLogger("turnback.router")


def read_nodes_file(path: Path) -> Sequence[NodeAddress]:
    """Nodes of a TOML file.

    Raises:
        BadInput: it is not TOML, its values cannot be used, or it is empty: whoever writes
            it in place empties it first, and must not lose all nodes by that.
        OSError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            raise BadInput(
                f"{path} is empty",
                got="no line",
                allowed="tables [[prefill]] and [[decode]], or a comment where there are no nodes",
                fix=f"write another file and rename it to {path}",
            )
        return NodesFile.model_validate(tomllib.loads(text)).nodes()
    except ValidationError as error:
        raise explain(error, str(path)) from error
    except (ValueError, RecursionError) as error:  # of tomllib, for all that is no TOML
        raise BadInput(
            f"{path} is not TOML",
            got=str(error),
            allowed='tables [[prefill]] and [[decode]] with url = "http://..."',
            fix=f"correct {path}",
        ) from error


async def follow(listing: Listing, fleet: Fleet, every_s: float) -> None:
    """Bring the fleet up to date for ever; what cannot be listed leaves it as it is.

    The whole list is read each time: no lost event can leave a node behind.
    """
    last_problem = None
    while True:
        try:
            fleet.update(await asyncio.to_thread(listing))
            last_problem = None
        except (TurnbackError, OSError) as error:
            if str(error) != last_problem:
                last_problem = str(error)
                logger.warning("the nodes cannot be listed, the last list stays: %s", error)
        await asyncio.sleep(every_s)
