"""The messages of ext_proc, as far as the picker reads and writes them: names and numbers of fields.

They are those of Envoy's API (envoy/service/ext_proc/v3/external_processor.proto and what it imports; Apache License 2.0, The
Envoy Project Authors). What is not here is skipped when a message is read, as protobuf does with any field that it does not
know. So the protobuf library is enough: xds-protos, which has all of the API, needs grpcio, and writes over files of
opentelemetry-proto.

Each line is a message. `oneof NAME` stands before the fields of which a message has one, `*` before the type of a repeated one,
and `map` before the type of the values. Enumerations are numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

_PACKAGE: Final = "maitred.ext_proc"
_SCHEMA: Final = """\
HeaderValue            key=1 string, value=2 string, raw_value=3 bytes
HeaderMap              headers=1 *HeaderValue
HeaderValueOption      header=1 HeaderValue, append_action=3 int32
HeaderMutation         set_headers=1 *HeaderValueOption, remove_headers=2 *string
HttpHeaders            headers=1 HeaderMap, end_of_stream=3 bool
HttpBody               body=1 bytes, end_of_stream=2 bool
HttpTrailers           trailers=1 HeaderMap
HttpStatus             code=1 int32
Metadata               filter_metadata=1 map Struct
ProtocolConfiguration  request_body_mode=1 int32, response_body_mode=2 int32
StreamedBodyResponse   body=1 bytes, end_of_stream=2 bool
BodyMutation           oneof mutation, body=1 bytes, clear_body=2 bool, streamed_response=3 StreamedBodyResponse
CommonResponse         header_mutation=2 HeaderMutation, body_mutation=3 BodyMutation, clear_route_cache=5 bool
HeadersResponse        response=1 CommonResponse
BodyResponse           response=1 CommonResponse
TrailersResponse       header_mutation=1 HeaderMutation
ImmediateResponse      status=1 HttpStatus, headers=2 HeaderMutation, body=3 bytes
ProcessingMode         response_body_mode=4 int32
ProcessingRequest      metadata_context=8 Metadata, protocol_config=11 ProtocolConfiguration, oneof request, \
request_headers=2 HttpHeaders, response_headers=3 HttpHeaders, request_body=4 HttpBody, response_body=5 HttpBody, \
request_trailers=6 HttpTrailers, response_trailers=7 HttpTrailers
ProcessingResponse     dynamic_metadata=8 Struct, mode_override=9 ProcessingMode, oneof response, \
request_headers=1 HeadersResponse, response_headers=2 HeadersResponse, request_body=3 BodyResponse, \
response_body=4 BodyResponse, request_trailers=5 TrailersResponse, response_trailers=6 TrailersResponse, \
immediate_response=7 ImmediateResponse
"""
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {kind: _Field.Type.Value(f"TYPE_{kind.upper()}") for kind in ("string", "bytes", "bool", "int32")}


def _messages() -> Iterator[Any]:
    for line in _SCHEMA.splitlines():
        message_name, _, fields = line.partition(" ")
        message = descriptor_pb2.DescriptorProto(name=message_name)
        for field in fields.split(","):
            first, _, kind = field.strip().partition(" ")
            if first == "oneof":
                message.oneof_decl.add(name=kind)
                continue
            name, _, number = first.partition("=")
            _add_field(message, name, number, kind)
        yield message


def _add_field(message: Any, name: str, number: str, kind: str) -> None:
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if message.oneof_decl:
        field.oneof_index = 0
    if kind.startswith("map "):
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", "1", "string")
        _add_field(entry, "value", "2", kind.removeprefix("map "))
        kind = f"*{message.name}.{entry.name}"
    if kind.startswith("*"):
        field.label, kind = _Field.LABEL_REPEATED, kind[1:]
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = ".google.protobuf.Struct" if kind == "Struct" else f".{_PACKAGE}.{kind}"


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="maitred/ext_proc.proto", package=_PACKAGE, syntax="proto3", dependency=[struct_pb2.DESCRIPTOR.name]
    )
    file.message_type.extend(_messages())
    pool = descriptor_pool.Default()
    pool.Add(file)
    return {name.removeprefix(f"{_PACKAGE}."): made for name, made in _get_classes(pool, file.name).items()}


def _get_classes(pool: Any, name: str) -> dict[str, Any]:
    return dict(message_factory.GetMessageClassesForFiles([name], pool))


proto: Any = SimpleNamespace(**_classes())
"""The class of each message."""
BODY_MODES: Final = ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED", "GRPC")
"""`ProcessingMode.BodySendMode`, by number."""
STREAMED: Final = BODY_MODES.index("STREAMED")
OVERWRITE: Final = 2
"""`HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD`."""
