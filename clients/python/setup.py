"""Generates the messages from the protocol file while the package is built. All else is in pyproject.toml."""

import pathlib

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).parent


class BuildWithMessages(build_py):
    """Generates the messages into `src`, from where they are packaged like written modules."""

    def run(self):
        # Other commands, such as `sdist`, do not need the compiler.
        import grpc_tools
        from google.rpc import status_pb2
        from grpc_tools import protoc

        options = [
            # The name of a protocol file becomes the name of its modules, which are parts of this package.
            f"--proto_path=tollgate_client/v1={HERE / 'proto'}",
            f"--proto_path={pathlib.Path(grpc_tools.__file__).parent / '_proto'}",
            f"--proto_path={pathlib.Path(status_pb2.__file__).parents[2]}",
            *(f"--{kind}_out={HERE / 'src'}" for kind in ("python", "pyi", "grpc_python")),
        ]
        if protoc.main(["protoc", *options, "tollgate_client/v1/tollgate.proto"]) != 0:
            raise SystemExit("protoc failed: see its messages above")
        super().run()


setup(cmdclass={"build_py": BuildWithMessages})
