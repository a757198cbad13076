"""What the README shows is true."""

import asyncio
import inspect
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

import tollgate_client
from tollgate_client import Client, Descriptor, Request

RULES_OF_ADDRESSES = """
domain: edge
descriptors: [{key: remote_address, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: sliding_log}}]
"""
RULES_OF_MODELS = """
domain: models
descriptors: [{key: tokens, rate_limit: {unit: hour, requests_per_unit: 10000, algorithm: sliding_log}}]
"""
README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()


async def test_first_program_of_readme_prints_the_decision(start_server):
    server = await start_server(RULES_OF_ADDRESSES)
    program = re.search(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)[1]
    assert '"127.0.0.1:8081", timeout=1.0' in program
    # With a timeout that suits a busy machine.
    program = program.replace('"127.0.0.1:8081", timeout=1.0', f'"{server.address}", timeout=10')

    async def printed():
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
        return (await process.communicate())[0].decode()

    assert [await printed() for _ in range(2)] == ["server allowed\n"] * 2
    assert re.fullmatch(r"server refused for 3[56]\d\d\.\d+ s\n", await printed())


@pytest.mark.parametrize(("section", "left"), [("Reservations", 9_700), ("Prepaid slices", 9_999)])
async def test_lines_of_readme_section_charge_what_is_used(start_server, make_client, section, left):
    server = await start_server(RULES_OF_MODELS)
    client = await make_client(server.address)
    block = re.search(r"^```python\n(.*?)^```$", README.split(f"## {section}")[1], re.MULTILINE | re.DOTALL)[1]
    descriptors = [Descriptor([("tokens", "ann")])]
    names = {**vars(tollgate_client), "client": client, "descriptors": descriptors}
    exec("async def run():\n" + textwrap.indent(block, "    "), names)

    await names["run"]()

    assert (await client.peek(Request("models", descriptors))).tightest.remaining == left


def test_readme_names_each_setting_with_its_default():
    documented = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]+?)`? \|", README.split("## Settings")[1], re.MULTILINE))
    parameters = inspect.signature(Client).parameters
    words = {"credentials": "plaintext", "metrics": "none"}

    assert documented.keys() == parameters.keys() - {"target"}
    for name, default in documented.items():
        assert words.get(name) == default or eval(default, vars(tollgate_client)) == parameters[name].default, name
