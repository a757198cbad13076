"""The generated messages are those of the protocol file."""

import pathlib
import subprocess
import sys

import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.rpc import status_pb2

from tollgate_client.v1 import tollgate_pb2

PROTO = pathlib.Path(__file__).parents[1] / "proto"


def test_installed_messages_equal_the_protocol_file(tmp_path):
    folders = [pathlib.Path(grpc_tools.__file__).parent / "_proto", pathlib.Path(status_pb2.__file__).parents[2]]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path=tollgate_client/v1={PROTO}"]
    command += [f"--proto_path={folder}" for folder in folders]
    command += [f"--descriptor_set_out={tmp_path / 'set'}", "tollgate_client/v1/tollgate.proto"]
    subprocess.run(command, check=True, timeout=60)

    [file] = FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file
    for message in file.message_type:
        for field in message.field:
            field.ClearField("json_name")
    installed = type(file).FromString(tollgate_pb2.DESCRIPTOR.serialized_pb)
    assert installed == file, "install the package again: the protocol file has changed"
