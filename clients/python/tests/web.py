"""The example applications, and requests to them."""

import asyncio
import http.client
import importlib.util
import pathlib

from server import LOOPBACK

EXAMPLE = pathlib.Path(__file__).parents[1] / "example"


def load_example(name):
    """A module of the example folder, which reads its settings from the environment now."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def get(port, path="/", **headers):
    """The status, the headers with names in lower case, and the body."""

    def call():
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=20)
        try:
            connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return response.status, fields, response.read().decode()
        finally:
            connection.close()

    return await asyncio.to_thread(call)
