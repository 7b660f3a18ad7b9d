"""Carries one connection to a shell or a notebook over a gateway's gRPC, for `gangline shell tunnel`.

It uses the first gateway that answers. A connection that is lost is not resumed: the program at its end starts anew.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import grpc

from gangline.client.attempts import explain
from gangline.client.connection import dialer_to
from gangline.errors import ErrorKind, GanglineError
from gangline.login import Login, say_gateways
from gangline.protocol import rpc
from gangline.v1 import gateway_pb2, gateway_pb2_grpc

CONNECT_SECONDS = 5.0
CHUNK_BYTES = 64 << 10
STDOUT = 1


def carry(login: Login, experiment_id: int, source: int, sink: int = STDOUT) -> None:
    """Returns when either side has ended the connection. source, sink: descriptors. Raises GanglineError."""
    channel = _connect(login)
    is_open = threading.Event()

    def requests() -> Iterator[gateway_pb2.ConnectTaskRequest]:
        yield gateway_pb2.ConnectTaskRequest(experiment_id=experiment_id)
        is_open.wait()
        while data := os.read(source, CHUNK_BYTES):
            yield gateway_pb2.ConnectTaskRequest(data=data)

    stub = gateway_pb2_grpc.GatewayServiceStub(channel)
    call = stub.ConnectTask(requests(), metadata=rpc.token_metadata(login.token))
    try:
        for answer in call:
            is_open.set()
            _write_all(sink, answer.data)
    except grpc.RpcError as error:
        raise explain(error, login, say_gateways(login.addresses)) from error
    except BrokenPipeError:
        pass
    finally:
        call.cancel()


def _write_all(sink: int, data: bytes) -> None:
    while data:
        data = data[os.write(sink, data) :]


def _connect(login: Login) -> grpc.Channel:
    dialer = dialer_to(login)
    for address in login.addresses:
        channel = dialer.open(address, rpc.CHANNEL_OPTIONS)
        with suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(timeout=CONNECT_SECONDS)
            return channel
        channel.close()
    raise GanglineError("gateway.away", f"no gateway answers at {', '.join(login.addresses)}", ErrorKind.UNAVAILABLE)
